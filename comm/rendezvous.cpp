#include "comm/rendezvous.h"

#include <algorithm>

#include "comm/wait.h"

namespace zs {
namespace {

/// A rank that gives up waits at least this long for peers that are reading its buffers: they only copy, and look up often.
constexpr double kLeastGrace_s = 60;

}  // namespace

Visit::Visit(MeetingPlace& place, const Who& who)
    : place_(place), who_(who), round_(place.slots_[static_cast<std::size_t>(who.rank)].arrived.load() + 1) {}

void Visit::check_alive() const {
  if (!place_.has_failed()) return;
  const std::string absent = missing(&MeetingPlace::Slot::arrived);
  throw GroupEnded(ExitCode::peer_lost,
                   fmt::format("rank {}: {} ended because another rank failed{}{}", who_.rank, who_.what,
                               absent.empty() || !arrived_ ? "" : "; it waited for rank ", arrived_ ? absent : std::string()));
}

void Visit::arrive() {
  arrived_ = true;
  place_.slots_[static_cast<std::size_t>(who_.rank)].arrived.store(round_);
  wait_for_all(&MeetingPlace::Slot::arrived);
}

void Visit::finish() {
  place_.slots_[static_cast<std::size_t>(who_.rank)].left.store(round_);
  wait_for_all(&MeetingPlace::Slot::left);
  finished_ = true;
}

void Visit::wait_for_all(Counter counter) const {
  const auto all_have = [&] {
    return std::all_of(place_.slots_.begin(), place_.slots_.end(), [&](const auto& slot) { return (slot.*counter).load() >= round_; });
  };
  Patience patience(who_.timeout_s);
  while (!all_have()) {
    if (place_.has_failed()) {
      // Looked at again, because the failure may have come after the last rank: a disagreement is seen by all.
      if (all_have()) return;
      check_alive();
    }
    if (patience.pause()) continue;
    throw Error(ExitCode::peer_lost,
                fmt::format("rank {}: {} waited {:g} s for rank {}", who_.rank, who_.what, who_.timeout_s, missing(counter)));
  }
}

std::string Visit::missing(Counter counter) const {
  std::vector<int> ranks;
  for (int r = 0; r < place_.size(); ++r) {
    if ((place_.slots_[static_cast<std::size_t>(r)].*counter).load() < round_) ranks.push_back(r);
  }
  return list_of(ranks);
}

void Visit::give_up() noexcept {
  if (!arrived_) return;
  place_.failed_.store(true);
  place_.slots_[static_cast<std::size_t>(who_.rank)].left.store(round_);
  Patience patience(std::max(who_.timeout_s, kLeastGrace_s));
  for (const auto& slot : place_.slots_) {
    while (slot.arrived.load() >= round_ && slot.left.load() < round_ && patience.pause()) {
    }
  }
}

}  // namespace zs
