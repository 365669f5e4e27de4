#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/shard/offload/disk_file.h"
#include "runtime/tensor/context.h"

namespace zs {

/// The way between the device's memory and what the host keeps, in its memory or on a disk. The offload stream copies,
/// and its order is the only one that shards in memory need. Files are read and written by the finish stream, which has
/// nothing else to do once gradients are reduced, through buffers of the host's memory that exist as long as a window
/// does. Owned by an Executor; one host thread uses it. On return from every function, but where it says so: enqueued,
/// not done.
class HostLink {
 public:
  /// Shards of a unit that are on the device for a while. Movable; an empty one has nothing on the host.
  struct Window {
    struct Part {
      Buffer host;
      Memory memory;
      bool is_written = true;    // else compute has only read it, and it need not go back
      DiskFile* disk = nullptr;  // file that keeps it
      Memory staging = {};       // memory of the host, on the way from and to the disk

      Buffer here() const { return memory.buffer(host.dtype, host.elems); }
      Buffer beside() const { return disk != nullptr ? staging.buffer(host.dtype, host.elems) : host; }
    };
    std::string unit;
    std::vector<Part> parts;
    Event arrived;
    Stream* mover = nullptr;  // stream that has filled it

    Buffer operator[](std::size_t part) const { return parts.at(part).here(); }
  };

  HostLink(Context& context, double cpu_link_gbs) : context_(context), cpu_link_gbs_(cpu_link_gbs) {}

  /// Memory of the host for a shard, or room in a file of the folder `disk`. Its contents are undefined until a window
  /// is stored there. Errors of DiskFile.
  Memory acquire(std::int64_t bytes, const std::string& label, const std::string& disk = {});
  static constexpr const char* kLabel = "host_window";  ///< label of what is on the device for a while

  /// Copies of shards that the host keeps, once a stream has waited for `arrived`. `pool`: whose memory; none: the
  /// device's own.
  Window load(const std::string& unit, const std::vector<Buffer>& host, Pool* pool = nullptr,
              const char* label = kLabel);
  /// Room for what becomes their contents: compute, or `stream`, may write to it.
  Window open(const std::string& unit, const std::vector<Buffer>& host);
  Window open(const std::string& unit, const std::vector<Buffer>& host, Stream& stream, Pool& pool);
  /// Stores back to the host, as compute leaves it, or as it is at `written`.
  void store(Window window);
  void store(Window window, const Event& written);
  /// Drops a window in which nothing has changed; `last_user` is who has read it.
  static void drop(Window window, Stream& last_user);
  /// A copy in the host's memory of what compute has written to `in` so far, after all that was stored. The event:
  /// it has come there.
  Event send_down(const std::string& what, const Buffer& out, const Buffer& in);
  /// The host has changed what it keeps, and made `in`, by `made`; if it has made something, that goes to the device.
  /// All that is loaded from now on comes after it; `arrived`: it is done.
  void send_up(const std::string& what, const Buffer& out, const Buffer& in, const Event& made, Event& arrived);
  /// `stream` may read what the host keeps in its memory: all that was stored so far has come there.
  void settle(Stream& stream) const { stream.wait(last_store_); }

  /// Throws what a disk has failed with in work that is done: a GPU goes on with what it has then. `load` does so, too.
  void check();

  /// True if a disk keeps the shard, or part of one.
  bool is_on_disk(const Buffer& host) const { return disk_of(host) != nullptr; }
  /// Copy a shard that a disk keeps to memory of the host, and back, now: while the device is idle.
  void read(const Buffer& from, void* to) const;
  void write(const Buffer& to, const void* from) const;
  /// The bytes of each folder's file.
  std::map<std::string, std::int64_t> disk_bytes() const;

 private:
  Stream& offload() { return context_.device().stream(StreamRole::offload); }
  Stream& disk() { return context_.device().stream(StreamRole::finish); }
  DiskFile* disk_of(const Buffer& host) const;
  Window make(const std::string& unit, const std::vector<Buffer>& host, Stream& stream, Pool& pool,
              const char* label = kLabel);

  void copy(const char* name, const std::string& unit, const Buffer& out, const Buffer& in);
  void read_part(const std::string& unit, Window::Part& part);
  void write_part(const std::string& unit, Window::Part& part);

  Context& context_;
  double cpu_link_gbs_;
  Event last_store_;
  std::map<std::string, std::unique_ptr<DiskFile>> disks_;  // by their folders
};

}  // namespace zs
