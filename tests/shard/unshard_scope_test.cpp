// Where an unshard scope may begin, what it leaves as it was, what it takes, and what becomes of a failure at every
// place.
#include <catch2/catch.hpp>

#include "runtime/base/usage_error.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/limited_allocator.h"
#include "tests/shard/scheme_cases.h"
#include "tests/stderr_of.h"

namespace zs::test::unshard_scope_test {
namespace {

using Arrays = std::vector<std::vector<float>>;
using Catch::Contains;
using Kind = Action::Kind;

const UnshardOptions kReading = {.writes_back = false};

void scale(Context& context, const Buffer& out, float factor) {
  if (out.elems == 0) return;
  context.launch({"edit", {out}, {out}}, [out, factor](ExecContext&) {
    for (std::int64_t i = 0; i < out.elems; ++i) out.as<float>()[i] *= factor;
  });
}

void scale_unit(ChainRun& run, const UnshardScope& scope, int unit, float factor) {
  for (const Parameter* parameter : run.runtime.executor().units()[static_cast<std::size_t>(unit)].parameters)
    scale(run.context, scope.value(*parameter), factor);
}

/// Owners of the blocks that the trace releases, in order.
std::vector<std::string> released(const std::vector<TraceEntry>& trace) {
  std::vector<std::string> owners;
  for (const TraceEntry& entry : trace) {
    if (entry.kind != TraceEntry::Kind::release || entry.op.name != "full_param") continue;
    for (const TraceEntry& other : trace) {
      const bool is_it = other.kind == TraceEntry::Kind::acquire && other.op.writes[0].data == entry.op.writes[0].data;
      if (is_it) owners.push_back(other.owner);
    }
  }
  return owners;
}

std::int64_t full_bytes(const FlatParameter& unit) { return unit.layout->full_elems() * size_of(DType::f32); }

}  // namespace

TEST_CASE(
    "2A-37: a scope is not entered within a micro-batch, twice, for no rank, or for gradients on their way, and says "
    "of which unit") {
  const auto results = on_ranks(4, [](World& world) {
    ChainRun run(world, {.scheme = {.strategy = Strategy::nested, .group_size = 2}});
    std::vector<std::string> said;
    const auto enter = [&](const std::vector<int>& units, const UnshardOptions& options) {
      said.push_back(message_of([&] { const UnshardScope scope(run.runtime, units, options); }));
    };
    const UnshardOptions with_gradients{.writes_back = false, .with_gradients = true};
    enter({1, 1}, kReading);
    enter({1}, {.only_rank = 4});
    enter({1}, {.only_rank = -1});
    run.runtime.begin_micro_batch(Mode::eval, true);
    enter({3}, kReading);
    run.runtime.end_micro_batch();
    run.micro_batch(0, false);
    enter({2}, with_gradients);  // across the groups they are summed at the end
    enter({2}, kReading);
    run.micro_batch(0, true);
    enter({2}, with_gradients);
    {
      const NoSync none(run.runtime);
      run.runtime.abandon_step();
      run.micro_batch(0, true);
      enter({1}, with_gradients);
    }
    run.runtime.abandon_step();
    enter({0, 1, 2, 3}, with_gradients);
    run.micro_batch(0, true);
    {
      const UnshardScope scope(run.runtime, {1}, kReading);
      said.push_back(message_of([&] { (void)scope.value(run.model.head); }));
      said.push_back(message_of([&] { (void)scope.gradient(run.model.layers[0]->weight); }));
      enter({2, 1}, {});
      enter({2}, {});
    }
    run.device->synchronize();
    return said;
  });
  for (const auto& said : results) {
    REQUIRE(said.size() == 13);
    CHECK_THAT(said[0], Contains("UnshardScope of unit layer0 begins twice"));
    CHECK_THAT(said[1], Contains("rank 4 of 4"));
    CHECK_THAT(said[2], Contains("rank -1 of 4"));
    CHECK_THAT(said[3], Contains("unit layer2 begins within a micro-batch"));
    CHECK_THAT(said[4], Contains("unit layer1") && Contains("second step of the reduction"));
    CHECK_THAT(said[7], Contains("unit layer0") && Contains("accumulated and not reduced"));
    CHECK_THAT(said[9], Contains("parameter head is in no unit"));
    CHECK_THAT(said[10], Contains("without gradients"));
    CHECK_THAT(said[11], Contains("unit layer0 begins while another UnshardScope of it lives"));
    for (const std::size_t accepted : {5, 6, 8, 12}) CHECK(said[accepted] == "");
  }
}

TEST_CASE(
    "2A-38: what was gathered by hand stays so, by the same buffers where a scope reads and with the new weights where "
    "it writes") {
  for (const std::string& name : scheme_names()) {
    for (const bool zero_copy : {true, false}) {
      CAPTURE(name, zero_copy);
      const auto problems = on_ranks(4, [&](World& world) {
        ChainRun run(world,
                     {.scheme = scheme_of(name, 4), .precision = {.param = DType::bf16}, .zero_copy = zero_copy});
        const Parameter& weight = run.model.layers[0]->weight;
        std::string problem;
        run.runtime.unshard(1).wait();
        run.runtime.unshard(2);  // and nobody waits for it
        const void* const before = weight.value().data;
        const auto gathers = std::ssize(run.runtime.actions());
        { const UnshardScope scope(run.runtime, run.model, kReading); }
        if (std::ssize(run.runtime.actions()) != gathers) problem += "reading has units gathered; ";
        if (weight.value().data != before) problem += "the view is another; ";
        const auto old = run.weights();
        {
          const UnshardScope scope(run.runtime, run.model);
          for (int unit = 0; unit < 4; ++unit) scale_unit(run, scope, unit, 2);
        }
        if (run.runtime.scheduler().state(1) != UnitState::unsharded) problem += "it does not stay unsharded; ";
        if (run.runtime.scheduler().state(2) != UnitState::gathering) problem += "it does not stay on its way; ";
        const Buffer now = weight.value();
        run.context.stream().synchronize();
        for (std::int64_t i = 0; i < now.elems; ++i) {
          if (now.as<BFloat16>()[i].bits != BFloat16(2 * old[1][static_cast<std::size_t>(i)]).bits)
            return problem + "it is old";
        }
        run.runtime.reshard(1);
        run.runtime.reshard(2);
        run.device->synchronize();
        return problem;
      });
      for (const std::string& problem : problems) CHECK(problem == "");
    }
  }
}

TEST_CASE(
    "2A-38: after a write in the middle of a step nothing old is used: kept shards are dropped, what stays gathered is "
    "gathered anew") {
  for (const std::string& name : scheme_names()) {
    CAPTURE(name);
    const auto losses = on_ranks(4, [&](World& world) {
      const auto train = [&](bool in_mid_step) {
        ChainRun run(world, {.scheme = scheme_of(name, 4)});
        const auto write = [&] {
          const UnshardScope scope(run.runtime, run.model);
          for (int unit = 0; unit < 4; ++unit) scale_unit(run, scope, unit, 1.5f);
        };
        if (!in_mid_step) write();
        for (int i = 0; i < 2; ++i) run.micro_batch(i, false);  // the second runs by the recorded order
        if (in_mid_step) write();
        const float loss = run.micro_batch(5, true);
        run.optimizer->step(1e-2f, 1);
        run.device->synchronize();
        return loss;
      };
      return std::pair(train(true), train(false));
    });
    for (const auto& [in_mid_step, before] : losses) CHECK(in_mid_step == before);
  }
}

TEST_CASE(
    "2A-35: of a module the scope enters its unit and, recursively, those below it; what is no unit is a part of one") {
  const auto world = make_single_world({.timeout_s = 60});
  ChainRun run(*world);
  const auto units = [&](const Module& module, bool recurse) {
    return UnshardScope(run.runtime, module, {.recurse = recurse, .writes_back = false}).units();
  };
  CHECK((units(run.model, true) == std::vector<int>{0, 1, 2, 3}));
  CHECK((units(run.model, false) == std::vector<int>{0}));
  CHECK((units(*run.model.layers[1], true) == std::vector<int>{2}));
  CHECK((units(*run.model.layers[1], false) == std::vector<int>{2}));
  Chain other;
  CHECK_THAT(message_of([&] { units(other, true); }), Contains("is not sharded by this runtime"));
  ChainRun whole(*world, {}, Units::model);
  const UnshardScope scope(whole.runtime, *whole.model.layers[2], kReading);
  CHECK((scope.units() == std::vector<int>{0}));
  CHECK(scope.value(whole.model.head).elems == kChainWidth * kChainWidth);
}

TEST_CASE("2A-40: of a scope for one rank the others hold no whole buffer, and send no more than their shards") {
  for (const char* const name : {"zero3", "nested", "hsdp"}) {
    for (const Layout layout : {Layout::flat, Layout::per_parameter}) {
      CAPTURE(name, layout == Layout::flat);
      const auto peaks = on_ranks(4, [&](World& world) {
        ChainRun run(world, {.scheme = scheme_of(name, 4), .layout = {.layout = layout}, .zero_copy = false});
        run.micro_batch(0);
        run.device->synchronize();
        run.device->memory().reset_peak();
        const std::int64_t before = run.device->memory().live_bytes(),
                           sent = run.runtime.executor().groups().sent().parameter_bytes();
        { const UnshardScope scope(run.runtime, run.model, {.only_rank = 1, .with_gradients = true}); }
        run.device->synchronize();
        return std::pair(run.device->memory().peak_bytes() - before,
                         run.runtime.executor().groups().sent().parameter_bytes() - sent);
      });
      for (std::size_t rank = 0; rank < 4; ++rank) {
        CAPTURE(rank);
        if (rank == 1) CHECK(peaks[rank].first >= 2 * 4 * kChainWidth * kChainWidth * 4);
        if (rank != 1) CHECK(peaks[rank].first < 200);  // scalars
        CHECK(peaks[rank].second == 0);                 // all-gathers
      }
    }
  }
}

TEST_CASE(
    "2A-41: of a scope on the host no more than one unit is on the device at a time, and one warning says what is on "
    "every rank's host") {
  const bool is_for_one = GENERATE(false, true);
  std::vector<std::string> problems;
  const std::string warned = stderr_of([&] {
    problems = on_ranks(2, [&](World& world) {
      ChainRun run(world, {.zero_copy = false});
      run.micro_batch(0);
      run.device->synchronize();
      std::int64_t largest = 0, all = 0;
      for (const FlatParameter& unit : run.runtime.executor().units()) {
        largest = std::max(largest, full_bytes(unit));
        all += full_bytes(unit);
      }
      run.device->memory().reset_peak();
      const std::int64_t before = run.device->memory().live_bytes();
      UnshardOptions options{.on_host = true, .with_gradients = true};
      if (is_for_one) options.only_rank = 0;
      for (int i = 0; i < 2; ++i) {
        const UnshardScope scope(run.runtime, run.model, options);
        const bool is_seen = !is_for_one || world.rank() == 0;
        if (run.device->pinned_memory().counter().live_bytes() < (is_seen ? 2 * all : 0))
          return std::string("not on the host");
        if (is_seen && scope.value(run.model.head).device != DeviceKind::cpu) return std::string("of the device");
      }
      run.device->synchronize();
      const std::int64_t most = run.device->memory().peak_bytes() - before;
      return most > largest + 1000 ? fmt::format("{} bytes on the device, a unit has {}", most, largest) : "";
    });
  });
  for (const std::string& problem : problems) CHECK(problem == "");
  if (is_for_one) CHECK(warned == "");
  if (!is_for_one)
    CHECK_THAT(warned, Contains("zshard: warning: an UnshardScope on the host has ") && Contains("on each of 2 ranks"));
  CHECK(std::count(warned.begin(), warned.end(), '\n') == (is_for_one ? 0 : 1));
}

TEST_CASE("a scope that cannot enter its unit k leaves the k before it in reverse, and all is as it was") {
  const bool on_host = GENERATE(false, true);
  for (int k = 0; k < 4; ++k) {
    CAPTURE(on_host, k);
    const auto results = on_ranks(2, [&](World& world) {
      LimitedAllocator memory;
      const auto device =
          Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60, .memory = &memory});
      Context context(*device);
      Chain model;
      ShardedRuntime runtime(context, world, {.zero_copy = false});
      shard_module(model, runtime, Units::block);
      device->synchronize();
      const std::int64_t live = device->memory().live_bytes();
      device->trace().start();
      memory.limit(k);  // a buffer of each unit, of different sizes
      std::string problem = message_of([&] { const UnshardScope scope(runtime, model, {.on_host = on_host}); });
      memory.limit(-1);
      const std::vector<std::string> owners = released(device->trace().entries());
      device->trace().stop();
      if (device->memory().live_bytes() != live) problem += "; memory is left";
      if (device->pinned_memory().counter().live_bytes() != 0) problem += "; host memory is left";
      for (const FlatParameter& unit : runtime.executor().units())
        problem += unit.is_in_scope ? "; it is still entered" : "";
      { const UnshardScope scope(runtime, model, kReading); }
      device->synchronize();
      return std::pair(problem, owners);
    });
    const std::vector<std::string> names = {"root", "layer0", "layer1", "layer2"};
    for (const auto& [problem, owners] : results) {
      if (on_host) {
        CHECK((problem == "" || Contains("no memory is left").match(problem)));  // one block serves all units
        continue;
      }
      CHECK(problem == "no memory is left");
      std::vector<std::string> expected(names.begin(), names.begin() + k);
      std::reverse(expected.begin(), expected.end());
      CHECK((owners == expected));
    }
  }
}

