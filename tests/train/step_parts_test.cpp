#include "model/train/profile/step_parts.h"

#include <catch2/catch.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "model/train/profile/step_trace.h"
#include "runtime/base/random.h"

namespace step_parts_test {

using namespace zs;
using nlohmann::json;

namespace {

constexpr std::int64_t kMs = 1000000;

OpTime op(const char* name, std::int64_t start_ms, std::int64_t end_ms, const char* phase = "forward") {
  return {name, false, start_ms * kMs, end_ms * kMs, -1, phase};
}
OpTime wait(StreamRole role, std::int64_t start_ms, std::int64_t end_ms, std::int64_t record = -1) {
  return {name_of(role), true, start_ms * kMs, end_ms * kMs, record};
}
std::vector<OpTime>& of(StepTimes& step, StreamRole role) { return step.times[static_cast<std::size_t>(role)]; }

double ms(const StepParts& parts, StepPart part) { return parts.of(part).ms; }

double sum_ms(const StepParts& parts) {
  double sum = 0;
  for (int i = 0; i < kStepParts; ++i) sum += ms(parts, static_cast<StepPart>(i));
  return sum;
}

}  // namespace

TEST_CASE("every moment of a step is in one part") {
  StepTimes step{.step = 5, .span = {100 * kMs, 200 * kMs}};
  step.reads = {{102 * kMs, 104 * kMs}, {103 * kMs, 106 * kMs}, {150 * kMs, 160 * kMs}};
  of(step, StreamRole::compute) = {op("linear", 110, 120),
                                   wait(StreamRole::unshard, 120, 130),
                                   op("attention", 130, 135),
                                   op("add_rms_norm", 135, 138),
                                   op("swiglu", 138, 140),
                                   wait(StreamRole::finish, 140, 150),
                                   op("cross_entropy", 155, 160),
                                   op("adamw:blocks.0", 160, 170, "optimizer"),
                                   op("all_reduce(status)", 170, 175, "optimizer")};
  of(step, StreamRole::unshard) = {op("all_gather(blocks.0)", 118, 127), wait(StreamRole::compute, 127, 128)};
  of(step, StreamRole::reduce) = {op("reduce_scatter(blocks.0)", 126, 129)};
  of(step, StreamRole::finish) = {op("all_reduce(blocks.0)", 132, 144)};
  StepParts parts;
  parts.add(step);
  CHECK(sum_ms(parts) == Approx(100));
  CHECK(ms(parts, StepPart::products) == Approx(10));
  CHECK(ms(parts, StepPart::attention) == Approx(5));
  CHECK(ms(parts, StepPart::norms) == Approx(3));
  CHECK(ms(parts, StepPart::elementwise) == Approx(2));
  CHECK(ms(parts, StepPart::loss) == Approx(5));
  CHECK(ms(parts, StepPart::optimizer) == Approx(10));
  CHECK(ms(parts, StepPart::gathers) == Approx(7));          // of the wait, while the gather ran
  CHECK(ms(parts, StepPart::reductions) == Approx(2 + 4));   // beside it from 127 to 129, and the second wait
  CHECK(ms(parts, StepPart::waiting) == Approx(1 + 6 + 5));  // the rest of both, and compute's own exchange
  CHECK(ms(parts, StepPart::data) == Approx(4 + 5));         // as far as compute had nothing else
  CHECK(ms(parts, StepPart::other) == Approx(6 + 25));
  CHECK(parts.hidden_gathers_ms() == Approx(9 - 7));
  CHECK(parts.hidden_reductions_ms() == Approx(3 + 12 - 6));
}

TEST_CASE("parts add up to the steps, whatever they are made of") {
  const CounterRng random(7);
  std::uint64_t drawn = 0;
  const auto next = [&](std::uint64_t below) { return static_cast<std::int64_t>(random.bits(drawn++) % below); };
  StepParts parts;
  double all_ms = 0;
  for (int i = 0; i < 200; ++i) {
    StepTimes step{.step = i, .span = {0, 500 * kMs}};
    for (int role = 0; role < kStreamRoles; ++role)
      for (std::int64_t at = next(20), end = 0; at < 480; at = end + next(3)) {
        end = std::min<std::int64_t>(at + next(30), 500);
        of(step, static_cast<StreamRole>(role))
            .push_back(next(3) == 0 ? wait(static_cast<StreamRole>(next(kStreamRoles)), at, end)
                                    : op("linear", at, end));
      }
    for (int k = 0; k < 5; ++k) {
      const std::int64_t at = next(500);
      step.reads.push_back({at * kMs, (at + next(20)) * kMs});
    }
    parts.add(step);
    all_ms += step.span.ms();
  }
  CHECK(sum_ms(parts) == Approx(all_ms));
  CHECK(parts.step_ms() == Approx(500));
  for (int i = 0; i < kStepParts; ++i) CHECK(ms(parts, static_cast<StepPart>(i)) >= 0);
}

TEST_CASE("the FLOPs of products and attention follow from their buffers, and rates are beside their ceilings") {
  const auto buffer = [](std::int64_t elems) { return Buffer{nullptr, elems, DType::f32, DeviceKind::cpu}; };
  StepTimes step{.span = {0, 2 * kMs}};
  OpTime product = op("linear", 0, 1), attention = op("attention", 1, 2);
  product.reads = {buffer(300 * 50), buffer(70 * 50)};
  product.writes = {buffer(300 * 70)};
  attention.reads = {buffer(3 * 64 * 32)};
  attention.writes = {buffer(64 * 32), buffer(64)};
  of(step, StreamRole::compute) = {product, attention};
  StepParts parts(64);
  parts.add(step);
  CHECK(parts.of(StepPart::products).flops == Approx(2.0 * 300 * 50 * 70));
  CHECK(parts.of(StepPart::attention).flops == Approx(2.0 * 64 * 64 * 32));
  CHECK(parts.of(StepPart::products).bytes == 4 * (300 * 50 + 70 * 50 + 300 * 70));
  CHECK(parts.describe({.gflops = 4.2}).find("2.1 GFLOP/s    50 % of 4.2") != std::string::npos);
  OpTime of_experts = op("grouped_dweight", 0, 1);  // 300 rows over 8 experts
  of_experts.reads = {buffer(300 * 50), buffer(300 * 70), buffer(8 + 1)};
  of_experts.writes = {buffer(8 * 50 * 70)};
  of(step, StreamRole::compute) = {of_experts};
  StepParts others(64);
  others.add(step);
  CHECK(others.of(StepPart::products).flops == Approx(2.0 * 300 * 50 * 70));
}

TEST_CASE("a trace has an arrow from each record to each wait for it, and a slice for each gap") {
  StepTimes step{.step = 2, .span = {10 * kMs, 20 * kMs}};
  of(step, StreamRole::unshard) = {op("all_gather(\"quoted\\\")", 11, 13)};
  step.records[static_cast<std::size_t>(StreamRole::unshard)] = {{41, 13 * kMs + 5}};
  of(step, StreamRole::compute) = {wait(StreamRole::unshard, 12, 14, 41), op("linear", 14, 15),
                                   wait(StreamRole::reduce, 15, 16, 7)};  // of a record before the step
  const json trace = json::parse(trace_events({step}, 3));
  std::map<std::string, int> phases;
  json start, end;
  for (const json& event : trace["traceEvents"]) {
    ++phases[event["ph"].get<std::string>()];
    CHECK(event["pid"] == 3);
    if (event["ph"] == "s") start = event;
    if (event["ph"] == "f") end = event;
  }
  CHECK(phases["s"] == 1);
  CHECK(phases["f"] == 1);
  CHECK(start["id"] == end["id"]);
  CHECK(start["tid"] == 2);
  CHECK(end["tid"] == 1);
  CHECK(start["ts"].get<double>() == Approx(2999.999).epsilon(1e-9));
  CHECK(end["ts"].get<double>() == Approx(3999.999).epsilon(1e-9));
  CHECK(phases["X"] ==
        1 + 4 + 2 + 2 + 3);  // step; ops and waits; gaps of unshard, of compute, and of streams without work
}

}  // namespace step_parts_test
