// What runs where in a sharded step, and what waits for what, read off the trace.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <tuple>

#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::step_streams_test {
namespace {

using Entries = std::vector<TraceEntry>;
using Kind = TraceEntry::Kind;

/// The third step of a chain on rank 0 of two, from the first hook to the optimizer's last op.
Entries traced_step(const ShardOptions& options) {
  return on_ranks(2,
                  [&](World& world) {
                    ChainRun run(world, options);
                    for (int step = 1; step <= 3; ++step) {
                      run.device->synchronize();
                      run.device->trace().clear();
                      run.device->trace().start();
                      run.runtime.begin_micro_batch(Mode::train, true);
                      const Tensor loss = run.model.loss(
                          chain_input(run.context, world.rank(), options.precision.param), chain_targets(run.context));
                      backward(loss, 0.5f);
                      run.runtime.end_micro_batch();
                      run.optimizer->step(1e-2f, step);
                      run.device->trace().stop();
                      run.device->synchronize();
                    }
                    return run.device->trace().entries();
                  })
      .front();
}

/// Schemes whose reductions have a second step: over replicas every time or once, and over the other groups.
std::vector<SchemeOptions> two_step_schemes() {
  std::vector<SchemeOptions> schemes;
  for (const char* name : {"ddp", "hsdp", "hsdp small each", "nested", "nested once"})
    schemes.push_back(scheme_of(name, 4));
  return schemes;
}

/// Stands still until `is_open`; false in `gave_up` says that it was.
Work stand_still(const std::atomic<bool>& is_open, std::atomic<bool>& gave_up) {
  return [&](ExecContext&) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!is_open) {
      if (std::chrono::steady_clock::now() > limit) {
        gave_up = true;
        return;
      }
      std::this_thread::yield();
    }
  };
}

bool is_op(const TraceEntry& entry, const std::string& prefix) {
  return entry.kind == Kind::op && entry.op.name.starts_with(prefix);
}

/// The record that the gather of `unit` ended in: the first of its stream after the n-th (from 0) op named
/// all_gather:unit.
std::int64_t record_after_gather(const Entries& trace, const std::string& unit, int n) {
  auto at = trace.begin();
  for (int i = 0; i <= n; ++i) {
    if (i > 0) ++at;
    at = std::find_if(at, trace.end(), [&](const TraceEntry& entry) { return is_op(entry, "all_gather:" + unit); });
    REQUIRE(at != trace.end());
  }
  at = std::find_if(at, trace.end(), [](const TraceEntry& entry) {
    return entry.kind == Kind::record && entry.stream == StreamRole::unshard;
  });
  REQUIRE(at != trace.end());
  return at->record_id;
}

}  // namespace

TEST_CASE("gathers run on the unshard stream, reductions on the reduce stream, and all arithmetic on compute") {
  const Entries trace = traced_step({.zero_copy = false});
  int gathers = 0, reductions = 0;
  for (const TraceEntry& entry : trace) {
    if (entry.kind != Kind::op) continue;
    CAPTURE(entry.op.name, name_of(entry.stream));
    const bool is_gather = is_op(entry, "all_gather"), is_reduction = is_op(entry, "reduce_scatter");
    CHECK((entry.stream == StreamRole::unshard) == is_gather);
    CHECK((entry.stream == StreamRole::reduce) == is_reduction);
    gathers += is_gather ? 1 : 0;
    reductions += is_reduction ? 1 : 0;
  }
  CHECK(gathers == 6);  // four units, and the two inner blocks once more for backward
  CHECK(reductions == 4);
}

TEST_CASE("compute waits for the gather of the unit that it is about to run, not for one that was issued later") {
  const Entries trace = traced_step({.schedule = {.prefetch = 2}, .zero_copy = false});
  const std::int64_t first = record_after_gather(trace, "layer0", 0), second = record_after_gather(trace, "layer1", 0);
  std::vector<std::int64_t> waits;  // of compute, before the bias of layer0 is first read
  for (const TraceEntry& entry : trace) {
    if (entry.kind == Kind::wait && entry.stream == StreamRole::compute) waits.push_back(entry.record_id);
    if (is_op(entry, "gelu")) break;
  }
  CHECK(std::find(waits.begin(), waits.end(), first) != waits.end());
  CHECK(std::find(waits.begin(), waits.end(), second) == waits.end());
  const auto issued = std::find_if(trace.begin(), trace.end(),
                                   [](const TraceEntry& entry) { return is_op(entry, "all_gather:layer1"); });
  const auto used =
      std::find_if(trace.begin(), trace.end(), [](const TraceEntry& entry) { return is_op(entry, "gelu"); });
  CHECK(issued < used);  // it was in flight at that moment
}

