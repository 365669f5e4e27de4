#pragma once

#include <memory>
#include <vector>

#include "comm/health/status_scope.h"
#include "comm/shm/shm_memory.h"
#include "comm/world.h"

namespace zs {

/// One rank of a group: its rank among those of the host, its slot there, and where the slot's counters stood when the
/// group was made.
struct ShmMember {
  int host_rank = 0;
  ShmSlot::Split split = {};
};

/// The processes of one host, over memory that all of them have mapped. Owns its slot. Thread and stream rules:
/// Communicator's.
class ShmCommunicator final : public DirectCommunicator {
 public:
  ShmCommunicator(std::shared_ptr<ShmMemory> memory, std::vector<ShmMember> members, int rank,
                  const WorldOptions& options);
  ~ShmCommunicator() override;

  const char* transport() const override { return "shm"; }
  Allocator& arena() override { return *memory_; }
  bool prefers_arena() const override { return true; }
  std::unique_ptr<Communicator> split(int color, int key) override {
    const StatusScope status(recorder(), "split", StatusScope::Host::waits_for_ranks);
    return recorded_like_this(split_off(color, key), color);
  }
  std::shared_ptr<void> shared_window(std::int64_t bytes) override;
  /// Splits as split() does.
  std::unique_ptr<ShmCommunicator> split_off(int color, int key);
  /// True if the process of that rank has ended.
  bool has_died(int rank) const { return memory_->has_died(members_[static_cast<std::size_t>(rank)].host_rank); }

 private:
  static Rendezvous place(const ShmMemory& memory, const std::vector<ShmMember>& members, bool is_host);
  static DirectGroup view(const ShmMemory& memory, const std::vector<ShmMember>& members);
  std::byte* staging() override;
  ShmSlot& slot(int rank) const {
    const ShmMember& member = members_[static_cast<std::size_t>(rank)];
    return memory_->slot(member.host_rank, member.split.slot);
  }

  std::shared_ptr<ShmMemory> memory_;
  std::vector<ShmMember> members_;
  WorldOptions options_;
  Rendezvous host_;
  void* staging_ = nullptr;
};

}  // namespace zs
