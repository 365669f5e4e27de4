// What a trainer writes into whole parameters reaches the weights, or is not lost silently.
#include <catch2/catch.hpp>

#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::write_back_test {
namespace {

using Arrays = std::vector<std::vector<float>>;
using Catch::Contains;

constexpr int kRanks = 4;
constexpr std::int64_t kSmall = 100;  // bytes: the biases' are fewer

/// The first of them is for a zero-copy run, the second, the same, for one of copies.
std::vector<LayoutOptions> layouts() {
  return {{},
          {},
          {.layout = Layout::per_parameter, .dim = [](std::string_view, const Shape&) { return -1; }},
          {.layout = Layout::per_parameter, .min_shard_bytes = kSmall}};
}

/// No number of 8 bits, so that bf16 would round it.
float edited(std::int64_t i) { return 1.0f + 1.0f / 4096 + static_cast<float>(i); }

void edit(Context& context, const Buffer& out) {
  context.launch({"edit", {}, {out}}, [out](ExecContext&) {
    for (std::int64_t i = 0; i < out.elems; ++i) {
      if (out.dtype == DType::f32) out.as<float>()[i] = edited(i);
      if (out.dtype == DType::bf16) out.as<BFloat16>()[i] = BFloat16(edited(i));
    }
  });
}

Arrays edited_weights(const Chain& chain) {
  Arrays all;
  const auto add = [&](const Parameter& parameter) {
    auto& values = all.emplace_back();
    for (std::int64_t i = 0; i < parameter.numel(); ++i) values.push_back(edited(i));
  };
  add(chain.head);
  for (const auto& layer : chain.layers) add(layer->weight), add(layer->bias);
  return all;
}

void edit_unit(ChainRun& run, const UnshardScope& scope, int unit) {
  for (const Parameter* parameter : run.runtime.executor().units()[static_cast<std::size_t>(unit)].parameters)
    edit(run.context, scope.value(*parameter));
}

const UnshardOptions kReading = {.writes_back = false};

/// Names the parameter once for each element of this rank's part that is another in what is whole.
std::string differences(const Buffer& whole, const HeldTensor& own) {
  std::string found;
  for (const HeldTensor::Piece& piece : own.pieces)
    for (std::int64_t run = 0; run < piece.range.runs; ++run)
      for (std::int64_t i = 0; i < piece.range.count; ++i) {
        const std::int64_t element = piece.range.begin + run * piece.range.stride + i;
        if (whole.elems == 0 || whole.as<float>()[element] != piece.run(run).as<float>()[i])
          found += own.tensor.parameter + "; ";
      }
  return found;
}

struct Written {
  Arrays weights, expected;
  std::string problem;
};

/// A step, every weight written anew, and what is trained with then, in bf16.
Written write_all(World& world, const SchemeOptions& scheme, const LayoutOptions& layout, bool zero_copy) {
  ChainRun run(world,
               {.scheme = scheme, .precision = {.param = DType::bf16}, .layout = layout, .zero_copy = zero_copy});
  run.micro_batch(0);
  run.optimizer->step(1e-2f, 1);
  run.device->trace().start();
  for (int unit = 0; unit < 4; ++unit) {
    const UnshardScope scope(run.runtime, {unit});
    edit_unit(run, scope, unit);
  }
  Written written{.weights = run.weights(), .expected = edited_weights(run.model), .problem = {}};
  run.runtime.unshard(2).wait();
  const Buffer used = run.model.layers[1]->weight.value();
  run.context.launch({"look", {used}, {}}, [used](ExecContext&) {
    for (std::int64_t i = 0; i < used.elems; ++i)
      ZS_CHECK(used.as<BFloat16>()[i].bits == BFloat16(edited(i)).bits, "element {} is old", i);
  });
  run.runtime.reshard(2);
  written.problem = message_of([&] { run.device->synchronize(); });
  const auto violations = verify_order(run.device->trace().entries());
  if (!violations.empty()) written.problem += violations.front().message;
  return written;
}

}  // namespace

TEST_CASE(
    "what is written into an unshard scope and written back are the weights, unrounded, in every scheme and layout") {
  for (const std::string& name : scheme_names()) {
    std::size_t number = 0;
    for (const LayoutOptions& layout : layouts()) {
      const bool zero_copy = number == 0;
      CAPTURE(name, number++);
      const auto write = [&](World& world) { return write_all(world, scheme_of(name, kRanks), layout, zero_copy); };
      for (const Written& written : on_ranks(kRanks, write)) {
        CHECK(written.weights == written.expected);
        CHECK(written.problem == "");
      }
    }
  }
}

