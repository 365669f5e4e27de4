// Several ranks replay their steps as CUDA graphs, whose communication NCCL has put there: on emulated GPUs, which end
// the test with a signal where the host touches their memory.
#include <catch2/catch.hpp>

#include <algorithm>
#include <barrier>
#include <stdexcept>
#include <thread>

#include "model/train/config/schedule.h"
#include "model/train/plan/plan.h"
#include "model/train/rank/step_agreement.h"
#include "model/train/run_dir/weights.h"
#include "tests/shard/gpu_ranks.h"
#include "tests/shard/scheme_cases.h"
#include "tests/skip.h"

namespace zs::test::cuda_graph_ranks_test {
namespace {

constexpr int kSteps = 5;

/// What a training of kSteps leaves on one rank.
struct Left {
  std::vector<float> losses, norms;
  std::string weights;
  bool operator==(const Left&) const = default;
};
struct RankRun {
  Left left;
  std::int64_t captures = 0, replays = 0;
  std::vector<std::string> messages = {};
};
/// On one rank, before it is given that step.
using Before = std::function<void(std::int64_t step, int rank, CudaDevice& device, Session& session)>;

void do_steps(const Config& config, World& world, CudaDevice& device, const TrainPlan& plan, const Before& before,
              RankRun& run, bool is_planned) {
  Session session(device, world, config);
  plan.apply_order(session.runtime());
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    before(step, world.rank(), device, session);
    session.enqueue_step(step, static_cast<float>(learning_rate(config.train, step - 1)), tiny_samples(config), false);
    const StepResult result = session.finish_step();
    if (is_planned && result.peak_bytes != plan.step_peak_bytes)
      throw std::runtime_error(
          fmt::format("step {} took {} bytes, planned were {}", step, result.peak_bytes, plan.step_peak_bytes));
    run.left.losses.insert(run.left.losses.end(), result.losses.begin(), result.losses.end());
    run.left.norms.push_back(result.grad_norm);
    if (StepReplay* const replay = session.replay()) run.messages.push_back(replay->take_message(step));
    if (config.run.validate_every > 0)
      run.left.losses.push_back(static_cast<float>(session.validate(tiny_samples(config))));
  }
  run.left.weights = save_weights(session.runtime().executor());
  if (StepReplay* const replay = session.replay()) {
    run.captures = replay->captures();
    run.replays = replay->replays();
  }
}

/// By rank. Without `before` memory is as planned.
std::vector<RankRun> train(GpuMachine& machine, int ranks, const Config& config, const Before& before = nullptr) {
  std::vector<RankRun> runs(static_cast<std::size_t>(ranks));
  machine.run(config, Transport::nccl, [&](World& world, CudaDevice& device, const TrainPlan& plan) {
    const Before nothing = [](std::int64_t, int, CudaDevice&, Session&) {};
    do_steps(config, world, device, plan, before ? before : nothing, runs[static_cast<std::size_t>(world.rank())],
             !before);
  });
  return runs;
}

Left expected_of(Config config, int ranks, const Before& before = nullptr) {
  config.cuda.graph = false;
  GpuMachine machine(ranks);
  return train(machine, ranks, config, before)[0].left;
}

void check_end(const GpuMachine& machine) {
  CHECK(machine.live_handles() == 0);
  if (machine.fake_nccl() == nullptr) return;
  CHECK(machine.fake_nccl()->registry().mistakes().empty());
  CHECK(machine.fake_nccl()->held_too_long() == 0);
}

void check_same_bits(Config config, int ranks, std::uint64_t seed) {
  config.train.warmup = 3;
  const Left expected = expected_of(config, ranks);
  config.cuda.graph = true;
  GpuMachine machine(ranks, seed);
  for (const RankRun& run : train(machine, ranks, config)) {
    CHECK(run.left == expected);
    CHECK(run.captures == 1);
    CHECK(run.replays == kSteps - 1);
  }
  check_end(machine);
}

Config graph_config(int ranks) {
  Config config = small_config(ranks);
  config.cuda.graph = true;
  return config;
}

/// The message of what ends a training, as the program would tell it.
std::string message_of_end(GpuMachine& machine, const Config& config, const Before& before) {
  try {
    train(machine, 2, config, before);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

StepVote vote(std::uint64_t graph, bool can_capture, std::string_view why = {}, std::uint64_t order = 1) {
  StepVote vote{.graph = graph, .order = order, .can_capture = can_capture};
  std::copy(why.begin(), why.end(), vote.why_neither_text.begin());
  return vote;
}

}  // namespace

TEST_CASE(
    "under every scheme, replayed steps of several GPUs have the bits of steps that are enqueued, in the memory of "
    "their plan") {
  const std::string name = GENERATE(from_range(scheme_names()));
  if (is_thinned_out()) return;
  const int number =
      static_cast<int>(std::find(scheme_names().begin(), scheme_names().end(), name) - scheme_names().begin());
  const int ranks = number % 2 == 0 ? 4 : 2;
  INFO(name << " on " << ranks << " GPUs");
  Config config = small_config(ranks);
  choose_scheme(config, scheme_of(name, ranks));
  const std::vector<std::string> layouts{"flat", "per_parameter", "small whole"};
  choose_layout(config, layouts[static_cast<std::size_t>(number) % layouts.size()]);
  if (number / 2 % 2 == 1) choose_bf16(config, number / 4 % 2 == 1 ? "bf16" : "f32");
  check_same_bits(config, ranks, static_cast<std::uint64_t>(number) + 1);
}

TEST_CASE(
    "replayed steps have the same bits where sums are made in rank order, with 8 bits on the wire, and between "
    "validations") {
  const auto [name, what] = GENERATE(table<std::string, std::string>(
      {{"zero3", "deterministic"}, {"hsdp", "int8"}, {"zero1", "validated"}, {"nested", "int8"}}));
  if (is_thinned_out()) return;
  const int ranks = name == "zero3" ? 3 : 4;
  Config config = small_config(ranks);
  choose_scheme(config, scheme_of(name, ranks));
  config.train.deterministic = what == "deterministic";
  if (what == "int8") config.shard.compress_gather = config.shard.compress_reduce = "int8";
  config.run.validate_every = what == "validated" ? 1 : 0;
  config.run.validate_batches = 1;
  check_same_bits(config, ranks, 7);
}

TEST_CASE("a rank that cannot replay a step takes the others along, and so does one that cannot capture it") {
  const int ranks = 3, odd_one = GENERATE(0, 2);
  Config config = graph_config(ranks);
  config.cuda.registration = "off";  // whose places one more block would move
  const bool is_timed = GENERATE(false, true);
  if (is_thinned_out()) return;
  std::vector<Memory> held(static_cast<std::size_t>(ranks));
  std::vector<std::vector<std::int64_t>> replays(static_cast<std::size_t>(ranks));
  const Before change = [&](std::int64_t step, int rank, CudaDevice& device, Session& session) {
    const auto own = static_cast<std::size_t>(rank);
    if (session.replay() != nullptr) replays[own].push_back(session.replay()->replays());
    if (rank != odd_one) return;
    if (is_timed) {
      if (step == 2) device.profile().start();
      if (step == 4) device.profile().stop();
    } else if (step == 3) {
      held[own] = device.pool().acquire(64, device.stream(StreamRole::compute), "held");
    }
    if (step == kSteps) held[own] = {};
  };
  const Left expected = expected_of(config, ranks, change);
  GpuMachine machine(ranks);
  const std::vector<RankRun> runs = train(machine, ranks, config, change);
  for (std::size_t rank = 0; rank < runs.size(); ++rank) {
    CHECK(runs[rank].left == expected);
    CHECK(runs[rank].captures == (is_timed ? 1 : 2));
    // Steps 2, 4 and none of 3 and 5, whose memory is other than that of the step before; or 4 and 5, which are timed
    // no longer.
    CHECK(replays[rank] ==
          (is_timed ? std::vector<std::int64_t>{0, 0, 0, 0, 1} : std::vector<std::int64_t>{0, 0, 1, 1, 2}));
    CHECK(runs[rank].messages[is_timed ? 1 : 0] ==
          (is_timed ? fmt::format("step 2: not captured as a CUDA graph: its operations are timed (rank {})", odd_one)
                    : ""));
  }
  check_end(machine);
}

TEST_CASE(
    "I5: a rank that would communicate otherwise in a graph is named before it is launched, and no weight has "
    "changed") {
  const int wrong_step = GENERATE(2, 4), wrong_rank = GENERATE(0, 1);  // captured, replayed
  if (is_thinned_out()) return;
  const Config config = graph_config(2);
  GpuMachine machine(2);
  std::vector<std::string> told(2), before(2), after(2);
  std::vector<int> launches(2);
  machine.run(config, Transport::nccl, [&](World& world, CudaDevice& device, const TrainPlan& plan) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Session session(device, world, config);
    plan.apply_order(session.runtime());
    for (std::int64_t step = 1; step < wrong_step; ++step) {
      session.enqueue_step(step, 1e-2f, tiny_samples(config), false);
      session.finish_step();
    }
    before[rank] = save_weights(session.runtime().executor());
    if (world.rank() == wrong_rank) session.runtime().order_check().note({{Action::Kind::reduce, 2}}, Mode::train);
    launches[rank] = machine.emulated()->calls("cuGraphLaunch");
    try {
      session.enqueue_step(wrong_step, 1e-2f, tiny_samples(config), false);
    } catch (const OrderMismatch& mismatch) {
      told[rank] = mismatch.what();
    }
    launches[rank] -= machine.emulated()->calls("cuGraphLaunch");
    after[rank] = save_weights(session.runtime().executor());
  });
  for (const std::string& message : told) {
    CHECK(message == told[0]);
    CHECK_THAT(message, Catch::Contains(fmt::format(
                            "the ranks disagree on the order of communication in step {}, operation ", wrong_step)) &&
                            Catch::Contains(fmt::format("rank {} reduce(blocks.1)", wrong_rank)));
  }
  CHECK(launches == std::vector<int>{0, 0});
  CHECK(after == before);
  check_end(machine);
}

TEST_CASE("an error of NCCL in a replayed step ends all ranks in time, and names call, rank and GPU") {
  const Config config = graph_config(2);
  GpuMachine machine(2);
  FakeNccl& nccl = *machine.fake_nccl();
  std::barrier<> are_launched(2);
  std::vector<std::string> told(2);
  const auto body = [&](World& world, CudaDevice& device, const TrainPlan& plan) {
    Session session(device, world, config);
    plan.apply_order(session.runtime());
    const auto enqueue = [&](std::int64_t step) { session.enqueue_step(step, 1e-2f, tiny_samples(config), false); };
    for (std::int64_t step = 1; step <= 3; ++step) {
      enqueue(step);
      session.finish_step();
    }
    are_launched.arrive_and_wait();
    machine.emulated()->stand_still(true);
    enqueue(4);
    are_launched.arrive_and_wait();
    if (world.rank() == 1) {
      nccl.fail_behind(2, 1, 3);
    } else {  // of its operations none has met those of rank 1, nor ever will
      while (nccl.calls("ncclCommAbort") == 0) std::this_thread::yield();
      machine.emulated()->stand_still(false);
    }
    try {
      session.finish_step();
    } catch (const Error& error) {
      told[static_cast<std::size_t>(world.rank())] = error.what();
      throw;
    }
  };
  CHECK_THROWS_WITH(machine.run(config, Transport::nccl, body), Catch::Contains("ncclCommGetAsyncError: NCCL error 3"));
  CHECK_THAT(told[1], Catch::Contains("NCCL error 3") && Catch::Contains("rank 1 of 2, GPU 1"));
  CHECK_THAT(told[0], Catch::Contains("another rank has failed"));
  check_end(machine);
}

TEST_CASE("an error of NCCL while a step is captured ends all ranks, and names call, unit, rank and GPU") {
  const Config config = graph_config(2);
  GpuMachine machine(2);
  const Before fail = [&](std::int64_t step, int rank, CudaDevice&, Session&) {
    if (step == 2 && rank == 0) machine.fake_nccl()->fail("ncclReduceScatter", 3);
  };
  CHECK_THAT(message_of_end(machine, config, fail), Catch::Contains("ncclReduceScatter: NCCL error 3") &&
                                                        Catch::Contains("reduce_scatter(blocks.") &&
                                                        Catch::Contains("of 2, GPU "));
  check_end(machine);
}

TEST_CASE("a rank that fails between replayed steps ends the others, and is named") {
  const Config config = graph_config(2);
  GpuMachine machine(2);
  const Before fail = [&](std::int64_t step, int rank, CudaDevice&, Session&) {
    if (step == 4 && rank == 0) throw Error(ExitCode::io, "a file of this rank cannot be read", "rank 0");
  };
  CHECK(message_of_end(machine, config, fail) == "a file of this rank cannot be read (rank 0)");
  check_end(machine);
}

TEST_CASE("a session whose ranks are staged refuses graphs") {
  const Config config = graph_config(2);
  GpuMachine machine(2);
  std::vector<std::string> told(2);
  machine.run(config, Transport::staged, [&](World& world, CudaDevice& device, const TrainPlan&) {
    try {
      Session session(device, world, config);
    } catch (const Error& error) {
      told[static_cast<std::size_t>(world.rank())] =
          fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
    }
  });
  for (const std::string& message : told)
    CHECK_THAT(message, Catch::StartsWith("78: cuda.graph = true does not go with ranks that are staged"));
}

TEST_CASE("ranks replay where all have the same graph, capture where all can, and else enqueue") {
  using Votes = std::vector<StepVote>;
  const auto way = [](const Votes& votes) { return choose_way(votes).way; };
  CHECK(way({vote(5, false), vote(5, false)}) == StepWay::replay);
  CHECK(way({vote(5, false), vote(6, false)}) == StepWay::enqueue);
  CHECK(way({vote(5, false), vote(0, true)}) == StepWay::enqueue);
  CHECK(way({vote(5, true), vote(0, true)}) == StepWay::capture);
  CHECK(way({vote(0, true), vote(0, true)}) == StepWay::capture);
  CHECK(way({vote(0, false), vote(0, true)}) == StepWay::enqueue);
  CHECK(way({vote(5, false), vote(5, false), vote(5, false, "it is odd")}) == StepWay::enqueue);
  CHECK(choose_way(Votes{vote(5, false), vote(5, false, "it is odd")}).obstacle == "it is odd (rank 1)");
  CHECK(choose_way(Votes{vote(5, false, "it is odd")}).obstacle == "it is odd");
  CHECK(choose_way(Votes{vote(5, false), vote(5, false)}).is_order_alike);
  CHECK_FALSE(choose_way(Votes{vote(5, false), vote(5, false, {}, 2)}).is_order_alike);
}

}  // namespace zs::test::cuda_graph_ranks_test
