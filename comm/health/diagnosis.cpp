#include "comm/health/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace zs {
namespace {

constexpr double kLeastHeartbeatAge_s = 1;

double seconds_since(std::int64_t ns) { return static_cast<double>(monotonic_ns() - ns) * 1e-9; }

/// True if `other` has not come to that operation, of its own group. A group that `other` has never used is its own
/// only when that is certain: when it is everybody's.
bool is_missing(const RankView& other, const OpView& op, int world_size) {
  const auto last = std::find_if(other.last_started.begin(), other.last_started.end(),
                                 [&](const OpView& o) { return o.group == op.group; });
  return last == other.last_started.end() ? op.size == world_size && !other.lacks_groups : last->sequence < op.sequence;
}

/// True if `other` has not come to an operation in which `waiting` waits.
bool holds_up(const RankView& other, const RankView& waiting, int world_size) {
  return std::any_of(waiting.unfinished.begin(), waiting.unfinished.end(),
                     [&](const OpView& op) { return is_missing(other, op, world_size); });
}

bool waits(const RankView& rank) { return rank.host_waits || !rank.unfinished.empty(); }

int waiting_for(std::span<const RankView> ranks, const RankView& culprit, int world_size) {
  for (const RankView& rank : ranks) {
    if (rank.rank != culprit.rank && holds_up(culprit, rank, world_size)) return rank.rank;
  }
  for (const RankView& rank : ranks) {
    if (rank.rank != culprit.rank && waits(rank)) return rank.rank;
  }
  return -1;
}

}  // namespace

RankView view_of(const StatusPage& page, char state) {
  RankView view{.rank = page.rank.load(),
                .pid = page.pid.load(),
                .state = state,
                .has_page = true,
                .phase = page.phase.load(),
                .has_left = page.has_left.load(),
                .step = page.step.load(),
                .heartbeat_age_s = seconds_since(page.heartbeat_ns.load()),
                .still_s = seconds_since(page.moved_ns.load()),
                .host_waits = page.host_waits.load() > 0,
                .only_waits = page.streams_wait.load() && (page.host_syncs.load() || page.host_waits.load() > 0),
                .host = page.host.get(),
                .streams = page.streams.get(),
                .unfinished = {},
                .last_started = {}};
  std::vector<std::pair<std::uint64_t, OpView>> unfinished;  // by number
  for (const FlightEntry& entry : page.entries) {
    const std::uint64_t number = entry.number.load();
    if (number == 0) continue;
    const OpView op{entry.group.load(), entry.sequence.load(), entry.size.load(), entry.text.get()};
    if (entry.done_ns.load() == 0) unfinished.emplace_back(number, op);
    const auto last = std::find_if(view.last_started.begin(), view.last_started.end(),
                                   [&](const OpView& o) { return o.group == op.group; });
    if (last == view.last_started.end()) {
      view.last_started.push_back(op);
    } else if (last->sequence < op.sequence) {
      *last = op;
    }
  }
  std::sort(unfinished.begin(), unfinished.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [number, op] : unfinished) view.unfinished.push_back(std::move(op));
  return view;
}

double limit_of(const WatchOptions& limits, Phase phase) {
  switch (phase) {
    case Phase::init: return limits.init_s;
    case Phase::first_step: return limits.first_step_s;
    case Phase::step: return limits.step_s;
    case Phase::checkpoint:
    case Phase::ending: return limits.checkpoint_s;
    case Phase::idle: return 0;
  }
  return 0;
}

namespace {

/// Allowance that a rank that waits, and has a limit itself, grants the others.
struct Allowance {
  double limit_s;
  const WatchOptions& limits;