TEST_CASE("2A-46: at their end units are left in reverse, each when what was written of it is stored") {
  const auto results = on_ranks(2, [](World& world) {
    ChainRun run(world, {.zero_copy = false});
    run.device->synchronize();
    run.device->trace().start();
    { const UnshardScope scope(run.runtime, run.model); }
    run.device->synchronize();
    return released(run.device->trace().entries());
  });
  for (const auto& owners : results) CHECK(owners == std::vector<std::string>{"layer2", "layer1", "layer0", "root"});
}

TEST_CASE(
    "work that fails within a scope fails the next synchronize, the weights are as they were, and the step goes on") {
  const bool on_host = GENERATE(false, true);
  const auto results = on_ranks(2, [=](World& world) {
    ChainRun run(world);
    run.micro_batch(0);
    run.device->synchronize();
    const Arrays before = run.weights();
    const std::string problem = message_of([&] {
      UnshardScope scope(run.runtime, run.model, {.on_host = on_host});
      const Buffer value = scope.value(run.model.head);
      run.context.launch({"fail", {}, {value}},
                         [](ExecContext&) { throw Error(ExitCode::io, "work of a user failed"); });
      run.device->synchronize();
    });
    const bool is_as_before = run.weights() == before;
    run.optimizer->step(1e-2f, 1);
    run.micro_batch(1);
    run.optimizer->step(1e-2f, 2);
    run.device->synchronize();
    return std::pair(problem, is_as_before);
  });
  for (const auto& [problem, is_as_before] : results) {
    CHECK(problem == "work of a user failed");
    CHECK(is_as_before);
  }
}

