#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/direct/direct.h"
#include "runtime/device/allocator.h"

namespace zs {

/// Facts that a rank must know of another one to reach its memory. Trivially copyable: travels by MPI.
struct ShmInvitation {
  std::int64_t pid = 0, fd = 0, bytes = 0;
  std::uint64_t nonce = 0;  ///< stands at the beginning of the memory: another process of the same number has another
};

/// A rank's part of a communicator: who of the group is where. In memory that processes share.
struct alignas(64) ShmSlot {
  RendezvousSlot ops, host;
  OpPost op;
  /// Post of a split: the caller's color and key, and the slot that it has prepared for the new group.
  struct Split {
    std::int64_t color = 0, key = 0, slot = 0;
    std::uint64_t ops_base = 0, host_base = 0;
  } split;
  /// Post of a shared window: its begin in the first rank's memory, or kNone; how long each rank wants it.
  struct Window {
    static constexpr std::int64_t kNone = -1;
    std::int64_t offset = kNone, bytes = 0;
  } window;
};

/// Memory of this rank that the other ranks of the host have mapped too, and theirs: an anonymous file (memfd) a rank,
/// as many addresses as the machine has memory, of which only what is allocated exists. No file system holds it, so
/// nothing is left when the ranks are gone, however they went. A head with the slots, then what is allocated. Owned by
/// the ranks' communicators together; thread-safe once the peers are mapped. Addresses stay mapped for as long as
/// anything is allocated.
class ShmMemory final : public Allocator {
 public:
  static constexpr std::int64_t kWorldSlot = 0;  ///< taken from the first

  /// Others wait for this rank for `timeout_s` at most: huge pages may take a small part of it. Throws Error where the
  /// system does not give it.
  ShmMemory(int rank, int ranks, double timeout_s);
  ~ShmMemory() override;
  ShmMemory(const ShmMemory&) = delete;
  ShmMemory& operator=(const ShmMemory&) = delete;

  ShmInvitation invitation() const;
  /// Maps the others' memory. Throws Error where that cannot be.
  void map_peers(std::span<const ShmInvitation> invitations);

  DeviceKind device() const override { return DeviceKind::cpu; }
  void* allocate(std::int64_t bytes) override;
  void deallocate(void* address, std::int64_t bytes) noexcept override;

  /// Memory of this rank for `users` ranks, this one among them: its offset. Goes back when all of them have left it,
  /// if this one does so last or makes another window later; else when the process ends.
  std::int64_t make_window(std::int64_t bytes, int users);
  /// This rank is done with a window of `owner`'s.
  void leave_window(int owner, std::int64_t offset, std::int64_t bytes) noexcept;

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(peers_.size()); }
  const PeerMemory& memory_of(int rank) const { return peers_[static_cast<std::size_t>(rank)].memory; }
  /// Abort flag of the whole world.
  AbortFlag& abort_flag() const;
  ShmSlot& slot(int rank, std::int64_t number) const;
  /// A slot of this rank's that nobody else uses.
  std::int64_t take_slot();
  void free_slot(std::int64_t number) noexcept;
  /// True if the process of that rank has ended.
  bool has_died(int rank) const;

 private:
  struct Head;
  /// Owns a file descriptor.
  struct Descriptor {
    int fd = -1;
    ~Descriptor();
  };
  /// Owns a mapping, and what tells of its owner's end.
  struct Peer {
    PeerMemory memory{0, 0};
    Descriptor process;
    ~Peer();
  };
  Head& head(int rank) const { return *reinterpret_cast<Head*>(memory_of(rank).at(0)); }
  std::int64_t take_range(std::int64_t bytes);
  void free_range(std::int64_t offset, std::int64_t bytes);
  std::atomic<std::int64_t>& window_users(int owner, std::int64_t offset, std::int64_t bytes) const;
  void free_left_windows() noexcept;

  int rank_;
  double longest_collapse_s_;  // limit of one allocation, for huge pages
  Descriptor file_;
  std::vector<Peer> peers_;                    // by rank, this one included
  std::mutex mutex_;                           // guards what follows
  std::map<std::int64_t, std::int64_t> free_;  // bytes by offset
  std::vector<std::int64_t> free_slots_;
  // Windows of this rank that others still use: offset and bytes
  std::vector<std::pair<std::int64_t, std::int64_t>> left_windows_;
  std::int64_t next_slot_ = 0, allocated_bytes_ = 0;
};

}  // namespace zs
