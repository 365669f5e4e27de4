#include <catch2/catch.hpp>

#include "model/train/session.h"
#include "tests/shard/tiny_training.h"

namespace zs::test {
namespace {

/// A way to train whose plan is looked at edge by edge. A further scheme is one line in `kSchemes`.
struct Scheme {
  const char* name;
  void (*choose)(Config& config);
};

const Scheme kSchemes[] = {
    {"zero3", [](Config&) {}},
    {"zero3, kept for backward", [](Config& config) { config.shard.reshard_after_forward = false; }},
    {"zero3, reduced once", [](Config& config) { config.shard.reduce_every_micro_batch = config.train.deterministic = false; }},
    {"zero3, no prefetch", [](Config& config) { config.shard.prefetch = 0; }},
    {"zero3, prefetch 2", [](Config& config) { config.shard.prefetch = 2; }},
    {"zero3, bf16", [](Config& config) { config.precision.param = config.precision.reduce = "bf16"; }},
    {"zero3, one reduction in flight", [](Config& config) { config.shard.max_reductions_in_flight = 1; }},
    {"zero3, one unit", [](Config& config) { config.shard.units = "model"; }},
    {"zero3, blocks run again", [](Config& config) { config.train.recompute = "block"; }},
};

/// Two steps of two micro-batches, a validation and a sample, one after the other without the host ever waiting.
std::vector<TraceEntry> trace_of(const Scheme& scheme) {
  Config config = tiny_config();
  config.train.global_batch = 4;
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  scheme.choose(config);
  const auto device = Device::create(DeviceKind::meta, {.cpus = {}, .slab_bytes = Pool::kGrowingSlab});
  device->trace().start();
  const auto world = make_meta_world(0, 2, Transport::local);
  Session session(*device, *world, config);
  const ReadSamples read = [&](std::int64_t, std::vector<std::int32_t>& inputs, std::vector<std::int32_t>& targets) {
    inputs.assign(static_cast<std::size_t>(config.train.micro_batch * config.train.sequence), 0);
    targets = inputs;
  };
  session.enqueue_step(1, 0, read, false);
  session.enqueue_step(2, 0, read, false);
  session.enqueue_validation(read);
  session.enqueue_step(3, 0, read, false);
  device->trace().stop();
  return device->trace().entries();
}

std::string text_of(const TraceEntry& entry) { return fmt::format("stream '{}', record {}", name_of(entry.stream), entry.record_id); }

}  // namespace

TEST_CASE("every wait of every scheme's steps is needed: without it the verifier reports a conflict") {
  const Scheme& scheme = kSchemes[GENERATE(range(std::size_t{0}, std::size(kSchemes)))];
  const std::vector<TraceEntry> trace = trace_of(scheme);
  CAPTURE(scheme.name);
  const auto violations = verify_order(trace);
  CHECK((violations.empty() ? "" : violations.front().message) == "");
  std::size_t waits = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace[i].kind != TraceEntry::Kind::wait) continue;
    ++waits;
    std::vector<TraceEntry> without = trace;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    INFO("the wait at entry " << i << ": " << text_of(trace[i]));
    CHECK_FALSE(verify_order(without).empty());
  }
  CHECK(waits >= 28);  // one unit: a gather, a gradient, a reduction, an update and the losses of each micro-batch
}

}  // namespace zs::test
