// A program's main function, over one rank and over threads as ranks; what mpirun starts is in tests/train/program.
#include "model/job/run.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <stdexcept>

#include "model/job/rank_gpus.h"
#include "model/nn/linear.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/optimizers/adamw.h"
#include "runtime/tensor/reduction.h"
#include "tests/stderr_of.h"

namespace zs::test::run_test {
namespace {

using Catch::Contains;

/// The code, and what was printed to stderr.
std::pair<int, std::string> outcome(const std::function<void(Job&)>& body, const RunOptions& options = {}) {
  std::array<char, 24> name{"/somewhere/program"}, argument{"--fast"};
  std::array<char*, 3> argv{name.data(), argument.data(), nullptr};
  int code = -1;
  const std::string text = stderr_of([&] { code = run(2, argv.data(), body, options); });
  return {code, text};
}

std::ptrdiff_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

}  // namespace

TEST_CASE("zs::run gives its body the ranks, a device and the arguments, and 0") {
  const int ranks = GENERATE(0, 1, 3);
  std::atomic<int> seen = 0;
  std::atomic<bool> is_right = true;
  const auto [code, text] = outcome(
      [&](Job& job) {
        Linear net("net", 4, 4);
        ShardedModel model = fully_shard(net, job);
        AdamW optimizer(model.executor(), {});
        {
          auto micro_batch = model.micro_batch();
          sum(net(Tensor::zeros(job.context, {2, 4}, DType::f32))).backward();
        }
        optimizer.step(0.1f);
        is_right = is_right && job.arguments == std::vector<std::string>{"--fast"} &&
                   job.ranks() == std::max(1, ranks) && job.is_first() == (job.rank() == 0) &&
                   &job.context.device() == &job.device;
        ++seen;
      },
      {.timeout_s = 60, .threads = 1, .local_ranks = ranks});
  CHECK(code == 0);
  CHECK(text.empty());
  CHECK(seen == std::max(1, ranks));
  CHECK(is_right);
}

TEST_CASE("a program computes on a GPU where every rank can use one, and on what it asks for") {
  const int ranks = GENERATE(1, 3);
  const bool has_gpu = look_for_gpu({}).lacks.empty();
  const auto kind_on = [&](const std::string& device) {
    std::atomic<int> gpus = 0;
    RunOptions options{.timeout_s = 60, .threads = 1, .local_ranks = ranks, .device = device};
    options.cuda.share_gpu = true;
    const auto [code, text] = outcome([&](Job& job) { gpus += job.device.kind() == DeviceKind::cuda; }, options);
    return fmt::format("code {}, {} of {} ranks on GPUs, {} lines", code, gpus.load(), ranks, lines(text));
  };
  CHECK(kind_on("cpu") == fmt::format("code 0, 0 of {} ranks on GPUs, 0 lines", ranks));
  CHECK(kind_on("tpu") == fmt::format("code 64, 0 of {} ranks on GPUs, 1 lines", ranks));
  if (has_gpu) {
    CHECK_THAT(kind_on("auto"), Contains(fmt::format("code 0, {} of", ranks)));
    CHECK_THAT(kind_on("cuda"), Contains(fmt::format("code 0, {} of", ranks)));
  } else {
    CHECK_THAT(kind_on("auto"), Contains("code 0, 0 of"));
    CHECK(kind_on("cuda") == fmt::format("code 78, 0 of {} ranks on GPUs, 1 lines", ranks));
  }
}

TEST_CASE("a transport that there is not is refused, also where nothing would communicate") {
  const int ranks = GENERATE(0, 2);
  const auto [code, text] =
      outcome([](Job&) {}, {.timeout_s = 60, .threads = 1, .transport = "tcp", .local_ranks = ranks});
  CHECK(code == static_cast<int>(ExitCode::usage));
  CHECK_THAT(text, Contains("no transport is called \"tcp\""));
}

TEST_CASE("what a body throws is one line, and an exit code") {
  const int ranks = GENERATE(0, 3);
  CAPTURE(ranks);
  const RunOptions options{.timeout_s = 60, .threads = 1, .local_ranks = ranks};
  const auto usage = outcome([](Job&) { throw UsageError("this was wrong", "do that"); }, options);
  CHECK(usage.first == static_cast<int>(ExitCode::usage));
  CHECK(usage.second == "program: error: this was wrong: do that\n");
  const auto foreign = outcome([](Job&) { throw std::runtime_error("mine"); }, options);
  CHECK(foreign.first == 1);
  CHECK(foreign.second == "program: error: mine\n");
  const auto no_exception = outcome([](Job&) { throw 3; }, options);
  CHECK(no_exception.first == 1);
  CHECK(lines(no_exception.second) == 1);
  // Work that nobody has waited for when the body returns.
  const auto late = outcome(
      [](Job& job) {
        job.context.launch({"late", {}, {}}, [](ExecContext&) { throw Error(ExitCode::io, "the disk is full"); });
      },
      options);
  CHECK(late.first == static_cast<int>(ExitCode::io));
  CHECK_THAT(late.second, Contains("program: error: the disk is full"));
}

TEST_CASE("one rank that fails ends those that wait for it, with its own line") {
  const auto [code, text] = outcome(
      [](Job& job) {
        Linear net("net", 4, 4);
        ShardedModel model = fully_shard(net, job);
        if (job.rank() == 1) throw Error(ExitCode::dataset, "no data here", "a.bin");
        auto micro_batch = model.micro_batch();
        sum(net(Tensor::zeros(job.context, {2, 4}, DType::f32))).backward();
        micro_batch.end();
        job.device.synchronize();
      },
      {.timeout_s = 60, .threads = 1, .local_ranks = 3});
  CHECK(code == static_cast<int>(ExitCode::dataset));
  CHECK_THAT(text, Contains("program: error: no data here (a.bin"));
}

namespace {

/// A classifier that the body owns, with what trains it.
struct Classifier {
  explicit Classifier(Job& of) : job(of), model(fully_shard(net, of)), optimizer(model.executor(), {}) {}
  Tensor loss(std::int32_t target) {
    return cross_entropy(net(Tensor::from_host(job.context, {2, 4}, std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8})),
                         Tensor::from_host(job.context, {2}, std::vector<std::int32_t>{0, target}));
  }
  void step(std::int32_t target, float lr) {
    auto micro_batch = model.micro_batch();
    loss(target).backward();
    micro_batch.end();
    optimizer.step(lr);
  }
  Job& job;
  Linear net{"net", 4, 4};
  ShardedModel model;
  AdamW optimizer;
};

}  // namespace

