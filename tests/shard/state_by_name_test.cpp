// The state in memory by name: views of shards, whole tensors, and loading of either.
#include <catch2/catch.hpp>
#include <map>
#include <tuple>

#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::state_by_name_test {
namespace {

using Catch::Contains;
using Named = std::map<std::string, std::vector<float>>;

constexpr int kRanks = 4;
constexpr float kElsewhere = -12345;

TrainingState state_of(World& world, ChainRun& run) { return {world, run.runtime.executor(), *run.optimizer}; }

/// By "parameter (kind)"; what no piece has is kElsewhere. Of memory that the host reads.
Named values_of(const StateByName& state) {
  Named all;
  for (const auto& [tensor, pieces] : state.tensors) {
    auto& values = all[tensor.parameter + " (" + tensor.kind + ")"];
    values.resize(static_cast<std::size_t>(tensor.shape.numel()), kElsewhere);
    for (const HeldTensor::Piece& piece : pieces)
      for (std::int64_t run = 0; run < piece.range.runs; ++run)
        for (std::int64_t i = 0; i < piece.range.count; ++i)
          values[static_cast<std::size_t>(piece.range.begin + run * piece.range.stride + i)] =
              piece.run(run).as<float>()[i];
  }
  return all;
}

void train(ChainRun& run, int first, int steps) {
  for (int step = first; step < first + steps; ++step) {
    run.micro_batch(step);
    run.optimizer->step(1e-2f, step + 1);
  }
  run.device->synchronize();
}

std::vector<LayoutOptions> layouts() {
  return {{},
          {.layout = Layout::per_parameter, .dim = [](std::string_view, const Shape&) { return -1; }},
          {.layout = Layout::per_parameter, .min_shard_bytes = 100}};
}

Named joined(const std::vector<Named>& parts) {
  Named all = parts[0];
  for (const Named& part : parts)
    for (auto& [name, values] : all)
      for (std::size_t i = 0; i < values.size(); ++i)
        if (part.at(name)[i] != kElsewhere) values[i] = part.at(name)[i];
  return all;
}

struct Whole {
  Named values;
  std::map<std::string, std::int64_t> updates;
};

/// Of rank 0, as its host has it when the other ranks are gone.
Whole trained_whole(const ShardOptions& options, int ranks) {
  return on_ranks(ranks, [&](World& world) {
    ChainRun run(world, options);
    train(run, 0, 2);
    const StateByName state = state_by_name(state_of(world, run), {.whole = true, .on_host = true, .only_rank = 0});
    return Whole{values_of(state), state.updates};
  })[0];
}

/// Tensors that are whole in `whole`, which owns them.
StateByName as_state(Whole& whole) {
  StateByName state;
  state.updates = whole.updates;
  for (auto& [name, values] : whole.values) {
    const std::size_t at = name.find(" (");
    const std::string parameter = name.substr(0, at), kind = name.substr(at + 2, name.size() - at - 3);
    const auto count = static_cast<std::int64_t>(values.size());
    const Shape shape = parameter.ends_with("bias") ? Shape{kChainWidth} : Shape{kChainWidth, kChainWidth};
    state.tensors.push_back(
        {{parameter, kind, DType::f32, shape}, {whole_piece({values.data(), count, DType::f32, DeviceKind::cpu})}});
  }
  return state;
}

}  // namespace

