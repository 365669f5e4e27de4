#include "comm/shm/shm_communicator.h"

#include <algorithm>
#include <optional>

namespace zs {

ShmCommunicator::ShmCommunicator(std::shared_ptr<ShmMemory> memory, std::vector<ShmMember> members, int rank,
                                 const WorldOptions& options)
    : DirectCommunicator(rank, options.timeout_s, view(*memory, members)),
      memory_(std::move(memory)),
      members_(std::move(members)),
      options_(options),
      host_(place(*memory_, members_, true)) {}

ShmCommunicator::~ShmCommunicator() {
  operations_.await();
  if (staging_ != nullptr) memory_->deallocate(staging_, kStagingBytes);
  memory_->free_slot(members_[static_cast<std::size_t>(rank())].split.slot);
}

Rendezvous ShmCommunicator::place(const ShmMemory& memory, const std::vector<ShmMember>& members, bool is_host) {
  std::vector<SlotOf> slots;
  std::vector<int> ranks;
  for (const auto& [host_rank, split] : members) {
    ShmSlot& slot = memory.slot(host_rank, split.slot);
    slots.push_back(is_host ? SlotOf{&slot.host, split.host_base} : SlotOf{&slot.ops, split.ops_base});
    ranks.push_back(host_rank);
  }
  const auto has_died = [&memory, ranks = std::move(ranks)](int rank) {
    return memory.has_died(ranks[static_cast<std::size_t>(rank)]);
  };
  return {std::move(slots), memory.abort_flag(), has_died};
}

DirectGroup ShmCommunicator::view(const ShmMemory& memory, const std::vector<ShmMember>& members) {
  DirectGroup made{place(memory, members, false), {}, {}};
  for (const auto& [host_rank, split] : members) {
    made.posts.push_back(&memory.slot(host_rank, split.slot).op);
    made.memory.push_back(memory.memory_of(host_rank));
  }
  return made;
}

std::byte* ShmCommunicator::staging() {
  if (staging_ == nullptr) staging_ = memory_->allocate(kStagingBytes);
  return static_cast<std::byte*>(staging_);
}

std::unique_ptr<ShmCommunicator> ShmCommunicator::split_off(int color, int key) {
  ZS_CHECK(color >= 0, "a split by color {}", color);
  const std::int64_t number = memory_->take_slot();
  const ShmSlot& fresh = memory_->slot(memory_->rank(), number);
  std::vector<std::pair<std::int64_t, int>> order;  // (key, rank) of this rank's color
  std::vector<ShmMember> members;
  {
    RendezvousGuard guard(host_, who("split"), slot(rank()).split,
                          {color, key, number, fresh.ops.arrived.load(), fresh.host.arrived.load()});
    guard.check_alive();
    for (int r = 0; r < size(); ++r) {
      if (slot(r).split.color == color) order.emplace_back(slot(r).split.key, r);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [unused, r] : order)
      members.push_back({members_[static_cast<std::size_t>(r)].host_rank, slot(r).split});
    guard.finish();
  }
  const auto self = std::find(order.begin(), order.end(), std::pair(std::int64_t{key}, rank()));
  return std::make_unique<ShmCommunicator>(memory_, std::move(members), static_cast<int>(self - order.begin()),
                                           options_);
}

/// Makes a window of the first rank's memory, which all have mapped.
std::shared_ptr<void> ShmCommunicator::shared_window(std::int64_t bytes) {
  const StatusScope status(recorder(), "shared window", StatusScope::Host::waits_for_ranks);
  ShmSlot::Window own{.bytes = bytes};
  std::optional<Error> refused;
  if (rank() == 0) try {
      own.offset = memory_->make_window(bytes, size());
    } catch (const Error& error) {
      refused = error;
    }
  RendezvousGuard guard(host_, who("shared_window"), slot(rank()).window, own);
  guard.check_alive();
  const std::int64_t offset = slot(0).window.offset;
  for (int r = 1; r < size(); ++r) {
    if (slot(r).window.bytes != slot(0).window.bytes)
      throw windows_disagree(0, slot(0).window.bytes, r, slot(r).window.bytes);
  }
  guard.finish();
  if (refused) throw *refused;
  if (offset == ShmSlot::Window::kNone)
    throw Error(ExitCode::out_of_memory,
                fmt::format("another rank of this host has no {} bytes of shared memory", bytes));
  const int owner = members_[0].host_rank;
  return {memory_->memory_of(owner).at(offset),
          [memory = memory_, owner, offset, bytes](void*) { memory->leave_window(owner, offset, bytes); }};
}

}  // namespace zs
