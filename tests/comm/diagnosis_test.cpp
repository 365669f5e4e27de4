#include "comm/health/diagnosis.h"

#include <catch2/catch.hpp>

namespace diagnosis_test {

using namespace zs;
using Kind = Diagnosis::Kind;

namespace {

constexpr double kLimit_s = 3;
constexpr std::uint64_t kWorld = 7, kPair = 8;

/// A rank in a step that has moved just now and waits for nobody.
RankView computing(int rank) {
  return {.rank = rank, .pid = 100 + rank, .state = 'S', .has_page = true, .phase = Phase::step, .step = 41};
}

RankView still(RankView view) {
  view.still_s = kLimit_s + 1;
  return view;
}

/// Has started operation `sequence` of a group of `size`, and not finished it.
RankView in(RankView view, std::uint64_t group, std::uint64_t sequence, int size) {
  const OpView op{group, sequence, size, "all_gather(blocks.3)"};
  view.unfinished.push_back(op);
  view.last_started.push_back(op);
  return still(std::move(view));
}

/// Has finished operation `sequence` of a group.
RankView done(RankView view, std::uint64_t group, std::uint64_t sequence, int size) {
  view.last_started.push_back({group, sequence, size, "all_gather(blocks.2)"});
  return view;
}

WatchOptions step_limit(double limit_s) {
  WatchOptions limits;
  limits.step_s = limit_s;
  return limits;
}

Diagnosis diagnosis(std::vector<RankView> ranks, int world_size = 3) {
  return diagnose(ranks, world_size, Phase::step, step_limit(kLimit_s));
}

}  // namespace

TEST_CASE("a process that has ended is named before one that is stopped, and that before one that stands") {
  auto dead = still(computing(2)), stopped = still(computing(1));
  dead.state = 'X';
  stopped.state = 'T';
  const auto waiting = in(computing(0), kWorld, 9, 3);
  CHECK(diagnosis({waiting, stopped, dead}).kind == Kind::died);
  CHECK(diagnosis({waiting, stopped, dead}).rank == 2);
  CHECK(diagnosis({waiting, stopped, still(computing(2))}).kind == Kind::stopped);
  CHECK(diagnosis({waiting, stopped, still(computing(2))}).rank == 1);
  CHECK(diagnosis({waiting, in(computing(1), kWorld, 9, 3), still(computing(2))}).kind == Kind::stands);
  CHECK(diagnosis({waiting, in(computing(1), kWorld, 9, 3), still(computing(2))}).rank == 2);
}

TEST_CASE("a process that has left its part may end") {
  auto gone = still(computing(2));
  gone.state = 'X';
  gone.has_left = true;
  gone.heartbeat_age_s = 60;
  CHECK(diagnosis({in(computing(0), kPair, 9, 2), in(computing(1), kPair, 9, 2), gone}).kind == Kind::nobody);
}

TEST_CASE("a rank whose watchdog itself does not run is as good as stopped") {
  auto frozen = still(computing(1));
  frozen.heartbeat_age_s = 2;
  const Diagnosis found = diagnosis({in(computing(0), kWorld, 9, 3), frozen, in(computing(2), kWorld, 9, 3)});
  CHECK(found.kind == Kind::stopped);
  CHECK(found.rank == 1);
  CHECK(found.waiting_rank == 0);
}

TEST_CASE("who moves is waited for, however slow") {
  CHECK(diagnosis({in(computing(0), kWorld, 9, 3), computing(1), in(computing(2), kWorld, 9, 3)}).kind == Kind::nobody);
  // also when one of its streams waits for the others
  auto slow = in(computing(1), kPair, 4, 2);
  slow.still_s = 0.1;
  CHECK(diagnosis({in(computing(0), kWorld, 9, 3), slow, in(computing(2), kWorld, 9, 3)}).kind == Kind::nobody);
}

TEST_CASE("a rank that stands in compute while its streams wait is found by who has come to which operation") {
  // Rank 1 has gathered ahead, and has not come to the reduction that the others wait in.
  auto ahead = done(in(computing(1), kWorld, 12, 3), kPair, 3, 3);
  const auto other = [&](int rank) { return done(in(computing(rank), kPair, 4, 3), kWorld, 12, 3); };
  const Diagnosis found = diagnosis({other(0), ahead, other(2)});
  CHECK(found.kind == Kind::stands);
  CHECK(found.rank == 1);
}

TEST_CASE("ranks that wait for each other in different operations disagree") {
  // All have used both groups; rank 1 waits in the second for those that wait in the first.
  const auto others = [](int rank) { return done(in(computing(rank), kWorld, 9, 3), kPair, 3, 3); };
  const auto odd = done(in(computing(1), kPair, 4, 3), kWorld, 8, 3);
  const Diagnosis found = diagnosis({others(0), odd, others(2)});
  CHECK(found.kind == Kind::disagree);
  // Not as long as somebody who cannot be seen may be the reason.
  CHECK(diagnosis({others(0), odd, others(2)}, 4).kind == Kind::nobody);
}

TEST_CASE("ranks of which some wait in an operation and some in a call of their hosts' disagree") {
  const auto at_call = [](int rank) {
    auto view = still(computing(rank));
    view.host_waits = true;
    view.host = "MPI_Comm_split";
    return view;
  };
  const auto in_operation = [](int rank) { return in(computing(rank), kWorld, 9, 3); };
  const Diagnosis found = diagnosis({at_call(0), in_operation(1), in_operation(2)});
  CHECK(found.kind == Kind::disagree);
  CHECK(found.rank == 0);
  CHECK(found.waiting_rank > 0);
  // The same where the operation's group need not be that of the call's rank.
  const auto in_a_pair = [](int rank) { return in(computing(rank), kPair, 1, 2); };
  const Diagnosis apart = diagnosis({in_a_pair(0), at_call(1), at_call(2)});
  CHECK(apart.kind == Kind::disagree);
  CHECK(apart.rank == 1);
  CHECK(apart.waiting_rank == 0);
  CHECK(diagnosis({at_call(0), at_call(1), at_call(2)}).kind == Kind::nobody);
  CHECK(diagnosis({at_call(0), in_operation(1)}).kind == Kind::nobody);  // a third one is not seen
  // Who does nothing keeps both waiting.
  CHECK(diagnosis({at_call(0), in_operation(1), still(computing(2))}).rank == 2);
}

TEST_CASE("ranks that do nothing but wait for each other in different operations are found before any limit") {
  const auto waiting = [](RankView view) {
    view.only_waits = true;
    return view;
  };
  const auto others = [&](int rank) { return waiting(done(in(computing(rank), kWorld, 9, 3), kPair, 3, 3)); };
  const auto odd = waiting(done(in(computing(1), kPair, 4, 3), kWorld, 8, 3));
  const auto found = [](std::vector<RankView> ranks, int world_size = 3) {
    return diagnose_deadlock(ranks, world_size, kLimit_s);
  };
  CHECK(found({others(0), odd, others(2)}).kind == Kind::disagree);
  // Each may go on: one that computes, or has moved; one that is not seen, or ends
  auto changed = others(2);
  changed.only_waits = false;
  CHECK(found({others(0), odd, changed}).kind == Kind::nobody);
  changed = others(2);
  changed.still_s = kLimit_s / 2;
  CHECK(found({others(0), odd, changed}).kind == Kind::nobody);
  changed = others(2);
  changed.has_left = true;
  CHECK(found({others(0), odd, changed}).kind == Kind::nobody);
  CHECK(found({others(0), odd, others(2)}, 4).kind == Kind::nobody);
  // An operation that all have come to may last
  const auto in_both = [&](RankView view) { return waiting(in(std::move(view), 9, 1, 3)); };
  CHECK(found({in_both(others(0)), in_both(odd), in_both(others(2))}).kind == Kind::nobody);
  // One in a call of its host's alone
  auto caller = waiting(done(still(computing(1)), kWorld, 8, 3));
  caller.host = "split";
  CHECK(found({others(0), caller, others(2)}).kind == Kind::disagree);
}

TEST_CASE("a rank that waits is not blamed while one that cannot be seen may be the reason") {
  // Four ranks on two hosts, {0, 2} and {1, 3} pairs across them. Rank 2 is stopped: rank 0 waits in its pair, rank 1
  // for rank 0 in the world.
  const auto first = done(in(computing(0), kPair, 5, 2), kWorld, 8, 4), second = in(computing(1), kWorld, 9, 4);
  CHECK(diagnosis({first, second}, 4).kind == Kind::nobody);
  // Who does not wait is to blame all the same, and so is who has been found out by everybody's word.
  CHECK(diagnosis({done(still(computing(0)), kWorld, 8, 4), second}, 4).rank == 0);
  auto stopped = done(still(computing(2)), kWorld, 8, 4);
  stopped.state = 'T';
  CHECK(diagnosis({first, second, stopped, in(computing(3), kWorld, 9, 4)}, 4).rank == 2);
}

TEST_CASE(
    "a host that is not heard any more is named, after those that are heard, and its ranks are not judged by what was "
    "heard last") {
  auto lost = still(computing(1));  // by its last word it stood for the whole limit, and waited for nobody
  lost.host_name = "host1";
  lost.silent_s = kSilentAfter_s + 0.1;
  const auto first = in(computing(0), kWorld, 9, 3), last = in(computing(2), kWorld, 9, 3);
  const Diagnosis found = diagnosis({first, lost, last});
  CHECK(found.kind == Kind::silent);
  CHECK(found.rank == 1);
  CHECK(found.waiting_rank == 0);
  // A word may get lost now and then.
  lost.silent_s = kSilentAfter_s - 0.1;
  CHECK(diagnosis({first, lost, last}).kind == Kind::stands);
  lost.silent_s = kSilentAfter_s + 0.1;
  // Half of a long limit.
  CHECK(diagnose(std::vector{first, lost, last}, 3, Phase::step, step_limit(60)).kind == Kind::nobody);
  auto stopped = last;
  stopped.state = 'T';
  CHECK(diagnosis({first, lost, stopped}).rank == 2);
  CHECK(diagnosis({first, lost, computing(2)}).kind == Kind::nobody);  // it moves, and rank 0 waits for it
  lost.has_left = true;
  CHECK(diagnosis({first, lost, last}).kind == Kind::nobody);
}

TEST_CASE("a group that a rank has never used is not taken for its own") {
  const auto pair = in(computing(0), kPair, 5, 2), peer = in(computing(1), kPair, 5, 2);
  const Diagnosis found = diagnosis({pair, peer, done(computing(2), kWorld, 1, 3)});
  CHECK(found.kind == Kind::nobody);
}

TEST_CASE("everybody's group is everybody's, but for a rank that could not tell of all its groups") {
  auto other = in(computing(1), kPair, 1, 1);
  const auto waiting = in(computing(0), kWorld, 9, 2);
  CHECK(diagnosis({waiting, other}, 2).kind == Kind::stands);
  other.lacks_groups = true;
  CHECK(diagnosis({waiting, other}, 2).kind == Kind::nobody);
}

TEST_CASE("a rank in a phase of a longer limit has that long, and without a limit for ever") {
  const auto waiting = in(computing(0), kWorld, 9, 2);
  auto writing = still(computing(1));
  writing.phase = Phase::checkpoint;
  const auto with = [&](double checkpoint_s) {
    WatchOptions limits = step_limit(kLimit_s);
    limits.checkpoint_s = checkpoint_s;
    return diagnose(std::vector{waiting, writing}, 2, Phase::step, limits).kind;
  };
  CHECK(with(2 * kLimit_s) == Kind::nobody);
  CHECK(with(0) == Kind::nobody);
  CHECK(with(kLimit_s) == Kind::stands);
  CHECK(with(kLimit_s / 2) == Kind::stands);
  writing.phase = Phase::idle;  // which has no limit of its own
  CHECK(with(0) == Kind::stands);
}

TEST_CASE("while one of the ranks moves, none of those that wait has to end the job") {
  const auto waiting = still(in(computing(0), kWorld, 9, 2));
  CHECK(somebody_moves(std::vector{waiting, computing(1)}, kLimit_s));
  CHECK_FALSE(somebody_moves(std::vector{waiting, still(computing(1))}, kLimit_s));
  auto gone = computing(1);
  gone.has_left = true;
  CHECK_FALSE(somebody_moves(std::vector{waiting, gone}, kLimit_s));
  auto unknown = computing(1);
  unknown.has_page = false;
  CHECK_FALSE(somebody_moves(std::vector{waiting, unknown}, kLimit_s));
}

TEST_CASE(
    "a rank that has ended its part is found at once, if others wait for it in an operation that it has not come to") {
  auto gone = done(computing(2), kWorld, 8, 3);
  gone.has_left = true;
  const std::vector<RankView> early{in(computing(0), kWorld, 9, 3), computing(1), gone};
  CHECK(diagnose_early_end(early, 3).kind == Kind::left_early);
  CHECK(diagnose_early_end(early, 3).rank == 2);
  CHECK(diagnose_early_end(early, 3).waiting_rank == 0);
  const std::vector<RankView> late{in(computing(0), kWorld, 8, 3), computing(1), gone};
  CHECK(diagnose_early_end(late, 3).kind == Kind::nobody);
}

}  // namespace diagnosis_test
