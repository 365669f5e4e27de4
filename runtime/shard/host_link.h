#pragma once

#include <string>
#include <vector>

#include "runtime/tensor/context.h"

namespace zs {

/// The way between the host's memory and the device's, on the offload stream, whose order is the only one that shards
/// kept on the host need. Owned by an Executor; one host thread uses it. On return from every function: enqueued, not
/// done.
class HostLink {
 public:
  /// Shards of a unit that are on the device for a while. Movable; an empty one has nothing on the host.
  struct Window {
    struct Part {
      Buffer host;
      Memory memory;
      bool is_written = true;  // else compute has only read it, and it need not go back

      Buffer here() const { return memory.buffer(host.dtype, host.elems); }
    };
    std::string unit;
    std::vector<Part> parts;
    Event arrived;

    Buffer operator[](std::size_t part) const { return parts.at(part).here(); }
  };

  HostLink(Context& context, double cpu_link_gbs) : context_(context), cpu_link_gbs_(cpu_link_gbs) {}

  /// Memory of the host for a shard. Its contents are undefined until a window is stored there.
  Memory acquire(std::int64_t bytes, const std::string& label) {
    return context_.device().pinned_memory().acquire(bytes, offload(), label);
  }
  /// Copies of shards that the host keeps, once a stream has waited for `arrived`. `pool`: whose memory; none: the
  /// device's own.
  Window load(const std::string& unit, const std::vector<Buffer>& host, Pool* pool = nullptr);
  /// Room for what becomes their contents: compute, or `stream`, may write to it.
  Window open(const std::string& unit, const std::vector<Buffer>& host);
  Window open(const std::string& unit, const std::vector<Buffer>& host, Stream& stream, Pool& pool);
  /// Back to the host, as compute leaves it, or as it is at `written`.
  void store(Window window);
  void store(Window window, const Event& written);
  /// Nothing has changed; `last_user` is who has read it.
  static void drop(Window window, Stream& last_user);
  /// `stream` may read what the host keeps: all that was stored so far has come there.
  void settle(Stream& stream) const { stream.wait(last_store_); }

 private:
  Stream& offload() { return context_.device().stream(StreamRole::offload); }
  Window make(const std::string& unit, const std::vector<Buffer>& host, Stream& stream, Pool& pool);
  void copy(const char* name, const std::string& unit, const Buffer& out, const Buffer& in);

  Context& context_;
  double cpu_link_gbs_;
  Event last_store_;
};

}  // namespace zs