TEST_CASE(
    "1-28, 2A-29, 2B-27: the state by name is views of shards without communication, copies on the host, or whole, "
    "alike in every scheme") {
  for (const std::string& name : scheme_names()) {
    for (const LayoutOptions& layout : layouts()) {
      CAPTURE(name, layout.min_shard_bytes, layout.layout == Layout::flat);
      struct Read {
        Named views, shards, whole, on_every_host, on_one_host;
        std::int64_t sent = 0;
        bool are_views = true;
      };
      const auto ranks = on_ranks(kRanks, [&](World& world) {
        ChainRun run(world, {.scheme = scheme_of(name, kRanks), .precision = {.param = DType::bf16}, .layout = layout});
        train(run, 0, 1);
        const TrainingState state = state_of(world, run);
        const std::int64_t sent = run.runtime.executor().groups().sent().parameter_bytes();
        const StateByName views = state_by_name(state);
        Read read;
        read.views = values_of(views);
        read.shards = values_of(state_by_name(state, {.on_host = true}));
        read.sent = run.runtime.executor().groups().sent().parameter_bytes() - sent;
        read.are_views = views.keep.empty() && views.memory.empty();
        {
          const StateByName whole = state_by_name(state, {.whole = true});
          run.device->synchronize();
          read.whole = values_of(whole);
        }
        read.on_every_host = values_of(state_by_name(state, {.whole = true, .on_host = true}));
        read.on_one_host = values_of(state_by_name(state, {.whole = true, .on_host = true, .only_rank = 2}));
        return read;
      });
      std::vector<Named> views;
      for (const Read& read : ranks) views.push_back(read.views);
      const Named all = joined(views);
      CHECK(all.size() == 7 * 3);
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        const Read& read = ranks[rank];
        CHECK(read.sent == 0);
        CHECK(read.are_views);
        CHECK((read.shards == read.views));
        CHECK((read.whole == all));
        CHECK((read.on_every_host == all));
        if (rank == 2) CHECK((read.on_one_host == all));
        if (rank != 2)
          for (const auto& [tensor, values] : read.on_one_host)
            CHECK(std::count(values.begin(), values.end(), kElsewhere) == std::ssize(values));
      }
    }
  }
}

TEST_CASE(
    "I2: a state that one rank has whole is loaded by every scheme, layout and number of ranks, and training goes on "
    "from it") {
  ShardOptions from{.scheme = scheme_of("zero3", 2)};
  Whole whole = trained_whole(from, 2);
  for (const std::string& name : scheme_names()) {
    for (const LayoutOptions& layout : layouts()) {
      CAPTURE(name, layout.min_shard_bytes, layout.layout == Layout::flat);
      const auto loaded = on_ranks(kRanks, [&](World& world) {
        ChainRun run(world, {.scheme = scheme_of(name, kRanks), .layout = layout, .seed = 99});
        train(run, 0, 1);
        const TrainingState state = state_of(world, run);
        const bool is_root = world.rank() == 1;
        load_by_name(state, is_root ? as_state(whole) : StateByName{}, {.only_rank = 1});
        const StateByName now = state_by_name(state, {.on_host = true});
        const Named values = values_of(now);
        const auto updates = now.updates;
        train(run, 2, 1);
        return std::pair(values, updates);
      });
      std::vector<Named> parts;
      for (const auto& [values, updates] : loaded) {
        parts.push_back(values);
        CHECK((updates == whole.updates));
      }
      CHECK((joined(parts) == whole.values));
    }
  }
}

TEST_CASE("I2: shards, whole tensors and those of one rank go on bit for bit, as if nothing had been") {
  const std::string name = GENERATE("zero3", "nested", "hsdp", "ddp");
  const auto results = on_ranks(kRanks, [&](World& world) {
    const ShardOptions options{.scheme = scheme_of(name, kRanks), .precision = {.param = DType::bf16}};
    ChainRun run(world, options);
    train(run, 0, 2);
    const StateByName shards = state_by_name(state_of(world, run), {.on_host = true});
    const StateByName whole = state_by_name(state_of(world, run), {.whole = true, .on_host = true});
    train(run, 2, 2);
    const auto expected = run.weights();
    std::string problem;
    const auto go_on = [&](const StateByName& from, const LoadOptions& load) {
      ChainRun other(world, {.scheme = options.scheme, .precision = options.precision, .seed = 5});
      const auto [missing, unexpected] = load_by_name(state_of(world, other), from, load);
      if (!missing.empty() || !unexpected.empty()) problem += "something is left out; ";
      train(other, 2, 2);
      if (other.weights() != expected) problem += "other bits; ";
    };
    go_on(shards, {});
    go_on(whole, {});
    go_on(world.rank() == 3 ? whole : shards, {.only_rank = 3});
    return problem;
  });
  for (const std::string& problem : results) CHECK(problem == "");
}

