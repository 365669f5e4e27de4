#include <catch2/catch.hpp>

#include <algorithm>

#include "model/train/plan/plan.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::traffic_test {
namespace {

struct Bytes {
  std::int64_t gather = 0, gather_small = 0, reduce = 0, finish = 0, whole = 0;
  bool operator==(const Bytes&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Bytes& bytes) {
  return out << fmt::format("gather {} small {} reduce {} finish {} whole {}", bytes.gather, bytes.gather_small,
                            bytes.reduce, bytes.finish, bytes.whole);
}

Bytes bytes_of(const ShardGroups::Sent& sent) {
  return {sent.gather.sent_bytes(), sent.gather_small.sent_bytes(), sent.reduce.sent_bytes(), sent.finish.sent_bytes(),
          sent.whole.sent_bytes()};
}

/// Elements of a unit, padded: P of what is gathered, G of what is reduced, S of parameters that are whole.
struct Padded {
  std::int64_t gathered, reduced, whole;
};

/// What the closed formulas are made of.
struct Job {
  Strategy strategy;
  std::int64_t ranks, group, between;  // W; N: of a small group; k
  std::int64_t micro_batches;          // M
  bool reshards, reduces_each, all_reduces_each, keeps_ends;
  bool is_zero_copy;
  std::int64_t finest;  // slices of the finest cut
  std::int64_t param_bytes, reduce_bytes;
  bool packs_gathers = false, packs_reductions = false;
};

/// Of n ranks, each sends n - 1 of n equal parts.
std::int64_t parts(std::int64_t ranks, std::int64_t bytes) { return bytes / ranks * (ranks - 1); }

/// Of one of n equal parts of so many elements: a byte each, 4 for each 256, in lines of 64.
std::int64_t packed_part(std::int64_t ranks, std::int64_t elems) {
  const std::int64_t part = elems / ranks;
  return (part + (part + 255) / 256 * 4 + 63) / 64 * 64;
}

/// What one rank sends for a unit in a step: the formulas of docs/sharding.md, but for parameters that are whole.
Bytes formula(const Job& job, const Padded& elems, int unit, int units) {
  const std::int64_t w = job.ranks, n = job.group, m = job.micro_batches, whole = elems.gathered * job.param_bytes;
  const auto gathered = [&](std::int64_t ranks, std::int64_t all) {
    return job.packs_gathers ? (ranks - 1) * packed_part(ranks, all) : parts(ranks, all * job.param_bytes);
  };
  const auto reduced = [&](std::int64_t ranks, std::int64_t all, std::int64_t elem_bytes) {
    return job.packs_reductions ? (ranks - 1) * packed_part(ranks, all) : parts(ranks, all * elem_bytes);
  };
  const std::int64_t gradient_w = reduced(w, elems.reduced, job.reduce_bytes);
  const bool is_kept_for_next = job.keeps_ends && unit <= 1;
  // The root's backward begins within its forward: the head computes its gradients there.
  const bool is_kept_for_backward = !job.reshards || unit == 0 || (job.keeps_ends && unit == units - 1);
  const std::int64_t forward = is_kept_for_next ? 1 : m, backward = is_kept_for_backward ? 0 : m,
                     reductions = job.reduces_each ? m : 1;
  switch (job.strategy) {
    case Strategy::ddp: return {0, 0, 0, 2 * parts(w, elems.reduced * 4) * (job.all_reduces_each ? m : 1)};
    case Strategy::zero1:
    case Strategy::zero2: return {gathered(w, elems.gathered), 0, reductions * gradient_w, 0};
    case Strategy::zero3:
    case Strategy::shard_grad_op:
      if (job.between == 0) return {(forward + backward) * gathered(w, elems.gathered), 0, reductions * gradient_w, 0};
      return {forward * gathered(w, elems.gathered), backward * parts(job.between, whole), reductions * gradient_w, 0};
    case Strategy::hsdp:
      return {(forward + (job.between == 0 ? backward : 0)) * gathered(n, elems.gathered),
              job.between == 0 ? 0 : backward * parts(job.between, whole),
              reductions * reduced(n, elems.reduced, job.reduce_bytes),
              2 * parts(w / n, elems.reduced / n * 4) * (job.all_reduces_each ? m : 1)};
    case Strategy::nested:
      return {gathered(w / n, elems.gathered / n), (forward + backward) * parts(n, whole),
              reductions * reduced(n, elems.reduced, job.reduce_bytes), reduced(w / n, elems.reduced / n, 4)};
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
  /// What each layout pads, counted anew.
  Padded padded(std::size_t unit) const {
    const std::int64_t ranks = masters(), align = 64 / job.param_bytes, fine = align * (job.finest / ranks);
    const auto up = [](std::int64_t value, std::int64_t multiple) {
      return (value + multiple - 1) / multiple * multiple;
    };
    const std::vector<FlatView>& views = plan.units[unit].layout->views();
    if (config.shard.layout == "flat" || ranks == 1) {
      std::int64_t end = 0;
      for (const FlatView& view : views) end = up(end, align) + view.numel;
      const std::int64_t all = up((end + job.finest - 1) / job.finest, align) * job.finest;
      return {all, all, 0};
    }
    std::int64_t shard = 0, whole = 0;
    for (const FlatView& view : views) {
      const std::int64_t rows = view.shape[config.shard.dims.empty() ? 0 : -1];
      if (view.numel * job.param_bytes < config.shard.min_shard_bytes) {
        whole += up(view.numel, align);
      } else {
        shard += up((rows + ranks - 1) / ranks * (view.numel / rows), align);
      }
    }
    const std::int64_t part = up((whole + ranks - 1) / ranks, fine);
    shard = up(shard, fine);
    return {shard * ranks, (shard + part) * ranks, part * ranks};
  }
  Padded all_elems() const {
    Padded sum{};
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
      const Padded one = padded(unit);
      sum = {sum.gathered + one.gathered, sum.reduced + one.reduced, sum.whole + one.whole};
    }
    return sum;
  }
  Bytes expected() const {
    Bytes sum;
    const int units = static_cast<int>(plan.units.size());
    for (int unit = 0; unit < units; ++unit) {
      const Bytes one = formula(job, padded(static_cast<std::size_t>(unit)), unit, units);
      sum = {sum.gather + one.gather, sum.gather_small + one.gather_small, sum.reduce + one.reduce,
             sum.finish + one.finish};
    }
    if (job.is_zero_copy) {  // read where it lies
      sum.gather_small = 0;
      if (job.strategy != Strategy::nested) sum.gather = 0;
    }
    // Through the group that reduced them, but that nested groups reduce in two.
    (job.strategy == Strategy::nested ? sum.whole : sum.reduce) += parts(masters(), all_elems().whole * 4);
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

struct Way {
  std::string param = "f32", layout = "flat";
  bool keeps_ends = true, packs_gathers = false, packs_reductions = false;
  bool has_pairs = false;  // blocks two by two
};

Planned plan_of(const std::string& name, int ranks, int micro_batches, const Way& way) {
  const std::string& param = way.param;
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
  config.shard.keep_root_unsharded = way.keeps_ends;
  if (way.has_pairs) {
    config.model.layers = 6;
    config.shard.unit_mib = param == "bf16" ? 0.06 : 0.12;  // a block has 25 KiB in bf16, with its padding
  }
  config.shard.compress_gather = !way.packs_gathers ? "none" : param == "bf16" ? "fp8" : "int8";
  config.shard.compress_reduce = way.packs_reductions ? "int8" : "none";
  choose_layout(config, way.layout);
  const std::int64_t bytes = param == "bf16" ? 2 : 4;
  planned.job = {.strategy = options.strategy,
                 .ranks = ranks,
                 .group = options.group_size,
                 .between = options.reshard_after_forward.group(),
                 .micro_batches = micro_batches,
                 .reshards = !options.reshard_after_forward.is_off() && options.strategy != Strategy::shard_grad_op,
                 .reduces_each = options.reduce_every_micro_batch && options.strategy != Strategy::zero1,
                 .all_reduces_each = options.all_reduce_every_micro_batch,
                 .keeps_ends = way.keeps_ends,
                 .is_zero_copy = way.layout == "zero-copy" && options.strategy != Strategy::ddp &&
                                 (!way.packs_gathers || options.strategy == Strategy::nested),
                 .finest = ShardScheme(options, 0, ranks).finest(),
                 .param_bytes = bytes,
                 .reduce_bytes = bytes,
                 .packs_gathers = way.packs_gathers,
                 .packs_reductions = way.packs_reductions};
  planned.plan = make_plan(config, {.ranks = ranks, .has_every_micro_batch = true});
  return planned;
}

/// Every pair.
std::vector<std::pair<int, std::string>> all_of(const std::vector<int>& ranks,
                                                const std::vector<std::string>& layouts) {
  std::vector<std::pair<int, std::string>> pairs;
  for (const int one : ranks)
    for (const std::string& layout : layouts) pairs.emplace_back(one, layout);
  return pairs;
}

}  // namespace

TEST_CASE("bytes sent by a rank are the closed formula of its scheme, in the plan and in the run", "[traffic]") {
  int number = 0;
  for (const std::string& name : scheme_names()) {
    for (const int ranks : {4, 8}) {
      for (const int micro_batches : {1, 4}) {
        ++number;
        for (const std::string& layout : layout_names()) {
          const Planned planned =
              plan_of(name, ranks, micro_batches, {number % 2 == 0 ? "f32" : "bf16", layout, number % 3 != 0});
          CAPTURE(name, ranks, micro_batches, planned.config.precision.param, planned.config.shard.keep_root_unsharded,
                  layout);
          CHECK(bytes_of(planned.plan.sent) == planned.expected());
          CHECK(planned.expected() != Bytes{});
          if (ranks == 8 || (planned.config.shard.layout != "flat" && micro_batches == 1)) continue;
          CHECK(bytes_of(train_tiny(planned.config, {.ranks = ranks, .steps = 2}).sent) == planned.expected());
        }
      }
    }
  }
}

TEST_CASE("compressed gathers and reductions send the bytes of their closed formula", "[traffic]") {
  int number = 0;
  for (const std::string& name : scheme_names()) {
    for (const std::string& layout : layout_names()) {
      ++number;
      const Planned planned =
          plan_of(name, 4, 2, {number % 2 == 0 ? "f32" : "bf16", layout, true, number % 3 != 0, number % 3 != 1});
      CAPTURE(name, layout, planned.config.precision.param, planned.config.shard.compress_gather,
              planned.config.shard.compress_reduce);
      CHECK(bytes_of(planned.plan.sent) == planned.expected());
      CHECK(bytes_of(train_tiny(planned.config, {.ranks = 4, .steps = 2}).sent) == planned.expected());
    }
  }
}

TEST_CASE("units of several blocks send the bytes of their closed formula", "[traffic]") {
  int number = 0;
  for (const std::string& name : scheme_names()) {
    ++number;
    const std::string layout = layout_names()[static_cast<std::size_t>(number) % layout_names().size()];
    const Planned planned =
        plan_of(name, 4, 2, {.param = number % 2 == 0 ? "f32" : "bf16", .layout = layout, .has_pairs = true});
    CAPTURE(name, layout);
    CHECK(planned.plan.units.size() == 3);
    CHECK(bytes_of(planned.plan.sent) == planned.expected());
    CHECK(bytes_of(train_tiny(planned.config, {.ranks = 4, .steps = 2}).sent) == planned.expected());
  }
}

TEST_CASE("units are zero-copy in every scheme that gathers, and then nobody holds whole parameters", "[traffic]") {
  for (const std::string& name : scheme_names()) {
    const Planned planned = plan_of(name, 4, 2, {.layout = "zero-copy"});
    CAPTURE(name);
    CHECK(planned.most("full_param") == 0);
    for (const auto& unit : planned.plan.units) CHECK(unit.is_zero_copy == (planned.job.strategy != Strategy::ddp));
  }
}

TEST_CASE("I4: what a scheme keeps of each role is its part of the model, exactly", "[traffic]") {
  for (const std::string& name : scheme_names()) {
    for (const auto& [ranks, layout] : all_of({4, 8}, layout_names())) {
      const Planned planned = plan_of(name, ranks, 4, {ranks == 4 ? "f32" : "bf16", layout});
      const Job& job = planned.job;
      CAPTURE(name, ranks, layout);
      const bool is_flat = planned.config.shard.layout == "flat" || planned.masters() == 1;
      const auto [gathered, all, whole] = planned.all_elems();
      const std::int64_t held = all / planned.masters() + whole;
      CHECK(planned.most("master") == held * 4);
      CHECK(planned.most("grad_shard") == held * 4);
      CHECK(planned.most("moments") == held * 8);
      CHECK(planned.most("param_shard") == (ranks == 8 ? held * 2 : 0));
      // Whole parameters for the whole step, whole gradients from the first micro-batch to the last.
      if (job.strategy == Strategy::zero1 || job.strategy == Strategy::zero2)
        CHECK(planned.most("full_param") == (job.is_zero_copy ? 0 : gathered * job.param_bytes));
      if (job.strategy == Strategy::ddp) CHECK(planned.most("full_param") == 0);
      std::int64_t largest = 0, two = 0, resharded = 0;
      for (std::size_t unit = 0; unit < planned.plan.units.size(); ++unit) {
        const std::size_t next = (unit + 1) % planned.plan.units.size();
        largest = std::max(largest, planned.padded(unit).reduced);
        two = std::max(two, planned.padded(unit).reduced + planned.padded(next).reduced);
        if (unit != 0 && unit + 1 != planned.plan.units.size()) resharded += planned.padded(unit).gathered;
      }
      // While the first unit is brought into the order of its shards, it is there twice.
      // It is also there twice while what was accumulated in f32 is rounded to what is reduced.
      const std::int64_t twice = job.reduce_bytes == 2 ? largest * 2 : is_flat ? 0 : largest * 4;
      if (!job.reduces_each) CHECK(planned.most("full_grad") == all * 4 + twice);
      // Where no sum is kept for another micro-batch it goes on at once, beside the next unit's.
      const std::int64_t sums = job.strategy == Strategy::nested ? (job.reduces_each ? all : two) / job.group
                                : job.all_reduces_each           ? two / planned.masters()
                                                                 : 0;
      CHECK(planned.most("grad_sum") == sums * 4);
      const std::int64_t kept = job.strategy == Strategy::nested        ? gathered / job.group
                                : job.between != 0 && !job.is_zero_copy ? resharded / job.between
                                                                        : 0;
      CHECK(planned.most("kept_shard") == kept * job.param_bytes);
    }
  }
}

}  // namespace zs::test::traffic_test
