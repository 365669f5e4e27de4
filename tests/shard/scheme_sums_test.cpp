#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <memory>

#include "comm/world.h"
#include "runtime/device/device.h"
#include "runtime/shard/runtime/sharded_runtime.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::scheme_sums_test {
namespace {

/// Every sum of these, in any order, is exact in f32, and each of them in bf16.
float gradient(int rank, int step, int micro_batch, const std::string& name, std::int64_t i) {
  const auto seed = static_cast<std::int64_t>(name.size()) + 3 * rank + 5 * micro_batch + 7 * step + 11 * i;
  return static_cast<float>(seed % 9 - 4);
}
float weight(int step, const std::string& name, std::int64_t i) {
  return static_cast<float>((static_cast<std::int64_t>(name.size()) + 13 * step + 3 * i) % 127);
}

using Parameters = std::vector<std::unique_ptr<Parameter>>;

/// Odd sizes, so that views are cut anywhere; the last unit is smaller than a slice.
std::vector<Parameters> make_units() {
  std::vector<Parameters> units(4);
  const auto add = [&](std::size_t unit, const std::string& name, Shape shape) {
    units[unit].push_back(std::make_unique<Parameter>(name, shape, Init{}, true));
  };
  add(0, "table", {37, 11});
  add(0, "bias", {5});
  add(1, "one.weight", {64, 9});
  add(1, "one.b", {7});
  add(2, "two.weight", {301});
  add(3, "three", {2});
  return units;
}

struct Job {
  SchemeCase one;
  MixedPrecisionPolicy precision;
  LayoutOptions layout;
  bool zero_copy;
  std::string name;
  std::vector<UnitPolicy> policies = {};  // of each unit; empty: none has one
  std::atomic<int> wrong_values = 0, wrong_sums = 0, checked = 0;
};

/// One rank of a job whose gradients and weights are known: it runs the units' hooks as a model would.
class RankRun {
 public:
  RankRun(World& world, Job& job)
      : world_(world),
        job_(job),
        device_(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context_(*device_),
        units_(make_units()),
        runtime_(context_, world,
                 {.scheme = job.one.scheme,
                  .schedule = {.prefetch = job.one.prefetch},
                  .precision = job.precision,
                  .layout = job.layout,
                  .division = {Division::Rule::none},
                  .zero_copy = job.zero_copy}) {
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      std::vector<Parameter*> members;
      for (const auto& parameter : units_[unit]) members.push_back(parameter.get());
      runtime_.add_unit("unit" + std::to_string(unit), members,
                        job.policies.empty() ? UnitPolicy{} : job.policies[unit]);
    }
  }

  void run() {
    device_->trace().start();
    for (int step = 0; step < 3; ++step) {
      write_weights(step);
      for (int i = 0; i < job_.one.micro_batches; ++i) micro_batch(step, i);
      check_sums(step);
      runtime_.executor().clear_gradients();
      validate(step);
    }
    device_->trace().stop();
    const auto violations = verify_order(device_->trace().entries());
    if (!violations.empty()) throw Error(ExitCode::internal, job_.name + ": " + violations.front().message);
  }

 private:
  void write_weights(int step) {
    runtime_.executor().wait_readers();
    for (FlatParameter& unit : runtime_.executor().units()) {
      const Buffer master = unit.master_buffer(), compute_copy = unit.compute_copy_buffer();
      std::vector<Buffer> writes{master};
      if (!compute_copy.empty()) writes.push_back(compute_copy);
      context_.launch({"write_weights", {}, std::move(writes)}, [&, master, compute_copy, step](ExecContext& exec) {
        for (const ShardSegment& segment : unit.held_segments()) {
          const std::string& name = unit.layout->views()[segment.view].name;
          for (std::int64_t i = 0; i < segment.count; ++i) {
            master.as<float>()[segment.shard_offset + i] = weight(step, name, segment.element(i));
          }
        }
        if (!compute_copy.empty()) context_.kernels().cast(exec, compute_copy, master);
      });
    }
    device_->synchronize();
    runtime_.executor().masters_updated();
  }