TEST_CASE(
    "1-28: a state that does not fit is refused by every rank by name, and nothing is changed; what is not strict says "
    "what is left out") {
  Whole whole = trained_whole({}, 1);
  using Change = std::function<void(StateByName&, int rank)>;
  struct Try {
    const char* text;
    Change change;
  };
  float spare[kChainWidth * kChainWidth] = {};
  const Try tries[] = {
      {"head (master) is missing",
       [](StateByName& state, int) {
         std::erase_if(state.tensors,
                       [](auto& t) { return t.tensor.parameter == "head" && t.tensor.kind == kMasterKind; });
       }},
      {"layer1.bias (adamw.v) is missing",
       [](StateByName& state, int) {
         std::erase_if(state.tensors,
                       [](auto& t) { return t.tensor.parameter == "layer1.bias" && t.tensor.kind == "adamw.v"; });
       }},
      {"tail (master) is not in the model",
       [&](StateByName& state, int) {
         state.tensors.push_back(
             {{"tail", kMasterKind, DType::f32, {2}}, {whole_piece({spare, 2, DType::f32, DeviceKind::cpu})}});
       }},
      {"layer0.bias has no number of updates", [](StateByName& state, int) { state.updates.erase("layer0.bias"); }},
      {"head (master) is given as",
       [](StateByName& state, int) {
         for (auto& t : state.tensors)
           if (t.tensor.parameter == "head") t.tensor.shape = {5, 20};
       }},
      {"head (adamw.m) is given as bf16",
       [](StateByName& state, int) {
         for (auto& t : state.tensors)
           if (t.tensor.parameter == "head" && t.tensor.kind == "adamw.m") t.pieces[0].data.dtype = DType::bf16;
       }},
      {"elements of head (master) are not given",
       [](StateByName& state, int) {
         for (auto& t : state.tensors)
           if (t.tensor.parameter == "head") t.pieces.clear();
       }},
      {"rank 1 is given other tensors than rank 0",
       [](StateByName& state, int rank) {
         if (rank == 1) state.tensors.pop_back();
       }},
      {"rank 1 is given other values of head (master) than rank 0",
       [](StateByName& state, int rank) {
         for (auto& t : state.tensors)
           if (rank == 1 && t.tensor.parameter == "head" && t.tensor.kind == kMasterKind)
             *t.pieces[0].data.as<float>() += 1;
       }},
  };
  for (const Try& one : tries) {
    CAPTURE(one.text);
    const auto results = on_ranks(2, [&](World& world) {
      ChainRun run(world, {.seed = 7});
      const auto before = run.weights();
      Whole own = whole;
      StateByName state = as_state(own);
      one.change(state, world.rank());
      std::string said;
      try {
        load_by_name(state_of(world, run), state);
      } catch (const AgreedError& error) {
        said = error.what();
      }
      return std::pair(said, run.weights() == before);
    });
    for (const auto& [said, is_as_before] : results) {
      CHECK_THAT(said, Contains(one.text));
      CHECK(is_as_before);
    }
  }
  const auto lenient = on_ranks(2, [&](World& world) {
    ChainRun run(world, {.seed = 7});
    const auto before = run.weights();
    Whole own = whole;
    StateByName state = as_state(own);
    tries[0].change(state, 0);
    tries[2].change(state, 0);
    const auto found = load_by_name(state_of(world, run), state, {.strict = false});
    const auto after = run.weights();
    return std::tuple(found.missing, found.unexpected, after[0] == before[0],
                      after[1] == whole.values.at("layer0.weight (master)"));
  });
  for (const auto& [missing, unexpected, stays, is_loaded] : lenient) {
    CHECK((missing == std::vector<std::string>{"head (master)"}));
    CHECK((unexpected == std::vector<std::string>{"tail (master)"}));
    CHECK(stays);
    CHECK(is_loaded);
  }
}