TEST_CASE(
    "what is written and not written back is an error on every rank that names the unit, and the weights are as they "
    "were") {
  std::size_t number = 0;
  for (const LayoutOptions& layout : layouts()) {
    const bool zero_copy = number++ == 0;
    const auto results = on_ranks(kRanks, [&](World& world) {
      ChainRun run(world, {.layout = layout, .zero_copy = zero_copy});
      const Arrays before = run.weights();
      {
        const UnshardScope scope(run.runtime, {2}, kReading);
        edit(run.context, scope.value(run.model.layers[1]->weight));
      }
      const std::string message = message_of([&] { run.device->synchronize(); });
      return std::pair(message, run.weights() == before);
    });
    for (const auto& [message, is_as_before] : results) {
      CHECK_THAT(message, Contains("unit layer1") && Contains("not written back"));
      CHECK(is_as_before);
    }
  }
}

TEST_CASE("one element that one rank has written alone is an error on all ranks, whoever owns it") {
  const int writer = GENERATE(0, 3);
  const auto messages = on_ranks(kRanks, [=](World& world) {
    ChainRun run(world);
    {
      const UnshardScope scope(run.runtime, {1}, kReading);
      const Buffer last = scope.value(run.model.layers[0]->weight).slice(kChainWidth * kChainWidth - 1, 1);
      if (world.rank() == writer)
        run.context.launch({"edit_one", {}, {last}}, [last](ExecContext&) { *last.as<float>() += 1; });
    }
    return message_of([&] { run.device->synchronize(); });
  });
  for (const std::string& message : messages) CHECK_THAT(message, Contains("unit layer0"));
}

TEST_CASE(
    "a write that is not written back is an error on one rank, and where ranks hold parameters whole, and leaves the "
    "weights") {
  struct Case {
    const char* scheme;
    int ranks;
    LayoutOptions layout;
    DType param;
  };
  for (const Case& one :
       {Case{"zero3", 1, {}, DType::f32}, Case{"ddp", 2, {}, DType::f32}, Case{"ddp", 2, {}, DType::bf16},
        Case{"zero3", 2, {.layout = Layout::per_parameter, .min_shard_bytes = kSmall}, DType::f32}}) {
    CAPTURE(one.scheme, one.ranks);
    const auto results = on_ranks(one.ranks, [&](World& world) {
      ChainRun run(
          world, {.scheme = scheme_of(one.scheme, one.ranks), .precision = {.param = one.param}, .layout = one.layout});
      const Arrays before = run.weights();
      {
        const UnshardScope scope(run.runtime, {2}, kReading);
        edit(run.context, scope.value(run.model.layers[1]->bias));
      }
      const std::string message = message_of([&] { run.device->synchronize(); });
      return std::pair(message, run.weights() == before);
    });
    for (const auto& [message, is_as_before] : results) {
      CHECK_THAT(message, Contains("unit layer1") && Contains("not written back"));
      CHECK(is_as_before);
    }
  }
}

TEST_CASE(
    "weights that the ranks write back differently, or not all of them, are an error of every rank, in every scheme") {
  for (const std::string& name : scheme_names()) {
    const auto message_of_ranks = [&](const auto& write) {
      return on_ranks(kRanks, [&](World& world) {
        ChainRun run(world, {.scheme = scheme_of(name, kRanks)});
        {
          UnshardScope scope(run.runtime, {2});
          write(world, run, scope);
        }
        try {
          run.device->synchronize();
        } catch (const Error& error) {
          return fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
        }
        return std::string("accepted");
      });
    };
    CAPTURE(name);
    const auto one_edits = message_of_ranks([](World& world, ChainRun& run, const UnshardScope& scope) {
      if (world.rank() == 0) edit(run.context, scope.value(run.model.layers[1]->weight));
    });
    const auto some_write = message_of_ranks([](World& world, ChainRun&, UnshardScope& scope) {
      if (world.rank() < 2) scope.write_back();
    });
    const auto broadcast = message_of_ranks([](World& world, ChainRun& run, const UnshardScope& scope) {
      const Buffer weight = scope.value(run.model.layers[1]->weight);
      if (world.rank() == 0) edit(run.context, weight);
      run.runtime.executor().compute_comm().broadcast(run.context.stream(), "edited", weight, 0);
    });
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      CHECK_THAT(one_edits[rank], Contains("72: the ranks wrote back different values of layer1.weight: rank 0 ") &&
                                      Contains(", rank 1 "));
      CHECK_THAT(some_write[rank], Contains("72: ") && Contains("the write-back of unit layer1") &&
                                       Contains("rank 0 ") && Contains("rank 2 "));
      CHECK(broadcast[rank] == "accepted");
    }
  }
}

