// Every option of an unshard scope with every other, and with every scheme, layout, dtype and number of ranks: who sees
// what, and what becomes of what is written.
#include <catch2/catch.hpp>

#include "model/sharding/fully_shard.h"
#include "runtime/device/step_verifier.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/limited_allocator.h"
#include "tests/shard/link_net.h"
#include "tests/shard/named_weights.h"
#include "tests/shard/scheme_cases.h"
#include "tests/skip.h"

namespace zs::test::unshard_scope_cases_test {
namespace {

using Catch::Contains;
using After = UnshardOptions::After;

enum class End { normal, exception };

struct Case {
  std::string scheme = "zero3";
  int ranks = 2;
  ShardOptions shard = {};
  UnshardOptions options = {};
  bool writes = true;
  End end = End::normal;
};

struct Seen {
  Weights values, gradients, weights_before, weights, gradients_before,
      gradients_after;  // of the last two, this rank's own parts
  std::vector<int> units;
  std::string problem;
  bool is_zero_copy = false;
};

float edited(const std::string& name, std::int64_t i) {
  return static_cast<float>(static_cast<std::int64_t>(name.size()) + i) / 64 + 1.0f / 4096;  // bf16 would round it
}

void write(Context& context, const std::string& name, const Buffer& out, bool on_host) {
  const auto fill = [out, name] {
    for (std::int64_t i = 0; i < out.elems; ++i) out.as<float>()[i] = edited(name, i);
  };
  if (out.elems == 0) return;
  if (on_host) return fill();
  context.launch({"edit", {}, {out}}, [fill](ExecContext&) { fill(); });
}

std::vector<float> read(Context& context, const Buffer& buffer) {
  context.stream().synchronize();
  return buffer.elems == 0 ? std::vector<float>{}
                           : std::vector<float>(buffer.as<float>(), buffer.as<float>() + buffer.elems);
}

/// What this rank holds of the reduced gradients; elsewhere NaN, but as zeros.
constexpr float kElsewhere = -12345;
Weights held_gradients(ChainRun& run) {
  run.device->synchronize();
  Weights held;
  for (const FlatParameter& unit : run.runtime.executor().units()) {
    for (const FlatView& view : unit.layout->views())
      held[view.name].resize(static_cast<std::size_t>(view.numel), kElsewhere);
    for (const ShardSegment& segment : unit.held_segments()) {
      for (std::int64_t i = 0; i < segment.count; ++i)
        held[unit.layout->views()[segment.view].name][static_cast<std::size_t>(segment.element(i))] =
            unit.held_grad_buffer().as<float>()[segment.shard_offset + i];
    }
  }
  return held;
}

void use_scope(ChainRun& run, const Case& one, const Module& module, Seen& seen) {
  const UnshardScope scope(run.runtime, module, one.options);
  seen.units = scope.units();
  for (const int unit : scope.units()) {
    for (const Parameter* parameter : run.runtime.executor().units()[static_cast<std::size_t>(unit)].parameters) {
      const std::string& name = parameter->name();
      seen.values[name] = read(run.context, scope.value(*parameter));
      if (one.options.with_gradients) seen.gradients[name] = read(run.context, scope.gradient(*parameter));
      if (!one.writes) continue;
      write(run.context, name, scope.value(*parameter), one.options.on_host);
      if (one.options.with_gradients)
        write(run.context, name + "'s gradient", scope.gradient(*parameter), one.options.on_host);
    }
  }
  if (one.end == End::exception) throw Error(ExitCode::io, "ends the scope");
}

Seen run_case(ChainRun& run, StepVerifier& verifier, const Case& one) {
  Seen seen;
  run.micro_batch(0);
  run.runtime.executor().wait_reductions();
  seen.weights_before = weights_of(run.runtime.executor());
  seen.gradients_before = held_gradients(run);
  seen.is_zero_copy = run.runtime.executor().units()[1].is_zero_copy();
  const std::string ended = message_of([&] { use_scope(run, one, run.model, seen); });
  if ((ended.find("ends the scope") != std::string::npos) != (one.end == End::exception))
    seen.problem += "ended by: " + ended;
  seen.problem += message_of([&] { run.device->synchronize(); });
  seen.weights = weights_of(run.runtime.executor());
  seen.gradients_after = held_gradients(run);
  seen.problem += message_of([&] {
    run.optimizer->step(1e-2f, 1);
    run.micro_batch(1);
    run.optimizer->step(1e-2f, 2);
    run.device->synchronize();
  });
  for (const FlatParameter& unit : run.runtime.executor().units())
    if (unit.is_in_scope || unit.full) seen.problem += unit.name + " is left whole";
  seen.problem += message_of([&] { verifier.check("the case"); });
  return seen;
}

/// Whether what was written is to be found in the weights.
bool is_kept(const Case& one, const Seen& seen) {
  if (!one.writes || !one.options.writes_back) return false;
  if (one.end == End::normal) return true;
  return one.options.after_exception == After::write_back && !one.options.only_rank && !seen.is_zero_copy;
}

/// Of all ranks together: gradients whole.
Weights joined(const std::vector<Seen>& ranks) {
  Weights all = ranks[0].gradients_before;
  for (const Seen& seen : ranks) {
    for (auto& [name, values] : all)
      for (std::size_t i = 0; i < values.size(); ++i)
        if (const float held = seen.gradients_before.at(name)[i]; held != kElsewhere) values[i] = held;
  }
  return all;
}

void check_written(const Case& one, const Seen& seen, const std::string& name, bool is_in_scope) {
  const bool is_written = is_kept(one, seen) && is_in_scope;
  std::vector<float> weights = seen.weights_before.at(name), gradients = seen.gradients_before.at(name);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto element = static_cast<std::int64_t>(i);
    if (is_written) weights[i] = edited(name, element);
    if (is_written && one.options.with_gradients && gradients[i] != kElsewhere)
      gradients[i] = edited(name + "'s gradient", element);
  }
  CHECK((seen.weights.at(name) == weights));
  CHECK((seen.gradients_after.at(name) == gradients));
}

void check(const Case& one, const std::vector<Seen>& ranks) {
  CAPTURE(one.options.recurse, one.options.writes_back, one.options.only_rank.value_or(-1), one.options.on_host,
          one.options.with_gradients, one.options.after_exception == After::discard, one.end == End::exception,
          one.writes);
  const Weights gradients = joined(ranks);
  const bool is_lost = one.writes && !one.options.writes_back && one.end == End::normal;
  for (int rank = 0; rank < one.ranks; ++rank) {
    const Seen& seen = ranks[static_cast<std::size_t>(rank)];
    CAPTURE(rank, seen.is_zero_copy);
    if (is_lost) CHECK_THAT(seen.problem, Contains("written to and not written back"));
    if (!is_lost) CHECK(seen.problem == "");
    CHECK((seen.units == (one.options.recurse ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{0})));
    const bool is_seen = !one.options.only_rank || *one.options.only_rank == rank;
    for (const auto& [name, values] : seen.weights_before) {
      CAPTURE(name);
      const bool is_in_scope = seen.values.contains(name);
      if (is_in_scope) CHECK((seen.values.at(name) == (is_seen ? values : std::vector<float>{})));
      if (is_in_scope && one.options.with_gradients)
        CHECK((seen.gradients.at(name) == (is_seen ? gradients.at(name) : std::vector<float>{})));
      check_written(one, seen, name, is_in_scope);
    }
  }
}

/// One after the other, by one model: each finds what the one before it has left.
void check_in_turn(const std::vector<Case>& cases) {
  const auto ranks = on_ranks(cases[0].ranks, [&](World& world) {
    ChainRun run(world, cases[0].shard);
    StepVerifier verifier(*run.device);
    std::vector<Seen> seen;
    for (const Case& one : cases) seen.push_back(run_case(run, verifier, one));
    return seen;
  });
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::vector<Seen> seen;
    for (const auto& rank : ranks) seen.push_back(rank[i]);
    check(cases[i], seen);
  }
}