TEST_CASE("an error of a model's last steps, which ends before anybody waits for it, is one line and its exit code") {
  const int ranks = GENERATE(0, 2);
  CAPTURE(ranks);
  const RunOptions options{.timeout_s = 60, .threads = 1, .local_ranks = ranks, .device = "cpu"};
  const auto [code, text] = outcome([](Job& job) { Classifier(job).step(7, 0.1f); }, options);
  CHECK(code == static_cast<int>(ExitCode::usage));
  CHECK_THAT(text, Contains("program: error: ") && Contains("target 1 is 7"));
  CHECK(lines(text) == 1);
  if (ranks == 0) return;
  const auto [other, said] = outcome(
      [](Job& job) {
        Classifier classifier(job);
        for (int i = 0; i < 3; ++i) classifier.step(1, job.is_first() ? 0.1f : 0.2f);
      },
      options);
  CHECK(other == static_cast<int>(ExitCode::ranks_disagree));
  CHECK_THAT(said, Contains("program: error: the ranks disagree on the learning rate"));
  CHECK(lines(said) == 1);
}

TEST_CASE(
    "a kernel's error that every rank catches is over once the step is abandoned, with the bits of a run without it") {
  const int ranks = GENERATE(1, 2, 3);
  const bool is_abandoned_by_hand = GENERATE(false, true);
  const auto weights = [&](bool fails) {
    std::vector<std::vector<float>> found(static_cast<std::size_t>(ranks));
    const auto [code, text] = outcome(
        [&](Job& job) {
          Classifier classifier(job);
          classifier.step(1, 0.1f);
          if (fails) {
            try {
              auto micro_batch = classifier.model.micro_batch();
              const Tensor loss = classifier.loss(7);
              loss.backward();
              if (is_abandoned_by_hand) micro_batch.end();
              loss.to_host();
            } catch (const UsageError&) {
            }
            classifier.model.runtime().abandon_step();
          }
          for (int i = 0; i < 3; ++i) {
            classifier.step(2, 0.1f);
            job.device.synchronize();
          }
          classifier.model.executor().read_full(0, [&](const Parameter& parameter, const float* values) {
            auto& own = found[static_cast<std::size_t>(job.rank())];
            own.insert(own.end(), values, values + parameter.numel());
          });
        },
        {.timeout_s = 60, .threads = 1, .local_ranks = ranks, .device = "cpu"});
    CHECK(code == 0);
    CHECK(text.empty());
    return found;
  };
  CHECK(weights(true) == weights(false));
}

TEST_CASE("options of zs::run that make no sense are refused") {
  const auto nothing = [](Job&) {};
  for (const RunOptions& options :
       {RunOptions{.timeout_s = 0}, RunOptions{.threads = -1}, RunOptions{.local_ranks = -1}}) {
    const auto [code, text] = outcome(nothing, options);
    CHECK(code == static_cast<int>(ExitCode::usage));
    CHECK_THAT(text, Contains("zs::run with"));
  }
}

}  // namespace zs::test::run_test