TEST_CASE("reading whole parameters changes nothing, and training goes on as without") {
  const bool is_at_random = GENERATE(false, true);
  const int ranks = GENERATE(1, 2);
  const auto train = [=](bool reads) {
    return on_ranks(ranks, [=](World& world) {
      ChainRun run(world, {.precision = {.param = DType::bf16, .rounds_stochastically = is_at_random}});
      std::vector<float> seen;
      for (int step = 1; step <= 3; ++step) {
        run.micro_batch(step);
        run.optimizer->step(1e-2f, step);
        if (!reads) continue;
        const UnshardScope scope(run.runtime, {1}, kReading);
        const Buffer weight = scope.value(run.model.layers[0]->weight);
        run.context.stream().synchronize();
        seen.assign(weight.as<float>(), weight.as<float>() + weight.elems);
      }
      const Arrays weights = run.weights();
      return std::pair(weights, !reads || seen == weights[1]);
    });
  };
  const auto with = train(true), without = train(false);
  CHECK(with[0].first == without[0].first);
  CHECK(with[0].second);
}

TEST_CASE("1-17: a scope has the weights as the ranks hold them, unrounded, also where gathers travel as 8 bits") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  UnshardOptions options{.writes_back = GENERATE(false, true), .on_host = GENERATE(false, true)};
  if (GENERATE(false, true)) options.only_rank = 0;
  const auto problems = on_ranks(2, [&](World& world) {
    ChainRun run(world, {.precision = {.param = param, .gather_format = int8_format()}, .seed = 3});
    run.micro_batch(0);  // what is bound and kept now is what has travelled
    // Views of this rank's shards, which nothing gathers.
    const StateByName own = state_by_name({world, run.runtime.executor(), *run.optimizer}, {.with_optimizer = false});
    run.device->synchronize();
    std::string problem;
    {
      const UnshardScope scope(run.runtime, run.model, options);
      run.device->synchronize();
      for (const FlatParameter& unit : run.runtime.executor().units())
        for (const Parameter* parameter : unit.parameters)
          problem += differences(scope.value(*parameter), *own.find(parameter->name()));
    }
    run.runtime.abandon_step();
    return problem;
  });
  CHECK(problems[0] == "");
  if (!options.only_rank) CHECK(problems[1] == "");
}

TEST_CASE("every wait around a write is needed: without it the verifier reports a conflict") {
  const std::string scheme = GENERATE("nested", "zero3");
  const DType param = GENERATE(DType::f32, DType::bf16);
  const auto trace = on_ranks(kRanks, [&](World& world) {
    ChainRun run(world, {.scheme = scheme_of(scheme, kRanks), .precision = {.param = param}});
    run.device->trace().start();
    for (int step = 1; step <= 2; ++step) {
      run.micro_batch(step);
      run.optimizer->step(1e-2f, step);
      const UnshardScope scope(run.runtime, {2});
      edit_unit(run, scope, 2);
    }
    run.micro_batch(3);
    run.device->trace().stop();
    run.device->synchronize();
    return run.device->trace().entries();
  })[0];
  CHECK(verify_order(trace).empty());
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const auto is_record = [&](const TraceEntry& entry) {
      return entry.kind == TraceEntry::Kind::record && entry.record_id == trace[i].record_id;
    };
    // What was recorded before the trace began orders nothing in it.
    if (trace[i].kind != TraceEntry::Kind::wait || std::none_of(trace.begin(), trace.end(), is_record)) continue;
    std::vector<TraceEntry> without = trace;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    CAPTURE(i, name_of(trace[i].stream));
    CHECK_FALSE(verify_order(without).empty());
  }
}

TEST_CASE(
    "with checks_writes a write in forward is an error at the end of its micro-batch; without writes nothing changes") {
  const auto train = [](const ShardOptions& options, bool writes) {
    return on_ranks(2, [&](World& world) {
      ChainRun run(world, options);
      const std::string message = message_of([&] {
        for (int step = 1; step <= 2; ++step) {
          run.runtime.begin_micro_batch(Mode::train, true);
          const Tensor loss =
              run.model.loss(chain_input(run.context, step, options.precision.param), chain_targets(run.context));
          if (writes) edit(run.context, run.model.head.value());
          backward(loss);
          run.runtime.end_micro_batch();
          run.device->synchronize();
          run.optimizer->step(1e-2f, step);
        }
      });
      return std::pair(message, message.empty() ? run.weights() : Arrays{});
    });
  };
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int limit : {0, 3}) {
      ShardOptions options{.schedule = {.limit = limit}, .precision = {.param = dtype}};
      const auto unchecked = train(options, false);
      options.checks_writes = true;
      CHECK(train(options, false) == unchecked);
      for (const auto& [message, weights] : train(options, true))
        CHECK_THAT(message, Contains("unit root") && Contains("not written back"));
    }
  }
}

}  // namespace zs::test::write_back_test