  void check_values(int unit, int step) {
    for (const auto& parameter : units_[static_cast<std::size_t>(unit)]) {
      const Buffer value = parameter->value();
      context_.launch({"check_values", {value}, {}}, [this, value, step, name = parameter->name()](ExecContext&) {
        for (std::int64_t i = 0; i < value.elems; ++i) {
          const float got =
              value.dtype == DType::bf16 ? static_cast<float>(value.as<BFloat16>()[i]) : value.as<float>()[i];
          if (got != weight(step, name, i)) ++job_.wrong_values;
        }
      });
    }
  }

  void fill_gradient(Parameter& parameter, int step, int micro_batch) {
    const auto [target, beta] = parameter.grad_target();
    std::vector<Buffer> reads;
    if (beta != 0) reads.push_back(target);
    context_.launch(
        {"fill_gradient", std::move(reads), {target}},
        [target = target, beta = beta, rank = world_.rank(), step, micro_batch, name = parameter.name()](ExecContext&) {
          for (std::int64_t i = 0; i < target.elems; ++i) {
            const float own = gradient(rank, step, micro_batch, name, i);
            if (target.dtype == DType::bf16) {
              BFloat16& out = target.as<BFloat16>()[i];
              out = BFloat16(own + (beta != 0 ? static_cast<float>(out) : 0));
            } else {
              float& out = target.as<float>()[i];
              out = own + (beta != 0 ? out : 0);
            }
          }
        });
  }

  void forward(int step, bool is_recorded) {
    const int last = static_cast<int>(units_.size()) - 1;
    runtime_.before_forward(0);
    check_values(0, step);
    for (int unit = 1; unit <= last; ++unit) {
      runtime_.before_forward(unit);
      check_values(unit, step);
      runtime_.after_forward(unit);
    }
    runtime_.after_forward(0);
    if (!is_recorded) return;
    for (const Parameters& unit : units_)
      for (const auto& parameter : unit) parameter->add_use();
  }

  void micro_batch(int step, int number) {
    runtime_.begin_micro_batch(Mode::train, number + 1 == job_.one.micro_batches);
    forward(step, true);
    for (int unit = static_cast<int>(units_.size()) - 1; unit >= 0; --unit) {
      for (const auto& parameter : units_[static_cast<std::size_t>(unit)]) {
        parameter->owner()->before_backward(*parameter);
        check_values(unit, step);
        fill_gradient(*parameter, step, number);
        parameter->drop_use();
        parameter->owner()->after_backward(*parameter);
        if (parameter->pending_uses() != 0) ++job_.wrong_values;
      }
    }
    runtime_.end_micro_batch();
  }

  void validate(int step) {
    for (int i = 0; i < 2; ++i) {
      runtime_.begin_micro_batch(Mode::eval, i == 1);
      forward(step, false);
      runtime_.end_micro_batch();
    }
  }

  void check_sums(int step) {
    runtime_.executor().wait_reductions();
    device_->synchronize();
    for (const FlatParameter& unit : runtime_.executor().units()) {
      auto segments = unit.segments();
      const auto held = unit.held_segments();
      segments.insert(segments.end(), held.begin(), held.end());
      for (const ShardSegment& segment : segments) {
        const std::string& name = unit.layout->views()[segment.view].name;
        for (std::int64_t i = 0; i < segment.count; ++i) {
          float sum = 0;
          for (int rank = 0; rank < world_.size(); ++rank) {
            for (int m = 0; m < job_.one.micro_batches; ++m) sum += gradient(rank, step, m, name, segment.element(i));
          }
          if (unit.held_grad_buffer().as<float>()[segment.shard_offset + i] != sum) ++job_.wrong_sums;
          ++job_.checked;
        }
      }
    }
  }

