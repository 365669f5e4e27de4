#include "comm/direct/rendezvous.h"

#include <algorithm>

#include "comm/backoff.h"

namespace zs {
namespace {

/// A rank that gives up waits at least this long for peers that are reading its buffers: they only copy, and look up
/// often.
constexpr double kLeastGrace_s = 60;

}  // namespace

bool Rendezvous::has_failed() const {
  if (abort_flag_.set.load()) return true;
  return std::any_of(slots_.begin(), slots_.end(), [](const SlotOf& one) { return one.slot->failed.load(); });
}

RendezvousGuard::RendezvousGuard(Rendezvous& place, const Who& who)
    : place_(place), who_(who), first_step_(place.count(who.rank, &RendezvousSlot::arrived) + 1), step_(first_step_) {}

void RendezvousGuard::check_alive() const {
  if (!place_.has_failed()) return;
  const auto absent = arrived_ ? missing(&RendezvousSlot::arrived) : std::vector<int>();
  throw GroupEnded(ExitCode::peer_lost,
                   fmt::format("{} ended because another rank failed{}{}", who_.what,
                               absent.empty() ? "" : "; it waited for rank ", names_of(absent)),
                   fmt::format("rank {}", name_of(who_.rank)), "see what that rank says");
}

void RendezvousGuard::arrive() {
  arrived_ = true;
  place_.set(who_.rank, &RendezvousSlot::arrived, step_);
  wait_for_all(&RendezvousSlot::arrived);
}

void RendezvousGuard::step() {
  ++step_;
  arrive();
  check_alive();
}

void RendezvousGuard::finish() {
  place_.set(who_.rank, &RendezvousSlot::left, step_);
  wait_for_all(&RendezvousSlot::left);
  finished_ = true;
}

bool RendezvousGuard::all_have(Counter counter) const {
  for (int r = 0; r < place_.size(); ++r) {
    if (place_.count(r, counter) < step_) return false;
  }
  return true;
}

void RendezvousGuard::wait_for_all(Counter counter) const {
  Backoff backoff(who_.timeout_s);
  for (int pauses = 1; !all_have(counter); ++pauses) {
    if (place_.has_failed()) {
      // Looked at again, because the failure may have come after the last rank: a disagreement is seen by all.
      if (all_have(counter)) return;
      check_alive();
    }
    if (pauses % Backoff::kPausesBetweenChecks == 0) check_for_the_dead(counter);
    if (backoff.pause()) continue;
    throw waited_in_vain(who_.what, name_of(who_.rank), who_.timeout_s, names_of(missing(counter)));
  }
}

void RendezvousGuard::check_for_the_dead(Counter counter) const {
  if (!place_.has_died_) return;
  for (const int rank : missing(counter)) {
    // Looked at again: it may have come just before its end.
    if (!place_.has_died_(rank) || place_.count(rank, counter) >= step_) continue;
    throw GroupEnded(ExitCode::peer_lost,
                     fmt::format("{} waited for rank {}, whose process has ended", who_.what, name_of(rank)),
                     fmt::format("rank {}", name_of(who_.rank)), kAfterADeath);
  }
}

std::string RendezvousGuard::names_of(const std::vector<int>& ranks) const {
  std::vector<int> names;
  for (const int rank : ranks) names.push_back(name_of(rank));
  return list_of(names);
}

std::vector<int> RendezvousGuard::missing(Counter counter) const {
  std::vector<int> ranks;
  for (int r = 0; r < place_.size(); ++r) {
    if (place_.count(r, counter) < step_) ranks.push_back(r);
  }
  return ranks;
}

void RendezvousGuard::give_up() noexcept {
  if (!arrived_) return;
  place_.slot(who_.rank).failed.store(true);
  place_.set(who_.rank, &RendezvousSlot::left, step_);
  Backoff backoff(std::max(who_.timeout_s, kLeastGrace_s));
  for (int r = 0; r < place_.size(); ++r) {
    const auto is_inside = [&] {
      return place_.count(r, &RendezvousSlot::arrived) >= first_step_ &&
             place_.count(r, &RendezvousSlot::left) < first_step_;
    };
    for (int pauses = 1; is_inside() && backoff.pause(); ++pauses) {
      if (pauses % Backoff::kPausesBetweenChecks == 0 && place_.has_died_ && place_.has_died_(r)) break;
    }
  }
}

}  // namespace zs
