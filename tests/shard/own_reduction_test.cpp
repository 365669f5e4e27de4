// A user's reduction in place of a scheme's first step.
#include <catch2/catch.hpp>

#include "runtime/device/step_verifier.h"
#include "tests/message_of.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::own_reduction_test {
namespace {

/// Twice the gradient, or another power of two of it, exactly, summed as ever.
struct Doubled : GradientReduction {
  explicit Doubled(float times = 2) : factor(times) {}
  std::string_view name() const override { return factor == 2 ? "doubled" : "scaled"; }
  void reduce(const Reduced& unit) const override {
    ++calls;
    unit.stream.enqueue({"double", {unit.full}, {unit.full}},
                        [&kernels = unit.kernels, full = unit.full, by = factor](ExecContext& exec) {
                          kernels.scale(exec, full, full, by);
                        });
    unit.group.reduce_scatter(unit.stream, unit.name, unit.full, unit.shard, unit.into);
  }
  float factor;
  mutable int calls = 0;  // of one rank's host thread
};

using Gradients = std::vector<std::vector<float>>;

/// A step of two micro-batches.
Gradients gradients(World& world, const ShardOptions& options, int* calls = nullptr) {
  const Doubled reduction;
  ShardOptions own = options;
  if (calls != nullptr) own.reduction = &reduction;
  ChainRun run(world, own);
  StepVerifier verifier(*run.device);
  run.micro_batch(0, false);
  run.micro_batch(1, true);
  run.runtime.executor().wait_reductions();
  Gradients found = run.gradients();
  verifier.check("the step");
  if (calls != nullptr) *calls = reduction.calls;
  return found;
}

Gradients scaled(Gradients gradients, float factor) {
  for (auto& unit : gradients)
    for (float& value : unit) value *= factor;
  return gradients;
}

}  // namespace

TEST_CASE("2A-26: a reduction of one's own takes the place of the first step, in every scheme") {
  const std::string name = GENERATE(from_range(main_schemes()));
  const int ranks = GENERATE(1, 2, 4);
  const Layout layout = GENERATE(Layout::flat, Layout::per_parameter);
  CAPTURE(name, ranks, layout);
  const ShardOptions options{.scheme = scheme_of(name, ranks), .layout = {.layout = layout}};
  const auto plain = on_ranks(ranks, [&](World& world) { return gradients(world, options); });
  std::vector<int> calls(static_cast<std::size_t>(ranks));
  const auto own = on_ranks(
      ranks, [&](World& world) { return gradients(world, options, &calls[static_cast<std::size_t>(world.rank())]); });
  for (std::size_t rank = 0; rank < plain.size(); ++rank) CHECK(own[rank] == scaled(plain[rank], 2));
  const bool is_each = name != "zero3 once" && name != "zero1";
  for (const int count : calls) CHECK(count == 4 * (is_each ? 2 : 1));
}

TEST_CASE("2A-26: one unit may be reduced otherwise than the rest, which have the scheme's or the runtime's own") {
  const bool has_own = GENERATE(false, true);
  const auto found = on_ranks(2, [&](World& world) {
    const Gradients plain = gradients(world, {});
    const Doubled reduction, of_all(0.5f);
    ShardOptions options;
    if (has_own) options.reduction = &of_all;
    ChainRun run(world, options, [&](Chain& chain, ShardedRuntime& runtime) {
      shard_module(
          chain, runtime, [](const Module& module) { return module.is_block(); }, {},
          [&](const Module& module) {
            return module.path() == "layer1" ? UnitPolicy{.reduction = &reduction} : UnitPolicy{};
          });
    });
    run.micro_batch(0, false);
    run.micro_batch(1, true);
    run.runtime.executor().wait_reductions();
    return std::pair(plain, run.gradients());
  });
  for (const auto& [plain, own] : found)
    for (std::size_t unit = 0; unit < own.size(); ++unit)
      CHECK(own[unit] == scaled(plain, unit == 2 ? 2 : has_own ? 0.5f : 1)[unit]);
}

TEST_CASE("2A-26: a reduction that one rank has alone is named, and int8 beside one is refused") {
  const std::string message = message_of([] {
    on_ranks(2, [](World& world) {
      ShardOptions options;
      const Doubled doubled;
      if (world.rank() == 1) options.reduction = &doubled;
      ChainRun run(world, options);
      run.micro_batch(0);
      run.optimizer->step(0.01f);
      run.device->synchronize();
      return 0;
    });
  });
  CHECK_THAT(message, Catch::Contains("reduction of gradients") && Catch::Contains("rank 0 has a reduce-scatter") &&
                          Catch::Contains("rank 1 has doubled"));
  CHECK_THAT(message_of([] {
               on_ranks(1, [](World& world) {
                 const Doubled doubled;
                 ChainRun run(world, {.precision = {.reduce_comm_dtype = CommDType::int8}, .reduction = &doubled});
                 return 0;
               });
             }),
             Catch::Contains("unit root") && Catch::Contains("int8") && Catch::Contains("\"doubled\""));
}

}  // namespace zs::test::own_reduction_test
