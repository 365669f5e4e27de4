#include "comm/shm/shm_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>

#include "comm/host/file_size.h"
#include "comm/host/sealed_file.h"
#include "runtime/base/standard_streams.h"

namespace zs {
namespace {

constexpr std::int64_t kPage = 4096, kHugePage = std::int64_t{2} << 20, kHugeFrom = std::int64_t{4} << 20;
constexpr std::int64_t kHeadBytes = kHugePage;
/// MADV_COLLAPSE, which Linux has from 6.1 on and glibc a name for from 2.37 on: huge pages at once, also where the
/// system gives shared memory none by itself.
constexpr int kCollapse = 25;
constexpr std::int64_t kAllocatedAtOnce = std::int64_t{16} << 20, kCollapsedAtOnce = std::int64_t{64} << 20;
constexpr double kLongestCollapse_s = 10;
constexpr double kCollapseOfTimeout = 0.2;
/// Addresses of all ranks of a host together: a quarter of what an x86-64 process can address.
constexpr std::int64_t kMostAddresses = std::int64_t{1} << 45;

std::int64_t whole_pages(std::int64_t bytes) {
  return std::max<std::int64_t>((bytes + kPage - 1) / kPage * kPage, kPage);
}

Error failure(const std::string& what, int number) {
  return Error(ExitCode::out_of_memory, fmt::format("{}: {}", what, std::strerror(number)));
}

/// Bytes of addresses for a rank: as much as it could ever fill.
std::int64_t span_bytes(int ranks) {
  const std::int64_t memory = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(memory + (std::int64_t{1} << 30), kMostAddresses / ranks) / kHugePage * kHugePage;
}

/// Address space for a whole file, at a multiple of a huge page, so that both the owner and the peers can have huge
/// pages.
std::uintptr_t map_file(int fd, std::int64_t bytes, const std::string& what) {
  void* const room = mmap(nullptr, static_cast<std::size_t>(bytes + kHugePage), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw failure(fmt::format("{}, {} MiB of addresses", what, bytes >> 20), errno);
  const auto begin = reinterpret_cast<std::uintptr_t>(room);
  const std::uintptr_t base = (begin + kHugePage - 1) / kHugePage * kHugePage,
                       end = begin + static_cast<std::uintptr_t>(bytes + kHugePage);
  void* const mapped = mmap(reinterpret_cast<void*>(base), static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) {
    const Error error = failure(what, errno);
    if (munmap(room, static_cast<std::size_t>(bytes + kHugePage)) != 0) errno = 0;
    throw error;
  }
  // Pages left over at both ends; the kernel takes back what it has just given.
  if (base > begin && munmap(room, base - begin) != 0) errno = 0;
  const std::uintptr_t rest = base + static_cast<std::uintptr_t>(bytes);
  if (end > rest && munmap(reinterpret_cast<void*>(rest), end - rest) != 0) errno = 0;
  if (madvise(mapped, static_cast<std::size_t>(bytes), MADV_DONTDUMP) != 0)
    errno = 0;  // a core file of everybody's memory helps nobody
  return base;
}

/// Frees pages to the system, out of everybody's mappings. Returns an errno.
int free_pages(int fd, std::int64_t offset, std::int64_t bytes) {
  return bytes == 0 || fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes) == 0 ? 0 : errno;
}

/// Now, where it can be refused: a page that is missing later would be a SIGBUS. Returns an errno. Part by part, since
/// older systems undo an allocation that a signal interrupts, and a profiler's signals never end.
int allocate_file(int fd, std::int64_t offset, std::int64_t bytes) {
  for (std::int64_t done = 0; done < bytes;) {
    const std::int64_t part = std::min(kAllocatedAtOnce, bytes - done);
    const int rc = posix_fallocate(fd, offset + done, part);
    if (rc == EINTR) continue;
    if (rc == 0) {
      done += part;
      continue;
    }
    free_pages(fd, offset, done);
    return rc;
  }
  return 0;
}

/// Only requests, as for ordinary memory (runtime/device/cpu_allocator.cpp). The second copies what is there already,
/// two to five seconds for 2 GiB: what is left after `longest_s` stays on small pages, or is left to khugepaged.
void ask_for_huge_pages(std::byte* address, std::int64_t bytes, double longest_s) {
  if (bytes < kHugeFrom) return;
  const std::int64_t whole = bytes / kHugePage * kHugePage;
  if (madvise(address, static_cast<std::size_t>(whole), MADV_HUGEPAGE) != 0) errno = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(longest_s);
  for (std::int64_t done = 0; done < whole && std::chrono::steady_clock::now() < end; done += kCollapsedAtOnce) {
    if (madvise(address + done, static_cast<std::size_t>(std::min(kCollapsedAtOnce, whole - done)), kCollapse) != 0)
      break;
  }
  errno = 0;
}

}  // namespace

/// Head of every rank's memory.
struct ShmMemory::Head {
  std::uint64_t nonce;
  AbortFlag abort_flag;  // in rank 0's memory only: the world's
};

ShmMemory::Descriptor::~Descriptor() {
  if (fd >= 0 && close(fd) != 0) errno = 0;
}

ShmMemory::Peer::~Peer() {
  if (memory.base != 0 && munmap(memory.at(0), static_cast<std::size_t>(memory.bytes)) != 0) errno = 0;
}

namespace {

constexpr std::int64_t kFirstSlot = kPage,
                       kSlots = (kHeadBytes - kFirstSlot) / static_cast<std::int64_t>(sizeof(ShmSlot));

}  // namespace

ShmMemory::ShmMemory(int rank, int ranks, double timeout_s)
    : rank_(rank),
      longest_collapse_s_(std::min(kLongestCollapse_s, kCollapseOfTimeout * timeout_s)),
      peers_(static_cast<std::size_t>(ranks)) {
  file_.fd = memfd_create("zshard", kSealable);
  if (file_.fd < 0) throw failure("memfd_create", errno);
  const std::int64_t bytes = span_bytes(ranks);
  if (!may_have_file_of(bytes)) throw failure("a memfd as long as the machine has memory (ulimit -f)", EFBIG);
  if (ftruncate(file_.fd, bytes) != 0 || !seal_size(file_.fd)) throw failure("ftruncate of a memfd", errno);
  if (const int rc = allocate_file(file_.fd, 0, kPage); rc != 0) throw failure("fallocate of a memfd", rc);
  PeerMemory& own = peers_[static_cast<std::size_t>(rank)].memory;
  own = {map_file(file_.fd, bytes, "mapping shared memory"), bytes};
  Head* const made = new (own.at(0)) Head{};
  if (getrandom(&made->nonce, sizeof made->nonce, 0) != sizeof made->nonce) throw failure("getrandom", errno);
  free_.emplace(kHeadBytes, bytes - kHeadBytes);
  ZS_CHECK(take_slot() == kWorldSlot, "the world's slot is not the first");
}

ShmMemory::~ShmMemory() {
  // Threads that were left behind with a device may still touch what it never gave back.
  for (Peer& peer : peers_) {
    if (allocated_bytes_ > 0) peer.memory = {0, 0};
  }
}

ShmInvitation ShmMemory::invitation() const { return {getpid(), file_.fd, memory_of(rank_).bytes, head(rank_).nonce}; }

void ShmMemory::map_peers(std::span<const ShmInvitation> invitations) {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    const ShmInvitation& theirs = invitations[r];
    const std::string path = fmt::format("/proc/{}/fd/{}", theirs.pid, theirs.fd);
    const Descriptor file{open(path.c_str(), O_RDWR | O_CLOEXEC)};
    if (file.fd < 0) throw failure(fmt::format("opening the memory of this host's rank {}, {}", r, path), errno);
    if (!is_safe_to_map(file.fd, theirs.bytes))
      throw failure(fmt::format("{} is not the memory of this host's rank {}", path, r), ESTALE);
    Peer& peer = peers_[r];
    peer.memory = {map_file(file.fd, theirs.bytes, fmt::format("mapping the memory of this host's rank {}", r)),
                   theirs.bytes};
    if (head(static_cast<int>(r)).nonce != theirs.nonce)
      throw failure(fmt::format("{} is not the memory of this host's rank {}", path, r), ESTALE);
    peer.process.fd = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(theirs.pid),
                                               0));  // without it a death is noticed by the deadline alone
  }
}

