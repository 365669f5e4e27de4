#include <catch2/catch.hpp>

#include <algorithm>

#include "model/train/plan.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"

namespace zs::test {
namespace {

struct Bytes {
  std::int64_t gather = 0, gather_small = 0, reduce = 0, finish = 0;
  bool operator==(const Bytes&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Bytes& bytes) {
  return out << fmt::format("gather {} small {} reduce {} finish {}", bytes.gather, bytes.gather_small, bytes.reduce, bytes.finish);
}

Bytes bytes_of(const ShardGroups::Sent& sent) {
  return {sent.gather.sent_bytes(), sent.gather_small.sent_bytes(), sent.reduce.sent_bytes(), sent.finish.sent_bytes()};
}

/// What the closed formulas are made of. P: elements of a unit's padded flat parameter.
struct Job {
  Strategy strategy;
  std::int64_t ranks, group, between;  // W; N: of a small group; k
  std::int64_t micro_batches;          // M
  bool reshards, reduces_each, all_reduces_each, keeps_ends;
  std::int64_t param_bytes, reduce_bytes;
};

/// Of n ranks, each sends n - 1 of n equal parts.
std::int64_t parts(std::int64_t ranks, std::int64_t bytes) { return bytes / ranks * (ranks - 1); }

/// What one rank sends for a unit of P elements in a step: the formulas of docs/sharding.md.
Bytes formula(const Job& job, std::int64_t elems, int unit, int units) {
  const std::int64_t w = job.ranks, n = job.group, m = job.micro_batches, whole = elems * job.param_bytes,
                     gradient = elems * job.reduce_bytes;
  const bool is_kept_for_next = job.keeps_ends && unit <= 1;
  // The root's backward begins within its forward: the head computes its gradients there.
  const bool is_kept_for_backward = !job.reshards || unit == 0 || (job.keeps_ends && unit == units - 1);
  const std::int64_t forward = is_kept_for_next ? 1 : m, backward = is_kept_for_backward ? 0 : m, reductions = job.reduces_each ? m : 1;
  switch (job.strategy) {
    case Strategy::ddp: return {0, 0, 0, 2 * parts(w, elems * 4) * (job.all_reduces_each ? m : 1)};
    case Strategy::zero1:
    case Strategy::zero2: return {parts(w, whole), 0, reductions * parts(w, gradient), 0};
    case Strategy::zero3:
    case Strategy::grad_op:
      if (job.between == 0) return {(forward + backward) * parts(w, whole), 0, reductions * parts(w, gradient), 0};
      return {forward * parts(w, whole), backward * parts(job.between, whole), reductions * parts(w, gradient), 0};
    case Strategy::hsdp:
      return {(forward + backward) * parts(n, whole), 0, reductions * parts(n, gradient),
              2 * parts(w / n, elems / n * 4) * (job.all_reduces_each ? m : 1)};
    case Strategy::nested:
      return {parts(w / n, whole / n), (forward + backward) * parts(n, whole), reductions * parts(n, gradient),
              parts(w / n, elems / n * 4)};
  }
  return {};
}

struct Planned {
  Config config;
  Job job;
  TrainPlan plan;