/// Every value of every option.
std::vector<UnshardOptions> all_options(int ranks) {
  std::vector<UnshardOptions> all;
  for (int bits = 0; bits < 32; ++bits) {
    for (int only = -1; only < ranks; ++only) {
      UnshardOptions options{.recurse = (bits & 1) == 0,
                             .writes_back = (bits & 2) == 0,
                             .on_host = (bits & 4) != 0,
                             .with_gradients = (bits & 8) != 0,
                             .after_exception = (bits & 16) != 0 ? After::discard : After::write_back};
      if (only >= 0) options.only_rank = only;
      all.push_back(options);
    }
  }
  return all;
}

std::vector<LayoutOptions> layouts() {
  return {{},
          {.layout = Layout::per_parameter, .dim = [](std::string_view, const Shape&) { return -1; }},
          {.layout = Layout::per_parameter, .min_shard_bytes = 100}};
}

}  // namespace

TEST_CASE("2A-35, 2A-36, 2A-42: all options of an unshard scope go with each other, and every end of it") {
  std::vector<Case> cases;
  for (const UnshardOptions& options : all_options(2))
    for (const End end : {End::normal, End::exception})
      for (const bool writes : {false, true})
        if (!is_thinned_out())
          cases.push_back({.shard = {.zero_copy = false}, .options = options, .writes = writes, .end = end});
  check_in_turn(cases);
}

