#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "model/train/plan/plan.h"
#include "model/train/session/session.h"
#include "tests/shard/one_unit.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::zero_copy_test {
namespace {

TrainPlan plan_of(const Config& config, Transport transport = Transport::local) {
  return make_plan(config, {.ranks = kSharing, .transport = transport, .has_every_micro_batch = true});
}

TrainPlan plan_on(const Config& config, const std::vector<int>& hosts) {
  return make_plan(config, {.ranks = kSharing, .transport = Transport::hier, .hosts = hosts});
}

int zero_copy_units(const TrainPlan& plan) {
  return static_cast<int>(
      std::count_if(plan.units.begin(), plan.units.end(), [](const auto& unit) { return unit.is_zero_copy; }));
}

std::int64_t bytes_of(const std::vector<PlannedBuffer>& buffers, const std::string& label) {
  std::int64_t bytes = 0;
  for (const PlannedBuffer& buffer : buffers) bytes += buffer.label == label ? buffer.bytes : 0;
  return bytes;
}

/// Gathers the masters at once, or by way of small groups' shards, which are what its ranks share then.
SchemeOptions in_one_step_or_two() { return GENERATE(SchemeOptions{}, scheme_of("nested", kSharing)); }

/// Waits until `flag` is set, which in the right order of things it never is: not for ever.
void wait_in_vain(const std::atomic<bool>& flag) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (!flag.load() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

TEST_CASE("units are zero-copy where their whole gather is of shards in memory that ranks share", "[zero_copy]") {
  const auto count = [](const std::string& scheme, const std::string& param = "f32",
                        Transport transport = Transport::local) {
    return zero_copy_units(plan_of(shared_config(scheme, param), transport));
  };
  constexpr int kAll = 4;  // root and blocks
  for (const char* scheme : {"zero1", "zero2", "zero3", "zero3 k", "shard_grad_op", "hsdp", "nested"}) {
    CAPTURE(scheme);
    CHECK(count(scheme) == kAll);
    CHECK(count(scheme, "bf16", Transport::shm) == kAll);
    CHECK(count(scheme, "f32", Transport::mpi) == 0);
  }
  CHECK(count("ddp") == 0);
  Config rows = shared_config("zero3"), off = shared_config("zero3");
  choose_layout(rows, "per_parameter");
  CHECK(zero_copy_units(plan_of(rows)) == 0);
  Config packed = shared_config("zero3");
  packed.train.deterministic = false;
  packed.shard.compress_gather = "int8";
  CHECK(zero_copy_units(plan_of(packed)) == 0);
  choose_scheme(packed, scheme_of("nested", kSharing));
  CHECK(zero_copy_units(plan_of(packed)) == kAll);  // what ranks share has been decoded
  off.shard.zero_copy = "off";
  CHECK(zero_copy_units(plan_of(off)) == 0);
  CHECK_THAT(describe(plan_of(off), off, kSharing), Catch::Contains("zero-copy: no unit\n"));
  const Config on = shared_config("zero3");
  CHECK_THAT(describe(plan_of(on), on, kSharing), Catch::Contains("zero-copy: all units, "));
}

TEST_CASE("over several hosts units are zero-copy where each group that gathers one is within a host", "[zero_copy]") {
  constexpr int kAll = 4;
  Config groups = shared_config("hsdp");
  groups.train.deterministic = false;  // groups of neighbours
  CHECK(zero_copy_units(plan_on(groups, {0, 0, 1, 1})) == kAll);
  CHECK(zero_copy_units(plan_on(groups, {0, 1, 1, 0})) == 0);
  Config nested = shared_config("nested");
  nested.train.deterministic = false;
  CHECK(zero_copy_units(plan_on(nested, {0, 0, 1, 1})) == kAll);
  CHECK(zero_copy_units(plan_on(nested, {0, 0, 1, 2})) == 0);  // both groups or none: they go across together
  CHECK(zero_copy_units(plan_on(shared_config("nested"), {0, 0, 1, 1})) == 0);
  CHECK(zero_copy_units(plan_on(shared_config("zero3 k"), {0, 0, 1, 1})) == 0);
  CHECK(zero_copy_units(plan_on(shared_config("zero3"), {0, 0, 1, 1})) == 0);
  CHECK(zero_copy_units(plan_on(shared_config("zero3"), {0, 0, 0, 0})) == kAll);
  CHECK(zero_copy_units(plan_of(shared_config("zero3"), Transport::null)) == 0);
}

TEST_CASE("a zero-copy run has no whole parameters, and each rank counts its own shards", "[zero_copy]") {
  const std::string scheme = GENERATE(as<std::string>{}, "zero1", "zero3", "hsdp", "nested"),
                    param = GENERATE(as<std::string>{}, "f32", "bf16");
  CAPTURE(scheme, param);
  Config config = shared_config(scheme, param);
  const TrainPlan shared = plan_of(config);
  config.shard.zero_copy = "off";
  const TrainPlan copied = plan_of(config);
  CHECK(bytes_of(copied.buffers, "full_param") > 0);
  CHECK(bytes_of(shared.buffers, "full_param") == 0);
  const std::string held = scheme == "nested" ? "kept_shard" : param == "bf16" ? "param_shard" : "master";
  CHECK(bytes_of(shared.buffers, held) == bytes_of(copied.buffers, held));
  CHECK(shared.shared_bytes == bytes_of(shared.buffers, held));
  CHECK(shared.persistent_bytes ==
        copied.persistent_bytes + (scheme == "nested" ? shared.shared_bytes : 0));  // else of each step
  CHECK(shared.step_peak_bytes < copied.step_peak_bytes);
  CHECK(shared.reserved_bytes < copied.reserved_bytes);
}

TEST_CASE("what ranks share is the same bits as what each gathers, and is counted as planned", "[zero_copy]") {
  const std::string scheme =
                        GENERATE(as<std::string>{}, "zero1", "zero3", "zero3 k", "shard_grad_op", "hsdp", "nested"),
                    param = GENERATE(as<std::string>{}, "f32", "bf16");
  CAPTURE(scheme, param);
  Config config = shared_config(scheme, param);
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  const TinyResult shared = train_tiny(config, {.ranks = kSharing, .steps = 2});
  const TrainPlan plan = plan_of(config);
  CHECK(shared.reserved_bytes == plan.reserved_bytes);
  CHECK(shared.peak_bytes.back() == plan.step_peak_bytes);
  CHECK(shared.allocation_calls == 1);
  config.shard.zero_copy = "off";
  const TinyResult copied = train_tiny(config, {.ranks = kSharing, .steps = 2});
  CHECK(shared.weights == copied.weights);
  CHECK(shared.losses == copied.losses);
  CHECK(shared.grad_norms == copied.grad_norms);
}

TEST_CASE("what nested ranks share of gathers in 8 bits is what each would have decoded, and weights are read exactly",
          "[zero_copy]") {
  const std::string param = GENERATE(as<std::string>{}, "f32", "bf16");
  CAPTURE(param);
  Config config = shared_config("nested", param);
  config.train.deterministic = false;
  config.shard.compress_gather = "int8";
  const TinyResult shared = train_tiny(config, {.ranks = kSharing, .steps = 2});
  config.shard.zero_copy = "off";
  const TinyResult copied = train_tiny(config, {.ranks = kSharing, .steps = 2});
  CHECK(shared.losses == copied.losses);
  CHECK(shared.weights == copied.weights);
}

TEST_CASE("a rank that writes its weights late is waited for by those that read them", "[zero_copy]") {
  const SchemeOptions scheme = in_one_step_or_two();
  std::atomic<bool> was_read = false;
  std::atomic<std::int64_t> wrong = 0;
  run_local_world(kSharing, {.timeout_s = 60}, [&](World& world) {
    OneUnit run(world, scheme);
    run.write(1);
    run.read(1, wrong);
    run.executor().wait_readers();
    run.write(2, [&, is_late = world.rank() == 1] {
      if (is_late) wait_in_vain(was_read);
    });
    run.read(
        2, wrong, [] {}, [&] { was_read.store(true); });
    run.synchronize();
  });
  CHECK(wrong == 0);
}

TEST_CASE("a rank that reads late is waited for by those that write their weights", "[zero_copy]") {
  const SchemeOptions scheme = in_one_step_or_two();
  std::atomic<bool> was_written = false;
  std::atomic<std::int64_t> wrong = 0;
  run_local_world(kSharing, {.timeout_s = 60}, [&](World& world) {
    OneUnit run(world, scheme);
    run.write(1);
    run.read(1, wrong, [&, is_late = world.rank() == 1] {
      if (is_late) wait_in_vain(was_written);
    });
    run.executor().wait_readers();
    run.write(2);
    run.executor().context().launch({"written", {}, {}}, [&](ExecContext&) { was_written.store(true); });
    run.read(2, wrong);
    run.synchronize();
  });
  CHECK(wrong == 0);
}

TEST_CASE("what is written back waits for those that read", "[zero_copy]") {
  const SchemeOptions scheme = in_one_step_or_two();
  const DType param = GENERATE(DType::f32, DType::bf16);
  std::atomic<bool> was_written = false;
  std::atomic<std::int64_t> wrong = 0;
  run_local_world(kSharing, {.timeout_s = 60}, [&](World& world) {
    OneUnit run(world, scheme, {.param = param});
    run.write_back(1);
    run.read(1, wrong, [&, is_late = world.rank() == 1] {
      if (is_late) wait_in_vain(was_written);
    });
    run.write_back(2);
    run.executor().context().launch({"written", {}, {}}, [&](ExecContext&) { was_written.store(true); });
    run.read(2, wrong);
    run.synchronize();
  });
  CHECK(wrong == 0);
}

TEST_CASE("what is made whole is a copy of its own, and the weights are published again when it was written back",
          "[zero_copy]") {
  const SchemeOptions scheme = in_one_step_or_two();
  std::vector<std::string> gathers;
  std::atomic<std::int64_t> wrong = 0;
  run_local_world(kSharing, {.timeout_s = 60}, [&](World& world) {
    OneUnit run(world, scheme);
    run.write(1);
    const std::vector<std::string> seen = run.gathers_of([&] {
      run.read(1, wrong);
      run.read(1, wrong);
      run.make_whole();
      run.read(1, wrong);
      run.write_back(2);
      run.read(2, wrong);
    });
    if (world.rank() == 0) gathers = seen;  // the only writer; read after every rank has ended
    run.synchronize();
  });
  std::vector<std::string> expected = {"publish:root", "copy_masters:root", "copy_masters:root", "publish:root"};
  if (scheme.strategy == Strategy::nested) {  // what is shared is fetched anew behind each update
    expected.insert(expected.begin(), "all_gather:root");
    expected.insert(expected.end() - 1, "all_gather:root");
  }
  CHECK(gathers == expected);
  CHECK(wrong == 0);
}

TEST_CASE("what an error has kept from being published is published after it", "[zero_copy]") {
  std::vector<std::string> gathers;
  std::atomic<std::int64_t> wrong = 0;
  run_local_world(2, {.timeout_s = 60}, [&](World& world) {
    OneUnit run(world);
    run.write(1);
    run.read(1, wrong);
    run.synchronize();
    run.executor().context().launch({"fails", {}, {}},
                                    [](ExecContext&) { throw std::runtime_error("alike on all ranks"); });
    run.executor().masters_updated();
    run.read(1, wrong);  // enqueued, and then skipped
    try {
      run.synchronize();
    } catch (const std::runtime_error&) {
      run.abandon();
    }
    const std::vector<std::string> seen = run.gathers_of([&] { run.read(1, wrong); });
    if (world.rank() == 0) gathers = seen;  // the only writer; read after every rank has ended
    run.synchronize();
  });
  CHECK(gathers == std::vector<std::string>{"publish:root"});
  CHECK(wrong == 0);
}

TEST_CASE("a bf16 unit that is validated in f32 is a view in training and a copy in validation", "[zero_copy]") {
  Config config = shared_config("zero3", "bf16");
  config.precision.validation = "f32";
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  const TrainPlan plan = plan_of(config);
  CHECK(zero_copy_units(plan) == 4);
  CHECK(bytes_of(plan.buffers, "full_param") == 0);  // of a step
  const TinyResult shared = train_tiny(config, {.ranks = kSharing, .steps = 2});
  CHECK(shared.reserved_bytes == plan.reserved_bytes);
  config.shard.zero_copy = "off";
  CHECK(train_tiny(config, {.ranks = kSharing, .steps = 2}).weights == shared.weights);
}

TEST_CASE("every update comes behind an all-reduce of all ranks whose weights it writes, itself behind the last read",
          "[zero_copy]") {
  const std::string scheme =
      GENERATE(as<std::string>{}, "zero1", "zero3", "zero3 k", "shard_grad_op", "hsdp", "nested");
  Config config = shared_config(scheme);
  config.train.deterministic = GENERATE(true, false);
  config.train.clip = GENERATE(0.0, 1.0);
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  CAPTURE(scheme, config.train.deterministic, config.train.clip);
  const auto device = Device::create(DeviceKind::meta, {.cpus = {}, .slab_bytes = Pool::kGrowingSlab});
  const auto world = make_meta_world(0, kSharing);
  Session session(*device, *world, config);
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(config.train.micro_batch * config.train.sequence));
  const ReadSamples read = [&](std::int64_t) { return SampleBatch{zeros, zeros}; };
  device->trace().start();
  session.enqueue_step(1, 0, read, false);
  session.enqueue_validation(read);
  session.enqueue_step(2, 0, read, false);
  const auto is_shared = [&](const Buffer& buffer) {
    const auto& units = session.runtime().executor().units();
    return std::any_of(units.begin(), units.end(), [&](const FlatParameter& unit) {
      const auto *begin = static_cast<const std::byte*>(unit.shared.data),
                 *at = static_cast<const std::byte*>(buffer.data);
      return at >= begin && at < begin + unit.shared.bytes();
    });
  };
  int updates = 0, reads = 0, unordered = 0;
  bool has_met = false;  // since the last read of another rank's weights
  for (const TraceEntry& entry : device->trace().entries()) {
    if (entry.kind != TraceEntry::Kind::op || entry.stream != StreamRole::compute) continue;
    if (entry.op.name.starts_with("adamw:")) {
      ++updates;
      unordered += !has_met;
    } else if (entry.op.name == "all_reduce:grad_norm") {
      has_met = true;
    } else if (std::any_of(entry.op.reads.begin(), entry.op.reads.end(), is_shared)) {
      ++reads;
      has_met = false;
    }
  }
  CHECK(updates == 2 * 4);
  CHECK(reads > 0);
  CHECK(unordered == 0);
}

}  // namespace zs::test::zero_copy_test