TEST_CASE(
    "1-28: frozen parameters may be left out, ignored ones are in the state, and it is read and loaded between steps "
    "only") {
  const auto results = on_ranks(2, [](World& world) {
    std::vector<float> tail(kChainWidth * kChainWidth, 0.5f);
    ChainRun run(world, {}, [&](Chain& chain, ShardedRuntime& runtime) {
      chain.head.bind({tail.data(), std::ssize(tail), DType::f32, DeviceKind::cpu});
      shard_module(chain, runtime, Units::block, [&](const Parameter& parameter) { return &parameter == &chain.head; });
    });
    run.model.layers[0]->weight.set_trainable(false);
    const TrainingState state = state_of(world, run);
    std::string problem;
    const auto expect = [&](bool holds, const char* what) { problem += holds ? "" : fmt::format("{}; ", what); };
    const StateByName all = state_by_name(state, {.whole = true, .on_host = true, .only_rank = 1});
    const StateByName trained = state_by_name(state, {.whole = true, .on_host = true, .with_frozen = false});
    expect(all.find("head") != nullptr && all.find("head", "adamw.m") == nullptr, "the ignored parameter");
    expect(all.find("layer0.weight") != nullptr && trained.find("layer0.weight") == nullptr, "the frozen parameter");
    expect(trained.find("layer0.bias") != nullptr && !trained.updates.contains("layer0.weight"), "the others");
    std::fill(tail.begin(), tail.end(), 2.0f);
    load_by_name(state, all, {.only_rank = 1});
    expect(std::count(tail.begin(), tail.end(), 0.5f) == std::ssize(tail), "the ignored parameter is not loaded");
    expect(message_of([&] { load_by_name(state, trained, {.with_frozen = false}); }).empty(), "without frozen ones");
    expect(message_of([&] { load_by_name(state, trained); }).find("layer0.weight (master) is missing") !=
               std::string::npos,
           "strict");
    expect(message_of([&] { state_by_name(state, {.only_rank = 0}); }).find("pass whole = true") != std::string::npos,
           "one rank's shards");
    expect(
        message_of([&] { load_by_name(state, all, {.only_rank = 2}); }).find("from rank 2 of 2") != std::string::npos,
        "no such rank");
    {
      const UnshardScope scope(run.runtime, {1}, {.writes_back = false});
      expect(message_of([&] { state_by_name(state); }).find("UnshardScope of unit layer0") != std::string::npos,
             "in a scope");
      expect(message_of([&] { load_by_name(state, all); }).find("UnshardScope of unit layer0") != std::string::npos,
             "loaded in a scope");
    }
    run.runtime.unshard(2).wait();
    expect(message_of([&] { load_by_name(state, all, {.only_rank = 1}); }).find("unit layer1") != std::string::npos,
           "while unsharded");
    run.runtime.reshard(2);
    run.runtime.begin_micro_batch(Mode::eval, true);
    expect(message_of([&] { state_by_name(state); }).find("within an evaluation") != std::string::npos,
           "in a micro-batch");
    run.runtime.end_micro_batch();
    run.device->synchronize();
    run.model.head.unbind();
    return problem;
  });
  for (const std::string& problem : results) CHECK(problem == "");
}

TEST_CASE("1-28, 1-35, 2A-29: without the optimizer its moments and numbers of updates are neither read nor loaded") {
  LoadOptions load{.with_optimizer = false};
  if (GENERATE(false, true)) load.only_rank = 1;
  Whole whole = trained_whole({}, 1);
  const auto problems = on_ranks(2, [&](World& world) {
    ChainRun run(world, {.seed = 9});
    train(run, 0, 2);
    const TrainingState state = state_of(world, run);
    std::string problem;
    const auto expect = [&](bool holds, const std::string& what) { problem += holds ? "" : what + "; "; };
    for (const bool is_whole : {false, true}) {
      const StateByName read = state_by_name(state, {.whole = is_whole, .on_host = true, .with_optimizer = false});
      expect(read.tensors.size() == 7 && read.updates.empty(), "more than the weights are read");
      for (const HeldTensor& held : read.tensors) expect(held.tensor.kind == kMasterKind, held.tensor.kind);
      expect(message_of([&] { load_by_name(state, read, {.with_optimizer = false}); }).empty(), "not loaded again");
    }
    const StateByName views = state_by_name(state);  // 1-35: they show what a later step has made of them
    train(run, 2, 1);
    expect(values_of(views) == values_of(state_by_name(state)), "views are old");
    const Named before = values_of(state_by_name(state, {.whole = true, .on_host = true}));
    Whole given = whole;
    const bool is_source = load.only_rank.value_or(world.rank()) == world.rank();
    load_by_name(state, is_source ? as_state(given) : StateByName{}, load);
    const StateByName now = state_by_name(state, {.whole = true, .on_host = true});
    for (const auto& [name, values] : values_of(now))
      expect(values == (name.ends_with("(master)") ? whole.values : before).at(name), name);
    for (const auto& [name, updates] : now.updates) expect(updates == 3, "updates of " + name);
    return problem;
  });
  for (const std::string& problem : problems) CHECK(problem == "");
}

}  // namespace zs::test::state_by_name_test