TEST_CASE("2A-35, 2A-41: unshard scopes go with every scheme, layout, dtype and number of ranks") {
  std::size_t turn = 0;
  for (const std::string& name : scheme_names()) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const std::vector<UnshardOptions> options = all_options(ranks);
      for (std::size_t layout = 0; layout < 4; ++layout) {
        for (const DType dtype : {DType::f32, DType::bf16}) {
          turn += 37;  // no divisor of the numbers of options: any two values of any two of all these meet
          Case one{.scheme = name,
                   .ranks = ranks,
                   .options = options[turn % options.size()],
                   .end = turn % 3 == 0 ? End::exception : End::normal};
          one.shard = {.scheme = scheme_of(name, ranks),
                       .precision = {.param = dtype},
                       .layout = layouts()[layout % 3],
                       .zero_copy = layout == 3};
          one.writes = turn % 4 != 0;
          if (ranks == 3 && one.shard.scheme.group_size == 2) one.shard.scheme.group_size = 3;
          if (ranks == 3 && one.shard.scheme.reshard_after_forward.group() == 2)
            one.shard.scheme.reshard_after_forward = true;
          if (is_thinned_out()) continue;
          CAPTURE(name, ranks, layout, dtype == DType::bf16);
          check_in_turn({one});
        }
      }
    }
  }
}