void* ShmMemory::allocate(std::int64_t bytes) {
  ZS_CHECK(bytes >= 0, "allocation of {} bytes", bytes);
  const std::int64_t whole = whole_pages(bytes);
  std::unique_lock lock(mutex_);
  const std::int64_t offset = take_range(whole);
  std::byte* const address = memory_of(rank_).at(std::max<std::int64_t>(offset, 0));
  const int rc = offset < 0 ? ENOMEM : allocate_file(file_.fd, offset, whole);
  if (rc != 0) {
    if (offset >= 0) free_range(offset, whole);
    throw Error(ExitCode::out_of_memory,
                fmt::format("cannot allocate {} bytes of shared memory ({})", bytes, std::strerror(rc)), {},
                "reduce the micro-batch or the model, use more ranks, or raise the memory limit (cgroup)");
  }
  allocated_bytes_ += whole;
  lock.unlock();  // huge pages may take seconds
  ask_for_huge_pages(address, whole, longest_collapse_s_);
  return address;
}

std::int64_t ShmMemory::take_range(std::int64_t bytes) {
  const std::int64_t alignment = bytes >= kHugeFrom ? kHugePage : kPage;
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    const auto [begin, length] = *piece;
    const std::int64_t offset = (begin + alignment - 1) / alignment * alignment;
    if (offset + bytes > begin + length) continue;
    free_.erase(piece);
    if (offset > begin) free_.emplace(begin, offset - begin);
    if (offset + bytes < begin + length) free_.emplace(offset + bytes, begin + length - offset - bytes);
    return offset;
  }
  return -1;
}

