#include <catch2/catch.hpp>

#include <functional>

#include "model/train/session/session.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"
#include "tests/skip.h"

namespace zs::test::order_edges_test {
namespace {

constexpr int kRanks = 4;

/// A way to train whose steps are looked at edge by edge. A variant of zero3 is one line here; a further scheme one in
/// scheme_cases.h.
struct Way {
  std::string name;
  std::function<void(Config& config)> choose;
  /// Waits that others happen to imply: what small parameters whole, which come beside their unit's shard, wait for is
  /// waited for again before their unit uses them first, and not used behind the last step.
  std::size_t implied = 0;
};

void in_twos(Config& config) {
  config.model.layers = 6;
  config.shard.unit_mib = 0.09;  // a block of tiny_config has 50 KiB
}

void choose_updates_on_host(Config& config) {
  config.offload.weights = config.offload.moments = config.offload.gradients = config.offload.update = "host";
}

std::vector<Way> ways_of_options() {
  return {
      {"kept for backward", [](Config& config) { config.shard.reshard_after_forward = false; }},
      {"no prefetch", [](Config& config) { config.shard.prefetch = 0; }},
      {"prefetch 2", [](Config& config) { config.shard.prefetch = 2; }},
      {"a limit below the prefetch", [](Config& config) { config.shard.prefetch = 2, config.shard.limit = 1; }},
      {"a limit above the prefetch", [](Config& config) { config.shard.limit = 3; }},
      {"a limit without prefetch", [](Config& config) { config.shard.prefetch = 0, config.shard.limit = 2; }},
      {"bf16", [](Config& config) { config.precision.param = config.precision.reduce = "bf16"; }},
      {"bf16, reduced once",
       [](Config& config) {
         config.precision.param = config.precision.reduce = "bf16";
         config.shard.reduce_every_micro_batch = false;
       }},
      {"bf16, validated in f32",
       [](Config& config) { config.precision.param = "bf16", config.precision.validation = "f32"; }},
      {"bf16, sums in f32", [](Config& config) { config.precision.param = "bf16", config.precision.output = "f32"; }},
      {"one reduction in flight", [](Config& config) { config.shard.max_reductions_in_flight = 1; }},
      {"one unit", [](Config& config) { config.shard.units = "model"; }},
      {"blocks run again", [](Config& config) { config.train.recompute = {"block"}; }},
      {"deterministic", [](Config& config) { config.train.deterministic = true; }},
  };
}

std::vector<Way> ways_of_offload() {
  return {
      {"inputs of blocks on the host",
       [](Config& config) { config.train.recompute = {"block"}, config.offload.activations = "host"; }},
      {"moments on the host", [](Config& config) { config.offload.moments = "host"; }},
      {"gradients on the host", [](Config& config) { config.offload.gradients = "host"; }},
      {"gradients on the host but for a unit's",
       [](Config& config) { config.offload.gradients = "host", config.offload.resident_units = {.value = 1}; }},
      {"gradients on the host, hsdp, small parameters whole",
       [](Config& config) {
         choose_scheme(config, scheme_of("hsdp", kRanks));
         choose_layout(config, "small whole");
         config.offload.gradients = "host";
       }},
      {"gradients on the host, nested, once",
       [](Config& config) {
         choose_scheme(config, scheme_of("nested once", kRanks));
         config.offload.gradients = "host";
       }},
      {"what accumulates on the host",
       [](Config& config) {
         config.shard.reduce_every_micro_batch = false;
         config.offload.accumulator = "host";
         config.train.global_batch = 3 * kRanks;
       }},
      {"what accumulates on the host, bf16, parameter by parameter",
       [](Config& config) {
         choose_layout(config, "last dim");
         config.precision.param = config.precision.reduce = "bf16";
         config.shard.reduce_every_micro_batch = false;
         config.offload.accumulator = "host";
         config.train.global_batch = 3 * kRanks;
       }},
      {"what accumulates on the host, zero1, small parameters whole",
       [](Config& config) {
         choose_scheme(config, scheme_of("zero1", kRanks));
         choose_layout(config, "small whole");
         config.offload.accumulator = config.offload.gradients = "host";
       }},
      {"sums on the host, nested, three micro-batches",
       [](Config& config) {
         choose_scheme(config, scheme_of("nested", kRanks));
         config.offload.accumulator = "host";
         config.train.global_batch = 3 * kRanks;
       }},
  };
}

std::vector<Way> ways_of_left_updates() {
  return {
      {"bf16, masters on the host",
       [](Config& config) { config.precision.param = "bf16", config.offload.weights = "host"; }},
      {"moments on a disk", [](Config& config) { config.offload.moments = "disk:/nowhere"; }},
      {"bf16, masters on a disk",
       [](Config& config) { config.precision.param = "bf16", config.offload.weights = "disk:/nowhere"; }},
      {"bf16, all on the host, prefetch 2",
       [](Config& config) {
         config.precision.param = "bf16", config.shard.prefetch = 2;
         config.offload.weights = config.offload.moments = config.offload.gradients = "host";
       }},
      {"updated by the host", [](Config& config) { choose_updates_on_host(config); }},
      {"bf16, updated by the host, prefetch 2",
       [](Config& config) {
         choose_updates_on_host(config);
         config.precision.param = "bf16", config.shard.prefetch = 2;
       }},
      {"bf16, updated by the host but for a unit's, hsdp, small parameters whole",
       [](Config& config) {
         choose_scheme(config, scheme_of("hsdp", kRanks));
         choose_layout(config, "small whole");
         choose_updates_on_host(config);
         config.precision.param = "bf16", config.offload.resident_units = {.value = 1};
       },
       1},
      {"bf16, updated by the host, zero-copy",
       [](Config& config) {
         choose_updates_on_host(config);
         config.precision.param = "bf16", config.shard.zero_copy = "auto";
       }},
      {"moments on the host, nested",
       [](Config& config) {
         choose_scheme(config, scheme_of("nested", kRanks));
         config.offload.moments = "host";
       }},
      {"moments on the host, zero-copy",
       [](Config& config) { config.shard.zero_copy = "auto", config.offload.moments = "host"; }},
  };
}

std::vector<Way> ways_of_weights_on_the_host() {
  return {
      {"bf16, masters on the host, validated in f32",
       [](Config& config) {
         config.precision.param = "bf16", config.precision.validation = "f32", config.offload.weights = "host";
       }},
      {"weights on the host", [](Config& config) { config.offload.weights = "host"; }},
      {"weights on the host but for a unit's, kept for backward",
       [](Config& config) {
         config.offload.weights = "host", config.offload.resident_units = {.value = 1};
         config.shard.reshard_after_forward = false;
       }},
      {"weights on the host, a limit",
       [](Config& config) { config.offload.weights = "host", config.shard.limit = 3, config.shard.prefetch = 2; }},
      {"weights, gradients and moments on the host, nested, small parameters whole",
       [](Config& config) {
         choose_scheme(config, scheme_of("nested", kRanks));
         choose_layout(config, "small whole");
         config.offload.weights = config.offload.gradients = config.offload.moments = "host";
       },
       15},
      {"weights on the host, each kept by twos",
       [](Config& config) {
         choose_scheme(config, scheme_of("zero3 small k", kRanks));
         choose_layout(config, "small whole");
         config.offload.weights = "host";
       },
       5},
      {"weights on the host, everything whole",
       [](Config& config) {
         choose_layout(config, "per_parameter");
         config.shard.min_shard_bytes = 1 << 20;
         config.offload.weights = "host";
       }},
      {"weights on the host, ddp",
       [](Config& config) {
         choose_scheme(config, scheme_of("ddp", kRanks));
         config.offload.weights = "host";
       }},
  };
}

std::vector<Way> ways_in_twos() {
  return {
      {"blocks in twos", in_twos},
      {"blocks in twos, run again, all resharded",
       [](Config& config) {
         in_twos(config);
         config.train.recompute = {"block"};
         config.shard.keep_root_unsharded = false;
       }},
      {"blocks in twos, nested",
       [](Config& config) {
         in_twos(config);
         choose_scheme(config, scheme_of("nested", kRanks));
       }},
  };
}

std::vector<Way> ways_of_schemes() {
  std::vector<Way> ways;
  for (const std::string& name : scheme_names()) {
    ways.push_back({name, [name](Config& config) { choose_scheme(config, scheme_of(name, kRanks)); }});
    ways.push_back({name + ", small parameters whole", [name](Config& config) {
                      choose_scheme(config, scheme_of(name, kRanks));
                      choose_layout(config, "small whole");
                    }});
  }
  return ways;
}

std::vector<Way> zero_copy_ways() {
  std::vector<Way> ways;
  for (const char* name : {"zero1", "zero3 once", "shard_grad_op", "hsdp"}) {
    ways.push_back({std::string(name) + ", zero-copy", [name](Config& config) {
                      choose_scheme(config, scheme_of(name, kRanks));
                      config.shard.zero_copy = "auto";
                    }});
  }
  ways.push_back({"zero-copy, bf16, no prefetch, a limit", [](Config& config) {
                    config.precision.param = config.precision.reduce = "bf16";
                    config.shard.prefetch = 0, config.shard.limit = 2;
                    config.shard.zero_copy = "auto";
                  }});
  ways.push_back({"zero-copy, bf16, validated in f32", [](Config& config) {
                    config.precision.param = "bf16", config.precision.validation = "f32";
                    config.shard.zero_copy = "auto";
                  }});
  return ways;
}

std::vector<Way> ways_of_layouts() {
  std::vector<Way> ways;
  for (const std::string& layout : layout_names())
    ways.push_back({layout, [layout](Config& config) { choose_layout(config, layout); }});
  ways.push_back({"everything whole", [](Config& config) {
                    choose_layout(config, "per_parameter");
                    config.shard.min_shard_bytes = 1 << 20;
                  }});
  return ways;
}

std::vector<Way> all_ways() {
  std::vector<Way> ways;
  for (const auto& some : {ways_of_options(), ways_of_offload(), ways_of_left_updates(), ways_of_weights_on_the_host(),
                           ways_in_twos(), ways_of_schemes(), zero_copy_ways(), ways_of_layouts()})
    ways.insert(ways.end(), some.begin(), some.end());
  return ways;
}

/// Two steps of two micro-batches, a validation and a sample, one after the other without the host ever waiting.
/// scratch: what the streams have of it from the start, as in a run that follows its plan; then what they needed.
std::vector<TraceEntry> trace_of(const Way& way, ScratchBytes& scratch) {
  Config config = tiny_config();
  config.train.global_batch = 2 * kRanks;
  config.train.deterministic = false;
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  way.choose(config);
  const auto device = Device::create(DeviceKind::meta, {.cpus = {}, .slab_bytes = Pool::kGrowingSlab});
  device->scratch().reserve(*device, scratch);
  device->trace().start();
  const auto world = make_meta_world(0, kRanks);
  Session session(*device, *world, config);
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(config.train.micro_batch * config.train.sequence));
  const ReadSamples read = [&](std::int64_t) { return SampleBatch{zeros, zeros}; };
  session.enqueue_step(1, 0, read, false);
  session.enqueue_step(2, 0, read, false);
  session.enqueue_validation(read);
  session.enqueue_step(3, 0, read, false);
  device->trace().stop();
  scratch = device->scratch().bytes();
  return device->trace().entries();
}

std::string text_of(const TraceEntry& entry) {
  return fmt::format("stream '{}', record {}", name_of(entry.stream), entry.record_id);
}

}  // namespace

TEST_CASE("every wait of every scheme's steps is needed: without it the verifier reports a conflict") {
  static const std::vector<Way> ways = all_ways();
  const Way& way = ways[GENERATE(range(std::size_t{0}, ways.size()))];
  if (is_thinned_out()) return;
  ScratchBytes scratch{};
  trace_of(way, scratch);
  const std::vector<TraceEntry> trace = trace_of(way, scratch);
  CAPTURE(way.name);
  const auto violations = verify_order(trace);
  CHECK((violations.empty() ? "" : violations.front().message) == "");
  std::size_t waits = 0, implied = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    if (trace[i].kind != TraceEntry::Kind::wait) continue;
    ++waits;
    std::vector<TraceEntry> without = trace;
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    INFO("the wait at entry " << i << ": " << text_of(trace[i]));
    const bool is_reported = !verify_order(without).empty();
    if (way.implied == 0) CHECK(is_reported);
    implied += is_reported ? 0 : 1;
  }
  CHECK(implied == way.implied);
  CHECK(waits > 0);
}

}  // namespace zs::test::order_edges_test