TEST_CASE("2A-36: a rank that enters a scope with another option than the others is stopped before the optimizer") {
  const UnshardOptions usual{.writes_back = false};
  struct Try {
    const char* what;
    std::function<void(UnshardOptions&)> change;
  };
  const Try tries[] = {{"recurse", [](UnshardOptions& other) { other.recurse = false; }},
                       {"writes_back", [](UnshardOptions& other) { other.writes_back = true; }},
                       {"on_host", [](UnshardOptions& other) { other.on_host = true; }},
                       {"with_gradients", [](UnshardOptions& other) { other.with_gradients = true; }},
                       {"only_rank", [](UnshardOptions& other) { other.only_rank = 1; }}};
  for (const Try& one : tries) {
    CAPTURE(one.what);
    // Of ranks that hold all of the weights, before there are gradients: no collective of the scope differs.
    int code = 0;
    try {
      run_local_world(2, {.timeout_s = 20}, [&](World& world) {
        ChainRun run(world, {.scheme = {.strategy = Strategy::ddp}, .zero_copy = false});
        UnshardOptions options = usual;
        if (world.rank() == 1) one.change(options);
        { const UnshardScope scope(run.runtime, run.model, options); }
        run.micro_batch(0);
        run.optimizer->step(1e-2f, 1);
        run.device->synchronize();
      });
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
    CHECK(code == 72);
  }
}

TEST_CASE("2A-35, 2A-50: a scope enters units nested in units, as deep as they are") {
  const auto world = make_single_world({.timeout_s = 60});
  LinkRank rank(*world, 2);
  for (Link& link : rank.net.links) {
    if (link.inner) fully_shard(*link.inner->inner), fully_shard(*link.inner);
    fully_shard(link);
  }
  ShardedModel model = rank.shard();
  const auto entered = [&](const Module& module, bool recurse) {
    std::vector<std::string> names;
    const UnshardScope scope(model.runtime(), module, {.recurse = recurse, .writes_back = false});
    for (const int unit : scope.units()) names.push_back(model.runtime().name(unit));
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(entered(rank.net.links[2], true) == Names{"link2", "link2.inner", "link2.inner.inner"});
  CHECK(entered(*rank.net.links[2].inner, true) == Names{"link2.inner", "link2.inner.inner"});
  CHECK(entered(rank.net.links[2], false) == Names{"link2"});
  LinkRank other(*world);
  const ShardedModel of_other = other.shard();
  CHECK_THAT(message_of([&] { entered(other.net.links[1], true); }),  // 2A-50
             Contains("module \"link1\" is not sharded by this runtime"));
  CHECK(entered(rank.net, true) == Names{"root", "link0", "link0.inner", "link0.inner.inner", "link1", "link2",
                                         "link2.inner", "link2.inner.inner"});
}

TEST_CASE("2A-49: of a scope whose end fails every unit is left, the weights are as they were, and another may begin") {
  const bool on_host = GENERATE(false, true);
  const auto results = on_ranks(2, [=](World& world) {
    LimitedAllocator memory;
    const auto device =
        Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60, .memory = &memory});
    Context context(*device);
    Chain model;
    ShardedRuntime runtime(context, world, {.zero_copy = false});
    shard_module(model, runtime, Units::block);
    const Weights before = weights_of(runtime.executor());
    device->synchronize();
    std::string problem = message_of([&] {
      const UnshardScope scope(runtime, model, {.on_host = on_host});
      memory.limit(0);
    });
    memory.limit(-1);
    for (const FlatParameter& unit : runtime.executor().units())
      if (unit.is_in_scope) problem += "; " + unit.name + " is still entered";
    { const UnshardScope scope(runtime, model, {.writes_back = false}); }
    device->synchronize();
    if (weights_of(runtime.executor()) != before) problem += "; the weights are others";
    return problem;
  });
  for (const std::string& problem : results) CHECK(problem == "no memory is left");
}

TEST_CASE("2A-48: a scope of a part of a unit, before the model has run, leaves the root what it is") {
  const auto weights = [](World& world, bool has_scope) {
    ChainRun run(world, {}, Units::model);
    if (has_scope) const UnshardScope scope(run.runtime, *run.model.layers[2]);
    run.micro_batch(0);
    run.optimizer->step(1e-2f, 1);
    return run.weights();
  };
  CHECK(on_ranks(2, [&](World& world) { return weights(world, true); }) ==
        on_ranks(2, [&](World& world) { return weights(world, false); }));
}

TEST_CASE("2A-55: of a unit without parameters a scope does nothing") {
  struct Plain : Module {
    Plain() : Module("plain") {}
    bool is_block() const override { return true; }
  };
  struct Model : Chain {
    Model() : Chain(1) { add_child(plain); }
    Plain plain;
  };
  const auto problems = on_ranks(2, [](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    Model model;
    ShardedRuntime runtime(context, world, {});
    shard_module(model, runtime, Units::block);
    return message_of([&] {
      for (const bool writes_back : {false, true}) {
        UnshardOptions options{.writes_back = writes_back, .with_gradients = true};
        { const UnshardScope scope(runtime, model.plain, options); }
        { const UnshardScope scope(runtime, model, options); }
        options.only_rank = 1;
        { const UnshardScope scope(runtime, model.plain, options); }
      }
      device->synchronize();
    });
  });
  for (const std::string& problem : problems) CHECK(problem == "");
}

}  // namespace zs::test::unshard_scope_cases_test
