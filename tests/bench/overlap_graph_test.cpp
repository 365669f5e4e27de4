#include "bench/overlap/overlap_graph.h"

#include <catch2/catch.hpp>
#include <set>

#include "bench/overlap/overlap_report.h"

namespace overlap_graph_test {

using namespace zs;
using namespace zs::bench;

namespace {

TraceEntry op(StreamRole stream, std::string name, std::string phase = "") {
  TraceEntry entry{TraceEntry::Kind::op, stream, {std::move(name), {}, {}}};
  entry.phase = std::move(phase);
  return entry;
}
TraceEntry record(StreamRole stream, std::int64_t id) { return {TraceEntry::Kind::record, stream, {}, id}; }
TraceEntry wait(StreamRole stream, std::int64_t id) { return {TraceEntry::Kind::wait, stream, {}, id}; }

constexpr StreamRole kCompute = StreamRole::compute, kUnshard = StreamRole::unshard;

/// Two gathers of 3 ms, each needed by an op of 5 ms. Prefetched, the second hides behind the first op.
std::vector<TraceEntry> two_units(bool is_prefetched) {
  std::vector<TraceEntry> entries{op(kUnshard, "gather 0"), record(kUnshard, 0), wait(kCompute, 0)};
  if (!is_prefetched) {
    entries.insert(entries.end(), {op(kCompute, "block 0"), record(kCompute, 1), wait(kUnshard, 1)});
    entries.insert(entries.end(), {op(kUnshard, "gather 1"), record(kUnshard, 2)});
  } else {
    entries.insert(entries.end(), {op(kUnshard, "gather 1"), record(kUnshard, 2), op(kCompute, "block 0")});
  }
  entries.insert(entries.end(), {wait(kCompute, 2), op(kCompute, "block 1")});
  return entries;
}

bool nothing(const TraceEntry&) { return false; }
double price(const TraceEntry& entry, std::size_t) { return entry.stream == kUnshard ? 3 : 5; }

}  // namespace

TEST_CASE("a gather that nothing waits for early runs beside compute") {
  const Simulation result = simulate(two_units(true), price, nothing);
  CHECK(result.step_ms == Approx(3 + 5 + 5));
  CHECK(result.busy_ms[static_cast<std::size_t>(kCompute)] == Approx(10));
  CHECK(result.busy_ms[static_cast<std::size_t>(kUnshard)] == Approx(6));
  REQUIRE(result.critical_path.size() == 2);
  CHECK(result.critical_path[0].first_op == "gather 0");
  CHECK(result.critical_path[1].first_op == "block 0");
  CHECK(result.critical_path[1].last_op == "block 1");
  CHECK(result.critical_path[1].ms == Approx(10));
}

TEST_CASE("a gather behind an event of compute lengthens the step, and the critical path goes through it") {
  const Simulation result = simulate(two_units(false), price, nothing);
  CHECK(result.step_ms == Approx(3 + 5 + 3 + 5));
  REQUIRE(result.critical_path.size() == 4);
  CHECK(result.critical_path[2].stream == kUnshard);
  CHECK(result.critical_path[2].last_op == "gather 1");
}

TEST_CASE("an event from before the trace orders nothing, and of two records the one waited for counts") {
  const Simulation result = simulate({wait(kCompute, 7), op(kCompute, "a"), record(kCompute, 8), op(kCompute, "b"),
                                      record(kCompute, 9), wait(kUnshard, 8), op(kUnshard, "c")},
                                     price, nothing);
  CHECK(result.step_ms == Approx(10));  // c: 5 to 8
}

TEST_CASE("ops that share the link have even parts of it for as long as both are under way") {
  constexpr StreamRole kReduce = StreamRole::reduce;
  const std::vector<TraceEntry> entries{op(kUnshard, "gather"), op(kReduce, "reduce"), record(kReduce, 0),
                                        wait(kCompute, 0), op(kCompute, "update")};
  const auto prices = [](const TraceEntry& entry, std::size_t) {
    return entry.stream == kUnshard ? 6.0 : entry.stream == kReduce ? 2.0 : 1.0;
  };
  const Simulation result = simulate(entries, prices, [](const TraceEntry& entry) { return entry.stream != kCompute; });
  CHECK(result.step_ms ==
        Approx(8));  // the reduction takes 0 to 4, the gather then has 4 ms left, and the link for itself
  CHECK(result.busy_ms[static_cast<std::size_t>(kUnshard)] == Approx(6));
  REQUIRE(result.critical_path.size() == 1);
  CHECK(result.critical_path[0].ms == Approx(8));
  CHECK(simulate(entries, prices, nothing).step_ms == Approx(6));
}

TEST_CASE("a phase lasts from the end of the one before to the end of its last op of compute, waits included") {
  const std::vector<TraceEntry> entries{op(kUnshard, "gather", "forward"),
                                        record(kUnshard, 0),
                                        wait(kCompute, 0),
                                        op(kCompute, "block", "forward"),
                                        op(kCompute, "head", "forward"),
                                        op(kCompute, "head", "backward"),
                                        op(kUnshard, "again", "backward"),
                                        record(kUnshard, 1),
                                        wait(kCompute, 1),
                                        op(kCompute, "block", "backward"),
                                        record(kCompute, 2),
                                        wait(kUnshard, 2),
                                        op(kUnshard, "publish", "backward")};
  const auto prices = [](const TraceEntry& entry, std::size_t) { return entry.stream == kCompute ? 2.0 : 4.0; };
  const Simulation result = simulate(entries, prices, nothing);
  CHECK(result.step_ms == Approx(4 + 2 + 2 + 2 + 2 + 4));
  REQUIRE(result.phases.size() == 2);
  CHECK(result.phases.at("forward").ms == Approx(8));
  CHECK(result.phases.at("forward").exposed_ms() == Approx(4));
  CHECK(result.phases.at("backward").ms == Approx(4));  // the second gather hides, what comes behind is no phase's
  CHECK(result.phases.at("backward").exposed_ms() == Approx(0));
  CHECK(result.exposed_ms() == Approx(8));
}

TEST_CASE("prices see the number of the op on its stream") {
  std::vector<std::size_t> seen;
  simulate(
      two_units(true),
      [&](const TraceEntry& entry, std::size_t index) {
        if (entry.stream == kCompute) seen.push_back(index);
        return 1.0;
      },
      nothing);
  CHECK(seen == std::vector<std::size_t>{0, 1});
}

TEST_CASE("what the plan cannot hide is not hideable, and hidden is what did not lengthen the step") {
  OverlapReport report;
  report.plan = simulate(two_units(true), price, nothing);
  report.step = {.name = "step",
                 .compute_ms = 10,
                 .communication_ms = 6,
                 .step_ms = 14.5,
                 .planned_exposed_ms = report.plan.exposed_ms()};
  CHECK(report.step.hideable_ms() == Approx(3));  // the first gather comes before everything
  CHECK(report.step.exposed_ms() == Approx(4.5));
  CHECK(report.step.hidden_ms() == Approx(1.5));
  REQUIRE(report.efficiency(report.step));
  CHECK(*report.efficiency(report.step) == Approx(0.5));
}

TEST_CASE("where there is next to nothing to hide no efficiency is given") {
  OverlapReport report;
  report.plan = simulate(two_units(true), price, nothing);
  const double alone_ms = report.plan.exposed_ms();
  report.step = {.name = "step",
                 .compute_ms = 10,
                 .communication_ms = alone_ms + 0.009 * report.plan.step_ms,
                 .step_ms = 14.5,
                 .planned_exposed_ms = alone_ms};
  CHECK_FALSE(report.efficiency(report.step));
  CHECK(sweep_row(report).ends_with("| - |\n"));
  report.step.communication_ms = alone_ms + 0.011 * report.plan.step_ms;
  CHECK(report.efficiency(report.step));
  CHECK_THAT(to_text(report), !Catch::Contains("next to nothing") && !Catch::Contains("steps differ by"));
  report.spread_ms = 0.012 * report.plan.step_ms;  // of steps that differ by more than can be hidden
  CHECK_FALSE(report.efficiency(report.step));
  CHECK(sweep_row(report).ends_with("| - |\n"));
  CHECK_THAT(to_text(report), Catch::Contains("no efficiency, as no more can be hidden than steps differ by"));
}

TEST_CASE("ops of one name are told apart by their stream and their order") {
  NumberedOps ops, again;
  const auto first = ops.next(kUnshard, "all_gather:root"), other = ops.next(kUnshard, "all_gather:blocks.0"),
             second = ops.next(kUnshard, "all_gather:root"), elsewhere = ops.next(kCompute, "all_gather:root");
  CHECK(std::set{first, other, second, elsewhere}.size() == 4);
  CHECK(again.next(kUnshard, "all_gather:root") == first);
  CHECK(again.next(kUnshard, "all_gather:root") == second);
}

}  // namespace overlap_graph_test
