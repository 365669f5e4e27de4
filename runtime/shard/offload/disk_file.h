#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/file.h"
#include "runtime/device/allocator.h"

namespace zs {

/// A rank's own file for shards that a disk keeps, in a folder that is made where it is missing. The file loses its
/// name as soon as it is open, so that nothing is left behind however the process ends.
///
/// What is in it has addresses that nothing backs, as memory of the meta device has: such a buffer says which bytes of
/// the file it stands for, and events order what streams do to it. Space is taken from the disk when it is acquired.
/// What was written is compared, block by block, with what is read. Owned by a HostLink; its host thread acquires, and
/// one thread at a time reads and writes.
class DiskFile {
 public:
  /// `number`: of those of one link, whose addresses differ. `is_real`: else there is no file, as on the meta device.
  /// Error(cannot_create) where the folder cannot be used, Error(out_of_memory) by `acquire` where the disk is full.
  DiskFile(std::string folder, int number, bool is_real);
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  /// Acquires room in the file. Its contents are undefined until they are written.
  Memory acquire(std::int64_t bytes, Stream& stream, std::string label) {
    return pool_.acquire(bytes, stream, std::move(label));
  }
  bool contains(const Buffer& buffer) const;
  /// True if a read or a write has thrown. Any thread.
  bool has_failed() const { return has_failed_; }
  /// Length of the file.
  std::int64_t bytes() const { return space_.end; }

  /// Place in the file that a buffer stands for, for another thread than the host's.
  struct Extent {
    std::int64_t begin, bytes;
    std::vector<std::uint64_t> hashes;  // hash of each block; 0: not known
  };
  struct Range {
    Extent* extent;
    std::int64_t begin, bytes;  // within that
  };
  Range range_of(const Buffer& buffer);
  /// Error(io) where the disk fails, or has not what was written.
  void read(const Range& from, void* to) const;
  void write(const Range& to, const void* from) const;

 private:
  static constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20, kPageBytes = 4096;
  /// Takes more and more of the file.
  struct Space final : Allocator {
    explicit Space(DiskFile& file) : owner(file) {}
    DeviceKind device() const override { return DeviceKind::meta; }
    void* allocate(std::int64_t bytes) override;
    void deallocate(void*, std::int64_t) noexcept override {}
    DiskFile& owner;
    std::int64_t end = 0;
  };

  void open();
  void reserve(std::int64_t begin, std::int64_t bytes) const;
  void read_bytes(std::int64_t offset, void* to, std::int64_t bytes) const;
  void write_bytes(std::int64_t offset, const void* from, std::int64_t bytes) const;
  void check_block(const Range& block, const void* data) const;
  [[noreturn]] void fail(const char* what, std::int64_t offset, const std::string& why) const;

  std::string folder_;
  std::uintptr_t base_;  // first of the addresses
  File file_;
  mutable std::atomic<bool> has_failed_ = false;
  std::map<std::int64_t, Extent> extents_;  // by their begin
  MemoryCounter counter_;
  Space space_{*this};
  Pool pool_{space_, counter_};
};

}  // namespace zs