void ShmMemory::deallocate(void* address, std::int64_t bytes) noexcept {
  const std::int64_t whole = whole_pages(bytes);
  const auto offset = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(address) - memory_of(rank_).base);
  const std::lock_guard lock(mutex_);
  allocated_bytes_ -= whole;
  if (const int rc = free_pages(file_.fd, offset, whole); rc != 0)
    print_to_stderr("zshard: {} bytes of shared memory could not be given back: {}\n", whole, std::strerror(rc));
  free_range(offset, whole);
}

void ShmMemory::free_range(std::int64_t offset, std::int64_t bytes) {
  auto piece = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(piece); next != free_.end() && offset + bytes == next->first) {
    piece->second += next->second;
    free_.erase(next);
  }
  if (piece == free_.begin()) return;
  if (const auto before = std::prev(piece); before->first + before->second == offset) {
    before->second += piece->second;
    free_.erase(piece);
  }
}

namespace {

/// Bytes after a window that count the ranks which are there.
constexpr std::int64_t kUsersBytes = 64;

std::int64_t users_offset(std::int64_t bytes) { return (bytes + kUsersBytes - 1) / kUsersBytes * kUsersBytes; }

}  // namespace

std::atomic<std::int64_t>& ShmMemory::window_users(int owner, std::int64_t offset, std::int64_t bytes) const {
  return *reinterpret_cast<std::atomic<std::int64_t>*>(memory_of(owner).at(offset + users_offset(bytes)));
}

std::int64_t ShmMemory::make_window(std::int64_t bytes, int users) {
  free_left_windows();
  auto* const begin = static_cast<std::byte*>(allocate(users_offset(bytes) + kUsersBytes));
  const auto offset = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin) - memory_of(rank_).base);
  new (&window_users(rank_, offset, bytes)) std::atomic<std::int64_t>(users);
  return offset;
}

void ShmMemory::leave_window(int owner, std::int64_t offset, std::int64_t bytes) noexcept {
  window_users(owner, offset, bytes).fetch_sub(1);
  if (owner != rank_) return;
  {
    const std::lock_guard lock(mutex_);
    left_windows_.emplace_back(offset, bytes);
  }
  free_left_windows();
}

void ShmMemory::free_left_windows() noexcept {
  std::vector<std::pair<std::int64_t, std::int64_t>> all, empty;
  {
    const std::lock_guard lock(mutex_);
    all.swap(left_windows_);
    for (const auto& [offset, bytes] : all) {
      auto& list = window_users(rank_, offset, bytes).load() == 0 ? empty : left_windows_;
      list.emplace_back(offset, bytes);
    }
  }
  for (const auto& [offset, bytes] : empty) deallocate(memory_of(rank_).at(offset), users_offset(bytes) + kUsersBytes);
}

AbortFlag& ShmMemory::abort_flag() const { return head(0).abort_flag; }

ShmSlot& ShmMemory::slot(int rank, std::int64_t number) const {
  return *reinterpret_cast<ShmSlot*>(
      memory_of(rank).at(kFirstSlot + number * static_cast<std::int64_t>(sizeof(ShmSlot))));
}

std::int64_t ShmMemory::take_slot() {
  const std::lock_guard lock(mutex_);
  if (free_slots_.empty()) {
    ZS_CHECK(next_slot_ < kSlots, "more than {} communicators live at once, or have failed", kSlots);
    const std::int64_t bytes = sizeof(ShmSlot);
    if (const int rc = allocate_file(file_.fd, kFirstSlot + next_slot_ * bytes, bytes); rc != 0)
      throw failure("a communicator's memory", rc);
    new (&slot(rank_, next_slot_)) ShmSlot{};
    return next_slot_++;
  }
  const std::int64_t number = free_slots_.back();
  free_slots_.pop_back();
  return number;
}

void ShmMemory::free_slot(std::int64_t number) noexcept {
  const ShmSlot& old = slot(rank_, number);
  // A late peer of a failed group must still find the failure.
  if (old.ops.failed.load() || old.host.failed.load()) return;
  const std::lock_guard lock(mutex_);
  free_slots_.push_back(number);
}

bool ShmMemory::has_died(int rank) const {
  pollfd watched{peers_[static_cast<std::size_t>(rank)].process.fd, POLLIN, 0};
  return watched.fd >= 0 && poll(&watched, 1, 0) == 1;
}

}  // namespace zs