  bool ends_with(const RankView& rank) const {
    const double theirs = limit_of(limits, rank.phase);
    const bool has_none = theirs <= 0 && rank.phase != Phase::idle;
    return !has_none && rank.still_s >= std::max(limit_s, theirs);
  }
};

/// Diagnoses the case that all wait, some of them in a call of their hosts' to all ranks and the others in operations,
/// whoever's these are.
std::optional<Diagnosis> calls_and_operations(std::span<const RankView> ranks) {
  const auto is_in_call = [](const RankView& rank) { return rank.host_waits; };
  const auto caller = std::find_if(ranks.begin(), ranks.end(), is_in_call),
             other = std::find_if_not(ranks.begin(), ranks.end(), is_in_call);
  if (caller == ranks.end() || other == ranks.end() || !std::all_of(ranks.begin(), ranks.end(), waits))
    return std::nullopt;
  return Diagnosis{Diagnosis::Kind::disagree, caller->rank, other->rank};
}

/// Diagnoses by ranks whose word is fresh; `otherwise` where none of them is to blame, and none that is waited for
/// moves.
Diagnosis diagnose_received(std::span<const RankView> ranks, int world_size, const Allowance& allowance,
                            const Diagnosis& otherwise) {
  using Kind = Diagnosis::Kind;
  const auto diagnosis = [&](Kind kind, const RankView& culprit) {
    return Diagnosis{kind, culprit.rank, waiting_for(ranks, culprit, world_size)};
  };
  for (const RankView& rank : ranks) {
    if (std::string_view("XZ").find(rank.state) != std::string_view::npos && !rank.has_left)
      return diagnosis(Kind::died, rank);
  }
  for (const RankView& rank : ranks) {
    if (std::string_view("Tt").find(rank.state) != std::string_view::npos) return diagnosis(Kind::stopped, rank);
  }
  for (const RankView& rank : ranks) {
    if (rank.has_page && rank.state != 'X' &&
        rank.heartbeat_age_s > std::max(allowance.limit_s / 2, kLeastHeartbeatAge_s))
      return diagnosis(Kind::stopped, rank);
  }
  const auto is_still = [&](const RankView& rank) { return allowance.ends_with(rank); };
  for (const RankView& rank : ranks) {
    if (is_still(rank) && !waits(rank) && !rank.has_left) return diagnosis(Kind::stands, rank);
  }
  const bool sees_all = static_cast<int>(ranks.size()) == world_size;
  // A rank that keeps others waiting, and is kept waiting by nobody, stands; if there is none, they wait for each
  // other.
  std::optional<Diagnosis> disagreement;
  for (const RankView& rank : ranks) {
    const RankView *held = nullptr, *holder = nullptr;
    for (const RankView& other : ranks) {
      if (other.rank == rank.rank) continue;
      if (holds_up(rank, other, world_size)) held = &other;
      if (holds_up(other, rank, world_size)) holder = &other;
    }
    if (held == nullptr) continue;
    if (holder == nullptr && !is_still(rank)) return {};          // the rank moves
    if (holder == nullptr && waits(rank) && !sees_all) continue;  // perhaps for one that is not seen
    // In a call of its host's to all ranks it does wait, for those that wait for it.
    if (holder == nullptr && !rank.host_waits) return diagnosis(Kind::stands, rank);
    if (!disagreement) disagreement = Diagnosis{Kind::disagree, rank.rank, held->rank};
  }
  if (!sees_all || !std::all_of(ranks.begin(), ranks.end(), is_still)) return otherwise;
  if (!disagreement) disagreement = calls_and_operations(ranks);
  return disagreement.value_or(otherwise);
}

}  // namespace

Diagnosis diagnose(std::span<const RankView> ranks, int world_size, Phase phase, const WatchOptions& limits) {
  const double limit_s = limit_of(limits, phase);
  const auto is_silent = [&](const RankView& rank) { return rank.silent_s > std::max(limit_s / 2, kSilentAfter_s); };
  std::vector<RankView> received;
  std::remove_copy_if(ranks.begin(), ranks.end(), std::back_inserter(received), is_silent);
  const auto lost =
      std::find_if(ranks.begin(), ranks.end(), [&](const RankView& rank) { return is_silent(rank) && !rank.has_left; });
  const Diagnosis otherwise =
      lost == ranks.end() ? Diagnosis{}
                          : Diagnosis{Diagnosis::Kind::silent, lost->rank, waiting_for(received, *lost, world_size)};
  return diagnose_received(received, world_size, {limit_s, limits}, otherwise);
}

bool somebody_moves(std::span<const RankView> ranks, double limit_s) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const RankView& rank) { return rank.has_page && !rank.has_left && rank.still_s < limit_s; });
}

Diagnosis diagnose_early_end(std::span<const RankView> ranks, int world_size) {
  for (const RankView& gone : ranks) {
    if (!gone.has_left) continue;
    for (const RankView& rank : ranks) {
      if (rank.rank != gone.rank && holds_up(gone, rank, world_size))
        return {Diagnosis::Kind::left_early, gone.rank, rank.rank};
    }
  }
  return {};
}

Diagnosis diagnose_deadlock(std::span<const RankView> ranks, int world_size, double still_s) {
  if (std::ssize(ranks) != world_size) return {};
  const auto goes_on = [&](const RankView& rank) {
    const bool is_known = rank.has_page && !rank.has_left && rank.host_name.empty() &&
                          std::string_view("XZTt").find(rank.state) == std::string_view::npos;
    if (!is_known || !rank.only_waits || rank.still_s < still_s || rank.heartbeat_age_s > kLeastHeartbeatAge_s)
      return true;
    return std::any_of(rank.unfinished.begin(), rank.unfinished.end(), [&](const OpView& op) {  // all have come to it
      return std::none_of(ranks.begin(), ranks.end(), [&](const RankView& other) {
        return other.rank != rank.rank && is_missing(other, op, world_size);
      });
    });
  };
  if (std::any_of(ranks.begin(), ranks.end(), goes_on)) return {};
  for (const RankView& rank : ranks)
    for (const RankView& other : ranks)
      if (rank.rank != other.rank && holds_up(rank, other, world_size))
        return {Diagnosis::Kind::disagree, rank.rank, other.rank};
  return {};
}

std::string when_of(const RankView& rank) {
  std::string when = rank.has_page ? fmt::format("in {}", name_of(rank.phase)) : "at its start";
  if (rank.step > 0) when += fmt::format(" {}", rank.step);
  if (const std::string what = doing(rank); !what.empty()) when += ", in " + what;
  return when;
}

std::string doing(const RankView& rank) {
  if (!rank.host.empty()) return rank.host;
  if (!rank.unfinished.empty())
    return fmt::format("{} #{}", rank.unfinished.front().text, rank.unfinished.front().sequence);
  return rank.phase == Phase::first_step || rank.phase == Phase::step ? "compute" : "";
}

}  // namespace zs
