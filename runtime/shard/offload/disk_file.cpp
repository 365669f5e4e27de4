#include "runtime/shard/offload/disk_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "comm/host/file_size.h"

namespace zs {
namespace {

constexpr const char* kKeepElsewhere = "free some space there, or name another folder in offload.*";

/// Beyond all addresses that a process has, 16 TiB for each file.
constexpr std::uintptr_t kFirstAddress = std::uintptr_t{1} << 60, kAddresses = std::uintptr_t{1} << 44;

std::uint64_t hash_of(const void* data, std::int64_t bytes) {
  return std::max<std::uint64_t>(XXH3_64bits(data, static_cast<std::size_t>(bytes)), 1);
}

}  // namespace

DiskFile::DiskFile(std::string folder, int number, bool is_real)
    : folder_(std::move(folder)), base_(kFirstAddress + static_cast<std::uintptr_t>(number) * kAddresses) {
  if (is_real) open();
}

/// The folder above must be there: where a disk is not mounted, another one would fill up.
void DiskFile::open() {
  const auto refuse = [&](const char* what, int error) {
    throw Error(ExitCode::cannot_create,
                fmt::format("the folder for state that the disk keeps {}: {}", what, system_reason(error)), folder_,
                "name one that this program may write to, in a folder that is there");
  };
  if (const int error = make_folder(folder_); error != 0 && error != EEXIST) refuse("cannot be made", error);
  std::string path = folder_ + "/.zshard-state-XXXXXX";
  file_ = File(::mkostemp(path.data(), O_CLOEXEC));
  if (!file_.is_open()) refuse("cannot be written to", file_.error());
  if (::unlink(path.c_str()) != 0) refuse("keeps its files", errno);
}

void* DiskFile::Space::allocate(std::int64_t bytes) {
  const std::int64_t begin = end;
  owner.reserve(begin, bytes);
  owner.extents_[begin] = {begin, bytes, std::vector<std::uint64_t>((bytes + kBlockBytes - 1) / kBlockBytes)};
  end = (begin + bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  return reinterpret_cast<void*>(owner.base_ + static_cast<std::uintptr_t>(begin));
}

void DiskFile::reserve(std::int64_t begin, std::int64_t bytes) const {
  if (!file_.is_open()) return;
  int error = may_have_file_of(begin + bytes) ? file_.reserve(begin, bytes) : EFBIG;
  if (error == EOPNOTSUPP) error = file_.truncate(begin + bytes);
  if (error == 0) return;
  throw Error(ExitCode::out_of_memory,
              fmt::format("the disk has no room for the state that it is to keep: {} bytes beside {} of this rank, {}",
                          bytes, begin, system_reason(error)),
              folder_, is_no_space(error) ? kKeepElsewhere : advice_for(error));
}

bool DiskFile::contains(const Buffer& buffer) const {
  const auto at = reinterpret_cast<std::uintptr_t>(buffer.data);
  return at >= base_ && at - base_ < static_cast<std::uintptr_t>(space_.end);
}

DiskFile::Range DiskFile::range_of(const Buffer& buffer) {
  ZS_CHECK(contains(buffer), "a buffer that is not in {}", folder_);
  const auto offset = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(buffer.data) - base_);
  Extent& extent = std::prev(extents_.upper_bound(offset))->second;
  ZS_CHECK(offset - extent.begin + buffer.bytes() <= extent.bytes, "{} bytes at {} of an extent of {}", buffer.bytes(),
           offset - extent.begin, extent.bytes);
  return {&extent, offset - extent.begin, buffer.bytes()};
}

/// Reads and compares whole blocks, also where only a part of one is asked for.
void DiskFile::read(const Range& from, void* to) const {
  auto* next = static_cast<std::byte*>(to);
  std::vector<std::byte> around;
  for (std::int64_t at = from.begin, end = from.begin + from.bytes; at < end;) {
    const std::int64_t begin = at / kBlockBytes * kBlockBytes;
    const Range block{from.extent, begin, std::min(kBlockBytes, from.extent->bytes - begin)};
    const std::int64_t into = at - begin, count = std::min(block.bytes - into, end - at);
    if (count == block.bytes) {
      read_bytes(from.extent->begin + begin, next, count);
      check_block(block, next);
    } else {
      around.resize(static_cast<std::size_t>(block.bytes));
      read_bytes(from.extent->begin + begin, around.data(), block.bytes);
      check_block(block, around.data());
      std::memcpy(next, around.data() + into, static_cast<std::size_t>(count));
    }
    next += count;
    at += count;
  }
}

void DiskFile::write(const Range& to, const void* from) const {
  const auto* next = static_cast<const std::byte*>(from);
  for (std::int64_t at = to.begin, end = to.begin + to.bytes; at < end;) {
    const std::int64_t number = at / kBlockBytes, begin = number * kBlockBytes,
                       block_bytes = std::min(kBlockBytes, to.extent->bytes - begin),
                       count = std::min(begin + block_bytes, end) - at;
    std::uint64_t& hash = to.extent->hashes[static_cast<std::size_t>(number)];
    hash = 0;
    write_bytes(to.extent->begin + at, next, count);
    if (count == block_bytes) hash = hash_of(next, count);
    next += count;
    at += count;
  }
}

void DiskFile::check_block(const Range& block, const void* data) const {
  const std::uint64_t known = block.extent->hashes[static_cast<std::size_t>(block.begin / kBlockBytes)];
  if (known != 0 && known != hash_of(data, block.bytes))
    fail("reading", block.extent->begin + block.begin, "it is not what was written");
}

void DiskFile::read_bytes(std::int64_t offset, void* to, std::int64_t bytes) const {
  const File::Count count = file_.read_at(offset, to, static_cast<std::size_t>(bytes));
  if (count.error != 0 || static_cast<std::int64_t>(count.bytes) < bytes)
    fail("reading", offset + static_cast<std::int64_t>(count.bytes),
         count.error != 0 ? system_reason(count.error) : "the file has become shorter");
}

void DiskFile::write_bytes(std::int64_t offset, const void* from, std::int64_t bytes) const {
  const int error = file_.write_at(offset, {static_cast<const char*>(from), static_cast<std::size_t>(bytes)});
  if (error != 0) fail("writing", offset, system_reason(error));
}

void DiskFile::fail(const char* what, std::int64_t offset, const std::string& why) const {
  has_failed_ = true;
  throw Error(ExitCode::io, fmt::format("{} the state that the disk keeps failed at byte {}: {}", what, offset, why),
              folder_, "go on from the last checkpoint, with another folder in offload.*");
}

}  // namespace zs