  World& world_;
  Job& job_;
  std::unique_ptr<Device> device_;
  Context context_;
  std::vector<Parameters> units_;
  ShardedRuntime runtime_;
};

void run_job(Job& job) {
  run_local_world(job.one.ranks, {.timeout_s = 60}, [&](World& world) { RankRun(world, job).run(); });
}

std::string text_of(const Job& job) {
  const SchemeOptions& scheme = job.one.scheme;
  return fmt::format(
      "{} deterministic {} zero-copy {} reshard {} ranks {} prefetch {} micro-batches {} {} {} whole below {}",
      job.name, scheme.deterministic, job.zero_copy, scheme.reshard_after_forward.str(), job.one.ranks,
      job.one.prefetch, job.one.micro_batches, name_of(job.precision.param), name_of(job.layout.layout),
      job.layout.min_shard_bytes);
}

/// Runs every scheme in a layout, with zero-copy units where it is deterministic and without where it is not, the next
/// scheme the other way round.
void run_all(const LayoutOptions& layout, const std::vector<int>& ranks) {
  int scheme = 0;
  for (const std::string& name : scheme_names()) {
    ++scheme;
    for (const SchemeCase& one : scheme_cases(name, ranks)) {
      for (const bool is_deterministic : {false, true}) {
        const bool zero_copy = (scheme + is_deterministic) % 2 == 0;
        Job job{.one = one, .precision = {}, .layout = layout, .zero_copy = zero_copy, .name = name};
        job.one.scheme.deterministic = is_deterministic;
        if (is_deterministic) job.precision = {DType::bf16, DType::bf16};
        CAPTURE(text_of(job));
        run_job(job);
        CHECK(job.wrong_values == 0);
        CHECK(job.wrong_sums == 0);
        CHECK(job.checked > 0);
      }
    }
  }
}

/// Each unit in a scheme of its own.
void run_mixed(const LayoutOptions& layout, int ranks, std::size_t first, std::size_t stride) {
  Job job{.one = {scheme_of("zero3", ranks), ranks, static_cast<int>(first % 3), first % 2 == 0 ? 3 : 1},
          .precision = {},
          .layout = layout,
          .zero_copy = (first + stride) % 2 == 0,
          .name = "mixed"};
  const bool is_deterministic = first % 3 == 0;
  job.one.scheme.deterministic = is_deterministic;
  for (std::size_t unit = 0; unit < 4; ++unit) {
    const std::string& name = scheme_names()[(first + unit * stride) % scheme_names().size()];
    job.policies.push_back({.scheme = scheme_of(name, ranks)});
    job.name += " " + name;
  }
  CAPTURE(text_of(job));
  run_job(job);
  CHECK(job.wrong_values == 0);
  CHECK(job.wrong_sums == 0);
  CHECK(job.checked > 0);
}

}  // namespace

TEST_CASE("2B-7, 2B-25: so do units of one model that are placed each in its own way", "[schemes]") {
  const ChooseDim last = [](std::string_view, const Shape&) { return -1; };
  for (const int ranks : {2, 4, 8}) {
    for (std::size_t first = 0; first < scheme_names().size(); ++first) {
      run_mixed({}, ranks, first, 1 + first % 6);
      if (ranks == 4)
        run_mixed({.layout = Layout::per_parameter, .min_shard_bytes = 64, .dim = last}, ranks, first, 2 + first % 5);
    }
  }
}

TEST_CASE("every scheme gathers the weights last written, and sums integer-valued gradients exactly", "[schemes]") {
  run_all({}, {1, 2, 4, 8});
}

TEST_CASE("1-2, 1.3-7a, 1.3-7b: so does every scheme with parameters cut one by one, on any dim, small ones whole",
          "[schemes]") {
  const ChooseDim last = [](std::string_view, const Shape&) { return -1; };
  const std::int64_t below = GENERATE(0, 64, 1 << 20);  // none, the biases and the last unit, everything
  const bool is_last = GENERATE(false, true);
  run_all({.layout = Layout::per_parameter, .min_shard_bytes = below, .dim = is_last ? last : ChooseDim{}},
          is_last ? std::vector<int>{2, 4} : std::vector<int>{1, 4, 8});
}

}  // namespace zs::test::scheme_sums_test