TEST_CASE(
    "the first gather of a step waits for the optimizer's writes of the step before, and those after it need not") {
  Entries two_steps;
  on_ranks(2, [&](World& world) {
    ChainRun run(world, {.zero_copy = false});
    run.micro_batch(0);
    run.optimizer->step(1e-2f, 1);
    run.micro_batch(0);
    run.device->synchronize();
    run.device->trace().start();
    run.optimizer->step(1e-2f, 2);
    run.micro_batch(1);
    run.device->trace().stop();
    if (world.rank() == 0) two_steps = run.device->trace().entries();
    return 0;
  });
  auto at = two_steps.begin();
  for (auto entry = two_steps.begin(); entry != two_steps.end(); ++entry) {
    if (entry->kind == Kind::record && entry->stream == StreamRole::compute) at = entry;
    if (is_op(*entry, "all_gather")) break;
  }
  const std::int64_t written = at->record_id;
  std::vector<std::string> seen;
  for (const TraceEntry& entry : two_steps) {
    if (entry.stream != StreamRole::unshard) continue;
    if (entry.kind == Kind::wait && entry.record_id == written) seen.emplace_back("wait");
    if (is_op(entry, "all_gather")) seen.emplace_back("gather");
  }
  REQUIRE(seen.size() > 2);
  CHECK(seen[0] == "wait");
  CHECK(std::count(seen.begin(), seen.end(), "wait") == 1);
}

TEST_CASE("a gather reads the shard in the runtime dtype, cast once a step by the optimizer") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Entries trace = traced_step({.precision = {.param = dtype}, .zero_copy = false});
    for (const TraceEntry& entry : trace) {
      if (is_op(entry, "all_gather")) {
        CHECK(entry.op.reads.front().dtype == dtype);
        CHECK(entry.op.writes.front().dtype == dtype);
      }
      CHECK_FALSE(is_op(entry, "narrow"));
      CHECK_FALSE(is_op(entry, "cast"));
    }
  }
}

TEST_CASE("a reduction carries the dtype that it was told, and needs no cast before it") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const TraceEntry& entry :
         traced_step({.precision = {.param = DType::bf16, .reduce = dtype}, .zero_copy = false})) {
      if (is_op(entry, "reduce_scatter")) CHECK(entry.op.reads.front().dtype == dtype);
      CHECK_FALSE(is_op(entry, "cast"));
    }
  }
}

TEST_CASE("the host enqueues a whole step while the compute stream stands still") {
  const auto came_through = on_ranks(2, [](World& world) {
    ChainRun run(world, {.schedule = {.prefetch = 2}, .zero_copy = false});
    run.micro_batch(0);
    run.optimizer->step(1e-2f, 1);
    run.device->synchronize();
    std::atomic<bool> is_enqueued = false, gave_up = false;
    run.context.launch({"stand_still"}, stand_still(is_enqueued, gave_up));
    for (int step = 2; step <= 4; ++step) {
      run.runtime.begin_micro_batch(Mode::train, true);
      const Tensor loss = run.model.loss(chain_input(run.context, step), chain_targets(run.context));
      backward(loss, 0.5f);
      run.runtime.end_micro_batch();
      run.optimizer->step(1e-2f, step);
    }
    is_enqueued = true;
    run.device->synchronize();
    return !gave_up;
  });
  CHECK(came_through == std::vector<bool>{true, true});
}

TEST_CASE(
    "as many units as the limit says are gathered while compute stands still in the first, though nothing is "
    "prefetched") {
  for (const int limit : {1, 2, 3}) {
    const auto reached = on_ranks(2, [limit](World& world) {
      ChainRun run(world, {.schedule = {.prefetch = 0, .limit = limit}, .zero_copy = false});
      std::atomic<int> gathered = 0;
      std::atomic<bool> are_gathered = false, gave_up = false;
      run.runtime.begin_micro_batch(Mode::eval, true);
      for (int unit = 1; unit <= 3; ++unit) {
        run.runtime.before_forward(unit);
        run.device->stream(StreamRole::unshard).enqueue({"gathered"}, [&, limit](ExecContext&) {
          are_gathered = ++gathered >= limit;
        });
        if (unit == 1) run.context.launch({"stand_still"}, stand_still(are_gathered, gave_up));
        run.runtime.after_forward(unit);
      }
      run.runtime.end_micro_batch();
      const std::int64_t most = run.device->memory().at_peak().at("full_param"),
                         one = run.runtime.executor().units()[1].layout->gathered_elems() * 4;
      run.device->synchronize();
      return std::tuple(!gave_up, most / one);
    });
    CHECK(reached == std::vector<std::tuple<bool, std::int64_t>>(2, {true, limit}));
  }
}

