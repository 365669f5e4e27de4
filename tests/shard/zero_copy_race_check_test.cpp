#include <catch2/catch.hpp>

#include <cmath>
#include <thread>

#include "tests/shard/one_unit.h"

namespace zs::test::zero_copy_race_check_test {
namespace {

/// Operations on private copies that end late, so that whoever touches a buffer in use is found.
WorldOptions race_checked() {
  WorldOptions options{.timeout_s = 60};
  options.race_check_delay_ms = 1;
  return options;
}

std::int64_t numbers_in(const Buffer& f32) {
  return std::count_if(f32.as<float>(), f32.as<float>() + f32.elems,
                       [](float element) { return !std::isnan(element); });
}

}  // namespace

TEST_CASE("in race-check mode who reads weights without waiting for their gather finds no number", "[zero_copy]") {
  std::atomic<std::int64_t> wrong = 0, numbers = 0;
  run_local_world(2, race_checked(), [&](World& world) {
    OneUnit run(world);
    run.write(1);
    run.read(1, wrong);
    run.executor().wait_readers();
    run.write(2);
    run.synchronize();
    world.agree(0, "");  // every rank has written, none has published
    run.executor().context().launch(
        {"early", {}, {}}, [&, view = run.executor().units()[0].shared](ExecContext&) { numbers += numbers_in(view); });
    run.synchronize();
    world.agree(0, "");
    run.read(2, wrong);
    run.write_back(3);
    run.read(3, wrong);
    run.synchronize();
  });
  CHECK(numbers == 0);
  CHECK(wrong == 0);
}

TEST_CASE("in race-check mode weights that are written while another rank reads them are no numbers to it",
          "[zero_copy]") {
  std::atomic<bool> was_written = false;
  std::atomic<std::int64_t> numbers = 0;
  run_local_world(2, race_checked(), [&](World& world) {
    OneUnit run(world);
    run.write(1);
    std::atomic<std::int64_t> wrong = 0;
    run.read(1, wrong);
    run.synchronize();
    world.agree(0, "");
    Context& context = run.executor().context();
    if (world.rank() == 0) {
      run.write(2);  // without wait_readers()
      context.launch({"written", {}, {}}, [&](ExecContext&) { was_written = true; });
    } else {
      const Buffer view = run.executor().units()[0].shared, others = view.slice(0, view.elems / 2);
      context.launch({"late", {}, {}}, [&, others](ExecContext&) {
        while (!was_written) std::this_thread::yield();
        numbers += numbers_in(others);
      });
    }
    run.synchronize();
    world.agree(0, "");
  });
  CHECK(numbers == 0);
}

TEST_CASE("in race-check mode a zero-copy run is the same bits and counts the same memory", "[zero_copy]") {
  const std::string scheme = GENERATE(as<std::string>{}, "zero3", "nested"),
                    param = GENERATE(as<std::string>{}, "f32", "bf16");
  CAPTURE(scheme, param);
  Config config = shared_config(scheme, param);
  config.run.validate_every = 1;
  config.run.validate_batches = 1;
  const TinyOptions options{.ranks = kSharing, .steps = 2};
  TinyResult found;
  run_local_world(kSharing, race_checked(), [&](World& world) {
    const TinyResult result = train_tiny(world, config, options);
    if (world.rank() == 0) found = result;
  });
  const TinyResult usual = train_tiny(config, options);
  CHECK(found.weights == usual.weights);
  CHECK(found.losses == usual.losses);
  CHECK(found.reserved_bytes == usual.reserved_bytes);
  CHECK(found.peak_bytes == usual.peak_bytes);
}

}  // namespace zs::test::zero_copy_race_check_test