TEST_CASE(
    "I5: one rank alone that writes back, enters otherwise or ends its scope by an exception is stopped before the "
    "optimizer") {
  using Do = std::function<void(ChainRun&, int rank)>;
  const auto code_of = [](const Do& body) {
    std::vector<int> codes(4);
    try {
      run_local_world(4, {.timeout_s = 20}, [&](World& world) {
        ChainRun run(world, {.scheme = {.strategy = Strategy::hsdp, .group_size = 2}, .zero_copy = false});
        run.micro_batch(0);
        body(run, world.rank());
        run.optimizer->step(1e-2f, 1);
        run.device->synchronize();
      });
    } catch (const Error& error) {
      return static_cast<int>(error.code());
    }
    return 0;
  };
  const auto end_alone = [](ChainRun& run, bool throws, const UnshardOptions& options) {
    message_of([&] {
      UnshardScope scope(run.runtime, {1}, options);
      if (throws) throw Error(ExitCode::io, "ends the scope");
    });
  };
  using After = UnshardOptions::After;
  CHECK(code_of([&](ChainRun& run, int) { end_alone(run, false, {}); }) == 0);
  CHECK(code_of([&](ChainRun& run, int) { end_alone(run, true, {}); }) == 0);
  CHECK(code_of([&](ChainRun& run, int rank) { end_alone(run, rank == 3, {}); }) == 72);
  CHECK(code_of([&](ChainRun& run, int rank) { end_alone(run, rank == 0, {.after_exception = After::discard}); }) ==
        72);
  CHECK(code_of([&](ChainRun& run, int rank) {
          end_alone(run, true, {.after_exception = rank < 2 ? After::discard : After::write_back});
        }) == 72);
  CHECK(code_of([&](ChainRun& run, int rank) { end_alone(run, false, {.writes_back = rank != 1}); }) == 72);
  CHECK(code_of([&](ChainRun& run, int rank) { end_alone(run, false, {.only_rank = rank < 2 ? 0 : 2}); }) == 72);
  CHECK(code_of([&](ChainRun& run, int rank) {
          message_of([&] {
            UnshardScope scope(run.runtime, {1});
            if (rank == 2)
              scale(run.context, scope.value(run.model.layers[0]->weight), 2);  // in the replica of one group
            throw Error(ExitCode::io, "ends the scope");
          });
        }) == 72);
}

}  // namespace zs::test::unshard_scope_test
