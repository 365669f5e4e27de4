#pragma once

#include <algorithm>
#include <atomic>
#include <functional>

#include "runtime/shard/runtime/unshard_scope.h"
#include "tests/shard/parameters.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"

/// What tests of zero-copy units share: a training in which they are on, and a rank with one such unit.
namespace zs::test {

constexpr int kSharing = 4;  ///< ranks

inline Config shared_config(const std::string& scheme, const std::string& param = "f32") {
  Config config = tiny_config();
  config.train.global_batch = 2 * kSharing;
  config.precision.param = param;
  choose_scheme(config, scheme_of(scheme, kSharing));
  config.shard.zero_copy = "auto";
  return config;
}

/// How many elements are not `value`.
inline std::int64_t others(const Buffer& buffer, float value) {
  if (buffer.dtype == DType::f32)
    return buffer.elems - std::count(buffer.as<float>(), buffer.as<float>() + buffer.elems, value);
  const auto is_value = [value](BFloat16 element) { return static_cast<float>(element) == value; };
  return buffer.elems - std::count_if(buffer.as<BFloat16>(), buffer.as<BFloat16>() + buffer.elems, is_value);
}

using Before = std::function<void()>;

/// A rank with one unit, whose weights are all the same number.
class OneUnit {
 public:
  explicit OneUnit(World& world, const SchemeOptions& scheme = {}, const MixedPrecisionPolicy& precision = {})
      : device_(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context_(*device_),
        runtime_(context_, world, {.scheme = scheme, .precision = precision}) {
    runtime_.add_unit("root", parameters_.pointers());
  }

  /// `before` runs right before the write, on the stream.
  void write(
      float value, Before before = [] {}) {
    const Buffer master = runtime_.executor().units()[0].master_buffer();
    context_.launch({"write", {}, {master}}, [master, value, before = std::move(before)](ExecContext&) {
      before();
      std::fill_n(master.as<float>(), master.elems, value);
    });
    runtime_.executor().masters_updated();
  }
  /// The same by way of an unshard scope.
  void write_back(float value) {
    const UnshardScope scope(runtime_, {0});
    const Buffer weights = scope.value(*parameters_.pointers()[0]);
    context_.launch({"edit", {}, {weights}},
                    [weights, value](ExecContext&) { std::fill_n(weights.as<float>(), weights.elems, value); });
  }
  void make_whole() { const UnshardScope scope(runtime_, {0}, {.writes_back = false}); }
  /// Adds to `wrong` how many weights differ from `value`.
  void read(
      float value, std::atomic<std::int64_t>& wrong, Before before = [] {}, Before after = [] {}) {
    runtime_.begin_micro_batch(Mode::eval, true);
    runtime_.before_forward(0);
    const Buffer weights = parameters_.pointers()[0]->value();
    context_.launch({"read", {weights}, {}},
                    [weights, value, &wrong, before = std::move(before), after = std::move(after)](ExecContext&) {
                      before();
                      wrong += others(weights, value);
                      after();
                    });
    runtime_.after_forward(0);
    runtime_.end_micro_batch();
  }
  /// What `work` has enqueued on the unshard stream.
  template <class Work>
  std::vector<std::string> gathers_of(const Work& work) {
    device_->trace().start();
    work();
    device_->trace().stop();
    std::vector<std::string> names;
    for (const TraceEntry& entry : device_->trace().entries()) {
      if (entry.kind == TraceEntry::Kind::op && entry.stream == StreamRole::unshard) names.push_back(entry.op.name);
    }
    return names;
  }
  Executor& executor() { return runtime_.executor(); }
  void synchronize() { device_->synchronize(); }
  void abandon() { runtime_.abandon(); }

 private:
  std::unique_ptr<Device> device_;
  Context context_;
  Parameters parameters_{{Shape{64, 33}}};
  ShardedRuntime runtime_;
};

}  // namespace zs::test
