// Several ranks train a small GPT-2, each on a GPU: over NCCL, and staged through the hosts. Emulated GPUs end the test
// with a signal where the host touches their memory.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "model/train/plan/gpu_ranks.h"
#include "model/train/session/session.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/gpu_ranks.h"
#include "tests/shard/scheme_cases.h"
#include "tests/skip.h"

namespace zs::test::cuda_ranks_test {
namespace {

/// As with one rank (cuda_training_test): other orders of f32 sums, and roundings of bf16 that tip over, after some
/// steps at a high rate.
constexpr double kF32Tolerance = 1e-4, kBf16Tolerance = 2e-2;

void check_alike(const TinyResult& gpu, const TinyResult& cpu, double tolerance) {
  REQUIRE(gpu.losses.size() == cpu.losses.size());
  for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
    INFO("micro-batch " << i);
    CHECK(std::abs(static_cast<double>(gpu.losses[i] - cpu.losses[i])) <=
          tolerance * static_cast<double>(cpu.losses[i]));
  }
  for (std::size_t i = 0; i < cpu.grad_norms.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(std::abs(static_cast<double>(gpu.grad_norms[i] - cpu.grad_norms[i])) <=
          10 * tolerance * static_cast<double>(cpu.grad_norms[i]));
  }
}

const char* text_of(Transport transport) { return transport == Transport::nccl ? "nccl" : "staged"; }

/// Nothing that NCCL refuses was done, and where ranks have equal shards, what they gather and reduce was registered,
/// at the same places.
void check_registered(const GpuMachine& machine, bool are_alike) {
  if (machine.fake_nccl() == nullptr) return;
  CHECK(machine.fake_nccl()->registry().mistakes().empty());
  CHECK(machine.fake_nccl()->registry().blocks() == 0);
  if (!are_alike) return;
  CHECK(machine.fake_nccl()->registered().collectives > 0);
  CHECK(machine.fake_nccl()->registered().displaced == 0);
}

/// One scheme on so many ranks. Layouts, dtypes and what connects the GPUs take turns with `number`, so that any two of
/// them meet somewhere.
void check_scheme(const std::string& name, int ranks, int number) {
  Config config = small_config(ranks);
  choose_scheme(config, scheme_of(name, ranks));
  const std::vector<std::string> layouts{"flat", "per_parameter", "small whole"};
  choose_layout(config, layouts[static_cast<std::size_t>(number) % layouts.size()]);
  const bool is_bf16 = number % 2 == 1;
  if (is_bf16) choose_bf16(config, number % 4 == 1 ? "bf16" : "f32");
  config.run.validate_every = 2;
  config.run.validate_batches = 1;
  GpuMachine machine(ranks, static_cast<std::uint64_t>(number) + 1);
  const Transport transport = number / 2 % 2 == 0 && machine.has_nccl() ? Transport::nccl : Transport::staged;
  INFO(text_of(transport) << ", " << config.shard.layout << ", " << config.precision.param);
  const TinyResult cpu = train_tiny(config, {.ranks = ranks, .steps = 2});
  check_alike(machine.train(config, transport, {.steps = 2}), cpu, is_bf16 ? kBf16Tolerance : kF32Tolerance);
  CHECK(machine.live_handles() == 0);
  check_registered(machine, transport == Transport::nccl && config.shard.layout == "flat");
}

/// The message of what ends a training in which every rank does `body`; a cause comes before what follows from it.
std::string message_of_end(GpuMachine& machine, const Config& config, Transport transport,
                           const GpuMachine::Body& body) {
  try {
    machine.run(config, transport, body);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("every scheme trains on several GPUs with the CPU's losses, in the memory of its plan") {
  const std::string name = GENERATE(from_range(scheme_names()));
  int number = static_cast<int>(std::find(scheme_names().begin(), scheme_names().end(), name) - scheme_names().begin());
  for (const int ranks : {2, 3, 4}) {
    if (ranks == 3 && (name.find("small") != name.npos || name == "hsdp k")) continue;  // groups of two
    DYNAMIC_SECTION(name << " on " << ranks << " GPUs") {
      if (!is_thinned_out()) check_scheme(name, ranks, number);
    }
    ++number;
  }
}

TEST_CASE("I1: a deterministic training has the same bits on any number of GPUs, over NCCL and staged") {
  const auto [name, layout, is_bf16] =
      GENERATE(std::tuple("zero3", "flat", false), std::tuple("hsdp", "per_parameter", true),
               std::tuple("ddp", "small whole", false));
  if (is_thinned_out()) return;
  Config config = small_config(4);
  config.train.deterministic = true;
  if (is_bf16) choose_bf16(config, "bf16");
  choose_layout(config, layout);
  std::set<std::string> weights, losses;
  for (const auto& [ranks, transport] :
       {std::pair(1, Transport::staged), {2, Transport::nccl}, {4, Transport::staged}, {4, Transport::nccl}}) {
    GpuMachine machine(ranks, static_cast<std::uint64_t>(ranks));
    if (transport == Transport::nccl && !machine.has_nccl()) continue;
    choose_scheme(config, scheme_of(name, ranks));
    const TinyResult result = machine.train(config, transport, {.steps = 2});
    weights.insert(result.weights);
    losses.insert(fmt::format("{}, {}", fmt::join(result.losses, " "), fmt::join(result.grad_norms, " ")));
  }
  CHECK(weights.size() == 1);
  CHECK(losses.size() == 1);
}

TEST_CASE(
    "with 8 bits on the wire several GPUs train with the CPU's losses, in the memory of the plan, over NCCL and "
    "staged") {
  const auto [name, layout, is_bf16] =
      GENERATE(std::tuple("zero3", "flat", false), std::tuple("nested", "per_parameter", true),
               std::tuple("hsdp", "flat", false));
  if (is_thinned_out()) return;
  const int ranks = std::string(name) == "zero3" ? 3 : 4;
  Config config = small_config(ranks);
  choose_scheme(config, scheme_of(name, ranks));
  choose_layout(config, layout);
  if (is_bf16) choose_bf16(config, "bf16");
  const TinyResult exact = train_tiny(config, {.ranks = ranks, .steps = 2});
  config.shard.compress_gather = std::string(name) == "hsdp" ? "fp8" : "int8";
  config.shard.compress_reduce = "int8";
  const TinyResult cpu = train_tiny(config, {.ranks = ranks, .steps = 2});
  for (const Transport transport : {Transport::nccl, Transport::staged}) {
    GpuMachine machine(ranks, static_cast<std::uint64_t>(ranks));
    if (transport == Transport::nccl && !machine.has_nccl()) continue;
    INFO(name << ", " << text_of(transport));
    const TinyResult gpu = machine.train(config, transport, {.steps = 2});
    check_alike(gpu, cpu, is_bf16 ? kBf16Tolerance : kF32Tolerance);
    CHECK(gpu.weights != exact.weights);
    CHECK(std::abs(gpu.losses[0] - cpu.losses[0]) <
          0.1f * std::abs(exact.losses[0] - cpu.losses[0]));  // the CPU's roundings, not others
    CHECK(machine.live_handles() == 0);
  }
}

TEST_CASE(
    "units of several blocks, as are the default over NCCL, train on several GPUs with the CPU's losses, in the memory "
    "of the plan") {
  const std::string name = GENERATE(as<std::string>{}, "zero3", "zero3 k", "nested", "hsdp", "zero1");
  const bool is_default = GENERATE(true, false), is_bf16 = name == "zero3" || name == "hsdp";
  if (is_thinned_out()) return;
  constexpr int kRanks = 4;
  Config config = small_config(kRanks);
  choose_scheme(config, scheme_of(name, kRanks));
  choose_layout(config, is_default ? "flat" : "per_parameter");
  if (is_bf16) choose_bf16(config, "bf16");
  config.train.recompute = {is_default ? "none" : "block"};
  config.model.layers = 4;
  const TinyResult cpu = train_tiny(config, {.ranks = kRanks, .steps = 2});
  config.shard.unit_mib = is_default ? -1 : is_bf16 ? 0.0125 : 0.025;  // a block has 6.4 KiB in bf16
  for (const Transport transport : {Transport::nccl, Transport::staged}) {
    GpuMachine machine(kRanks, static_cast<std::uint64_t>(is_default) + 1);
    if (transport == Transport::nccl && !machine.has_nccl()) continue;
    INFO(name << ", " << text_of(transport));
    const TrainPlan plan = make_plan(config, {.ranks = kRanks, .device = DeviceKind::cuda, .transport = transport});
    CHECK(plan.units.size() == (!is_default ? 3 : transport == Transport::nccl ? 2 : 5));
    check_alike(machine.train(config, transport, {.steps = 2}), cpu, is_bf16 ? kBf16Tolerance : kF32Tolerance);
    CHECK(machine.live_handles() == 0);
    check_registered(machine, transport == Transport::nccl && is_default);
  }
}

TEST_CASE("I2: checkpoints go from several GPUs to the CPU and to other numbers of GPUs, and back") {
  const TempDir folder;
  const Transport transport = GENERATE(Transport::nccl, Transport::staged);
  Config config = small_config(6);
  config.train.deterministic = true;
  choose_bf16(config, "f32");
  choose_layout(config, transport == Transport::nccl ? "flat" : "per_parameter");
  const auto on_gpus = [&](int ranks, const TinyOptions& options) {
    GpuMachine machine(ranks);
    return machine.train(config, machine.has_nccl() ? transport : Transport::staged, options);
  };
  const TinyResult written = on_gpus(2, {.steps = 1, .checkpoints = folder / "gpu"});
  CHECK(train_tiny(config, {.ranks = 1, .steps = 1, .resume = written.saved}).weights == written.weights);
  CHECK(train_tiny(config, {.ranks = 3, .steps = 1, .resume = written.saved}).weights == written.weights);
  const TinyResult whole = on_gpus(2, {.steps = 2}), rest = on_gpus(3, {.steps = 2, .resume = written.saved});
  CHECK(rest.weights == whole.weights);
  const TinyResult cpu = train_tiny(config, {.ranks = 2, .steps = 1, .checkpoints = folder / "cpu"});
  CHECK(on_gpus(3, {.steps = 1, .resume = cpu.saved}).weights == cpu.weights);
}

TEST_CASE("memory is registered with NCCL, or not, as cuda.register says, and a run tells") {
  GpuMachine machine(2);
  if (machine.fake_nccl() == nullptr) return skip("what is registered is counted by the made-up NCCL");
  Config config = small_config(2);
  config.cuda.registration = GENERATE("auto", "off");
  std::array<std::string, 2> told;
  machine.run(config, Transport::nccl, [&](World& world, CudaDevice& device, const TrainPlan& plan) {
    train_tiny(world, device, &plan, config, {.steps = 1});
    told[static_cast<std::size_t>(world.rank())] = describe_registration(world, config);
  });
  const bool is_on = config.cuda.registration == "auto";
  CHECK((machine.fake_nccl()->registered().collectives > 0) == is_on);
  CHECK((machine.fake_nccl()->calls("ncclMemAlloc") > 0) == is_on);
  for (const std::string& text : told)
    CHECK_THAT(text, is_on ? Catch::Matches("nccl: .* registered with [0-9]+ communicators") : Catch::Matches(""));
  CHECK(machine.live_handles() == 0);
}

TEST_CASE("full parameters on several GPUs are written back by each rank, and a lost write of one is told to all") {
  const Transport transport = GENERATE(Transport::nccl, Transport::staged);
  GpuMachine machine(2);
  if (transport == Transport::nccl && !machine.has_nccl()) return skip("one GPU");
  Config config = small_config(2);
  choose_layout(config, GENERATE("flat", "per_parameter"));
  std::vector<std::int64_t> kept(2);  // of what was to be zeroed, by rank
  std::vector<std::string> told(2);
  machine.run(config, transport, [&](World& world, CudaDevice& device, const TrainPlan&) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Session session(device, world, config);
    Context& context = session.runtime().context();
    Executor& executor = session.runtime().executor();
    const auto zero_weights = [&](const UnshardScope& scope, std::size_t unit) {
      for (const Parameter* parameter : executor.units()[unit].parameters) {
        const Buffer value = scope.value(*parameter);
        context.launch({"edit", {}, {value}},
                       [&kernels = context.kernels(), value](ExecContext& exec) { kernels.zero(exec, value); });
      }
    };
    {
      const UnshardScope scope(session.runtime(), {1});
      zero_weights(scope, 1);
    }
    executor.read_full(1, [&](const Parameter& parameter, const float* values) {
      kept[rank] += std::count_if(values, values + parameter.numel(), [](float value) { return value != 0; });
    });
    try {
      {
        const UnshardScope scope(session.runtime(), {2}, {.writes_back = false});
        if (rank == 1) zero_weights(scope, 2);
      }
      device.synchronize();
    } catch (const LostWrite& lost) {
      told[rank] = lost.what();
    }
  });
  CHECK(kept == std::vector<std::int64_t>{0, 0});
  for (const std::string& message : told)
    CHECK_THAT(message, Catch::Contains("the parameters of unit blocks.1 were written to and not"));
}

TEST_CASE("a rank that fails within a training on GPUs ends all of them, and is named") {
  const Transport transport = GENERATE(Transport::nccl, Transport::staged);
  GpuMachine machine(3);
  if (transport == Transport::nccl && !machine.has_nccl()) return skip("one GPU");
  const Config config = small_config(3);
  const auto body = [&](World& world, CudaDevice& device, const TrainPlan& plan) {
    train_tiny(world, device, &plan, config, {.steps = 1});
    if (world.rank() == 1) throw Error(ExitCode::io, "a file of this rank cannot be read", "rank 1");
    train_tiny(world, device, &plan, config, {.steps = 1});
  };
  CHECK(message_of_end(machine, config, transport, body) == "a file of this rank cannot be read (rank 1)");
  CHECK(machine.live_handles() == 0);
}

TEST_CASE("an error of NCCL within a training ends all ranks, and names call, unit, rank and GPU") {
  GpuMachine machine(3);
  if (machine.fake_nccl() == nullptr) return skip("errors are the made-up NCCL's");
  const Config config = small_config(3);
  const auto body = [&](World& world, CudaDevice& device, const TrainPlan& plan) {
    if (world.rank() == 0) machine.fake_nccl()->fail("ncclReduceScatter", 3);
    train_tiny(world, device, &plan, config, {.steps = 2});
  };
  CHECK_THAT(message_of_end(machine, config, Transport::nccl, body),
             Catch::Contains("ncclReduceScatter: NCCL error 3") && Catch::Contains("reduce_scatter(blocks.") &&
                 Catch::Contains("of 3, GPU "));
  CHECK(machine.live_handles() == 0);
}

}  // namespace zs::test::cuda_ranks_test