TEST_CASE(
    "the second step of a unit's reduction runs on a stream of its own, beside the first step of the next unit's") {
  for (const SchemeOptions& scheme : two_step_schemes()) {
    const auto results = on_ranks(4, [&](World& world) {
      ChainRun run(world, {.scheme = scheme, .zero_copy = false});
      for (const std::size_t frozen : {1, 2}) {  // two units are left to be reduced: layer0, then the root
        run.model.layers[frozen]->weight.set_trainable(false);
        run.model.layers[frozen]->bias.set_trainable(false);
      }
      std::atomic<bool> are_summed = false, gave_up = false;
      run.device->stream(StreamRole::finish).enqueue({"stand_still"}, stand_still(are_summed, gave_up));
      run.device->trace().start();
      run.runtime.begin_micro_batch(Mode::train, true);
      backward(run.model.loss(chain_input(run.context, world.rank()), chain_targets(run.context)));
      run.runtime.end_micro_batch();
      run.device->stream(StreamRole::reduce).enqueue({"open"}, [&](ExecContext&) { are_summed = true; });
      run.optimizer->step(1e-2f, 1);
      run.device->synchronize();
      std::ptrdiff_t first_steps = 0, second_steps = 0;
      for (const TraceEntry& entry : run.device->trace().entries()) {
        if (is_op(entry, "reduce_scatter") && entry.stream == StreamRole::reduce) ++first_steps;
        if ((is_op(entry, "reduce_scatter") || is_op(entry, "all_reduce")) && entry.stream == StreamRole::finish)
          ++second_steps;
      }
      return std::tuple(gave_up.load(), first_steps, second_steps);
    });
    CAPTURE(name_of(scheme.strategy), scheme.all_reduce_every_micro_batch, scheme.reduce_every_micro_batch);
    CHECK(results[0] == std::tuple(false, 2, 2));
  }
}

TEST_CASE("the first steps of a micro-batch come after the second steps of one that was abandoned") {
  for (const SchemeOptions& scheme : two_step_schemes()) {
    const auto messages = on_ranks(4, [&](World& world) {
      ChainRun run(world, {.scheme = scheme, .zero_copy = false});
      run.device->trace().start();
      run.runtime.begin_micro_batch(Mode::train, true);
      backward(run.model.loss(chain_input(run.context, world.rank()), chain_targets(run.context)));
      run.runtime.abandon();
      run.micro_batch(1);
      run.optimizer->step(1e-2f, 1);
      run.device->synchronize();
      const auto violations = verify_order(run.device->trace().entries());
      return violations.empty() ? std::string() : violations.front().message;
    });
    CAPTURE(name_of(scheme.strategy), scheme.all_reduce_every_micro_batch, scheme.reduce_every_micro_batch);
    CHECK(messages == std::vector<std::string>(4));
  }
}

TEST_CASE(
    "one rank's first micro-batch accumulates in the master's gradient; others are added, after those of a step that "
    "was abandoned") {
  const auto [full_grads, message] =
      on_ranks(1, [&](World& world) {
        ChainRun run(world, {});
        const auto micro_batch = [&](bool is_last) {
          run.runtime.begin_micro_batch(Mode::train, is_last);
          backward(run.model.loss(chain_input(run.context, 0), chain_targets(run.context)));
          if (is_last) run.runtime.end_micro_batch();
        };
        std::vector<std::int64_t> full_grads;
        run.device->trace().start();
        for (const bool is_alone : {true, false}) {
          run.device->memory().reset_peak();
          if (!is_alone) {
            micro_batch(false);
            run.runtime.end_micro_batch();
            micro_batch(false);
            run.runtime.abandon_step();
          }
          micro_batch(true);
          run.optimizer->step(1e-2f, 1);
          full_grads.push_back(run.device->memory().at_peak().contains("full_grad"));
        }
        run.device->synchronize();
        const auto violations = verify_order(run.device->trace().entries());
        return std::pair(full_grads, violations.empty() ? std::string() : violations.front().message);
      }).front();
  CHECK(full_grads == std::vector<std::int64_t>{0, 1});
  CHECK(message == "");
}

TEST_CASE("a shard that was kept for a backward that does not come is given back after its copy") {
  const auto messages = on_ranks(4, [](World& world) {
    ChainRun run(world, {.scheme = scheme_of("zero3 k", 4)});
    run.device->trace().start();
    run.runtime.begin_micro_batch(Mode::train, true);
    const Tensor loss = run.model.loss(chain_input(run.context, world.rank()), chain_targets(run.context));
    run.runtime.end_micro_batch();
    run.micro_batch(1);
    run.device->synchronize();
    const auto violations = verify_order(run.device->trace().entries());
    return violations.empty() ? std::string() : violations.front().message;
  });
  CHECK(messages == std::vector<std::string>(4));
}

}  // namespace zs::test::step_streams_test