  int masters() const {
    return static_cast<int>(job.strategy == Strategy::ddp ? 1 : job.strategy == Strategy::hsdp ? job.group : job.ranks);
  }
  std::int64_t full_elems(std::size_t unit) const { return plan.units[unit].shard_elems * masters(); }
  std::int64_t all_elems() const {
    std::int64_t sum = 0;
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) sum += full_elems(unit);
    return sum;
  }
  Bytes expected() const {
    Bytes sum;
    const int units = static_cast<int>(plan.units.size());
    for (int unit = 0; unit < units; ++unit) {
      const Bytes one = formula(job, full_elems(static_cast<std::size_t>(unit)), unit, units);
      sum = {sum.gather + one.gather, sum.gather_small + one.gather_small, sum.reduce + one.reduce, sum.finish + one.finish};
    }
    return sum;
  }
  /// The most bytes of one kind that are live at once.
  std::int64_t most(const std::string& label) const {
    std::int64_t most = 0;
    for (std::int64_t moment = 0; moment < std::ssize(plan.trace); ++moment) {
      std::int64_t live = 0;
      for (const PlannedBuffer& buffer : plan.buffers)
        if (buffer.label == label && buffer.is_live_at(moment)) live += buffer.bytes;
      most = std::max(most, live);
    }
    return most;
  }
};

Planned plan_of(const std::string& name, int ranks, int micro_batches, const std::string& param, bool keeps_ends) {
  const SchemeOptions options = scheme_of(name, ranks);
  Planned planned{.config = tiny_config(), .job = {}, .plan = {}};
  Config& config = planned.config;
  config.train.deterministic = false;
  config.train.global_batch = ranks * micro_batches;
  config.precision.param = param;
  config.precision.reduce = param;
  config.shard.strategy = name_of(options.strategy);
  config.shard.group_size = options.group_size;
  config.shard.reshard_after_forward = options.reshard_after_forward;
  config.shard.reduce_every_micro_batch = options.reduce_every_micro_batch;
  config.shard.all_reduce_every_micro_batch = options.all_reduce_every_micro_batch;
  config.shard.keep_ends = keeps_ends;
  const std::int64_t bytes = param == "bf16" ? 2 : 4;
  planned.job = {.strategy = options.strategy,
                 .ranks = ranks,
                 .group = options.group_size,
                 .between = options.reshard_after_forward.group(),
                 .micro_batches = micro_batches,
                 .reshards = !options.reshard_after_forward.is_off() && options.strategy != Strategy::grad_op,
                 .reduces_each = options.reduce_every_micro_batch && options.strategy != Strategy::zero1,
                 .all_reduces_each = options.all_reduce_every_micro_batch,
                 .keeps_ends = keeps_ends,
                 .param_bytes = bytes,
                 .reduce_bytes = bytes};
  planned.plan = make_plan(config, {.ranks = ranks, .has_every_micro_batch = true});
  return planned;
}

}  // namespace

TEST_CASE("bytes sent by a rank are the closed formula of its scheme, in the plan and in the run", "[traffic]") {
  int number = 0;
  for (const std::string& name : scheme_names()) {
    for (const int ranks : {4, 8}) {
      for (const int micro_batches : {1, 4}) {
        ++number;
        const Planned planned = plan_of(name, ranks, micro_batches, number % 2 == 0 ? "f32" : "bf16", number % 3 != 0);
        CAPTURE(name, ranks, micro_batches, planned.config.precision.param, planned.config.shard.keep_ends);
        CHECK(bytes_of(planned.plan.sent) == planned.expected());
        CHECK(planned.expected() != Bytes{});
        if (ranks == 8) continue;
        CHECK(bytes_of(train_tiny(planned.config, {.ranks = ranks, .steps = 2}).sent) == planned.expected());
      }
    }
  }
}

TEST_CASE("I4: what a scheme keeps of each role is its part of the model, exactly", "[traffic]") {
  for (const std::string& name : scheme_names()) {
    for (const int ranks : {4, 8}) {
      const Planned planned = plan_of(name, ranks, 4, ranks == 4 ? "f32" : "bf16", true);
      const Job& job = planned.job;
      CAPTURE(name, ranks);
      const std::int64_t all = planned.all_elems(), shard = all / planned.masters();
      CHECK(planned.most("master") == shard * 4);
      CHECK(planned.most("grad_shard") == shard * 4);
      CHECK(planned.most("moments") == shard * 8);
      CHECK(planned.most("param_shard") == (ranks == 8 ? shard * 2 : 0));
      // Whole parameters for the whole step, whole gradients from the first micro-batch to the last.
      if (job.strategy == Strategy::zero1 || job.strategy == Strategy::zero2) CHECK(planned.most("full_param") == all * job.param_bytes);
      if (job.strategy == Strategy::ddp) CHECK(planned.most("full_param") == 0);
      if (!job.reduces_each) CHECK(planned.most("full_grad") == all * job.reduce_bytes);
      std::int64_t largest = 0, resharded = 0;
      for (std::size_t unit = 0; unit < planned.plan.units.size(); ++unit) {
        largest = std::max(largest, planned.full_elems(unit));
        if (unit != 0 && unit + 1 != planned.plan.units.size()) resharded += planned.full_elems(unit);
      }
      // The root's share of a sum is the last to be added, and goes on at once where nothing is kept for another micro-batch.
      const std::int64_t sums = job.strategy == Strategy::nested ? (job.reduces_each ? all : largest) / job.group
                                : job.all_reduces_each           ? largest / planned.masters()
                                                                 : 0;
      CHECK(planned.most("grad_sum") == sums * 4);
      const std::int64_t kept = job.strategy == Strategy::nested ? all / job.group : job.between != 0 ? resharded / job.between : 0;
      CHECK(planned.most("kept_shard") == kept * job.param_bytes);
    }
  }
}

}  // namespace zs::test
