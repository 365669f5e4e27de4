#include "model/train/rank/step_agreement.h"

#include <algorithm>
#include <type_traits>

#include "comm/health/watchdog.h"
#include "runtime/base/random.h"

namespace zs {
namespace {

bool are_alike(std::span<const StepVote> votes, std::uint64_t StepVote::*what) {
  return std::all_of(votes.begin(), votes.end(), [&](const StepVote& vote) { return vote.*what == votes[0].*what; });
}

}  // namespace

Error graphs_are_refused(std::string_view why_staged) {
  return Error(ExitCode::config,
               fmt::format("cuda.graph = true does not go with ranks that are staged{}{}",
                           why_staged.empty() ? "" : ": ", why_staged),
               "the hosts move what they exchange, in mid-step",
               "leave it out, or let NCCL connect the GPUs (cuda.transport)");
}

StepChoice choose_way(std::span<const StepVote> votes) {
  StepChoice choice{.is_order_alike = are_alike(votes, &StepVote::order)};
  const auto hindered =
      std::find_if(votes.begin(), votes.end(), [](const StepVote& vote) { return !vote.why_neither().empty(); });
  if (hindered != votes.end()) {
    choice.obstacle = hindered->why_neither();
    if (votes.size() > 1) choice.obstacle += fmt::format(" (rank {})", hindered - votes.begin());
  } else if (votes[0].graph != 0 && are_alike(votes, &StepVote::graph)) {
    choice.way = StepWay::replay;
  } else if (std::all_of(votes.begin(), votes.end(), [](const StepVote& vote) { return vote.can_capture != 0; })) {
    choice.way = StepWay::capture;
  }
  return choice;
}

StepAgreement::StepAgreement(World& world, OrderCheck& order) : order_(order), watchdog_(world.watchdog()) {
  if (world.size() > 1 && transport_of(world) != Transport::null) hosts_ = world.host_communicator();
}

std::vector<StepVote> StepAgreement::exchange(const StepVote& own) {
  static_assert(std::is_trivially_copyable_v<StepVote> && sizeof(StepVote) == 64);
  if (hosts_ == nullptr) return {own};
  const StatusScope status(watchdog_, "the others' next step", StatusScope::Host::waits_for_ranks);
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(StepVote));
  std::vector<StepVote> votes(static_cast<std::size_t>(hosts_->size()));
  votes[static_cast<std::size_t>(hosts_->rank())] = own;
  const Buffer all{votes.data(), hosts_->size() * kBytes, DType::u8, DeviceKind::cpu};
  hosts_->all_gather(stream_, "graph", all.slice(hosts_->rank() * kBytes, kBytes), all);
  return votes;
}

StepChoice StepAgreement::choose(bool can_capture, std::uint64_t graph, std::string_view why_neither) {
  StepVote own{.graph = graph, .order = order_.hash(), .can_capture = static_cast<std::uint8_t>(can_capture)};
  std::copy_n(why_neither.begin(), std::min(why_neither.size(), own.why_neither_text.size() - 1),
              own.why_neither_text.begin());
  StepChoice choice = choose_way(exchange(own));
  if (choice.way == StepWay::replay) order_.compare_replayed(choice.is_order_alike);
  return choice;
}

std::uint64_t StepAgreement::confirm() {
  const std::uint64_t order = order_.hash();
  order_.settle(choose_way(exchange({.order = order})).is_order_alike);
  return mix64(order ^ ++graphs_) | 1;  // never 0
}

}  // namespace zs
