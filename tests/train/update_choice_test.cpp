// Who makes updates where that is left open: what is measured, and what the program says of it.
#include "model/train/plan/update_choice.h"

#include "tests/train/config_text.h"

namespace update_choice_test {

using namespace zs;
using namespace zs::test;

namespace {

Config config_with(Overrides overrides) {
  for (const char* const kept : {"offload.weights=host", "offload.gradients=host", "offload.moments=host"})
    overrides.insert(overrides.begin(), kept);
  return parse_config(kSmall, "small.toml", overrides);
}

}  // namespace

TEST_CASE("the host may update what it has all of in its memory") {
  CHECK(may_update_on_host(config_with({})));
  CHECK(may_update_on_host(config_with({"train.optimizer=lion"})));
  CHECK(may_update_on_host(config_with({"train.optimizer=sgd", "offload.moments=device"})));
  CHECK_FALSE(may_update_on_host(config_with({"offload.moments=device"})));
  CHECK_FALSE(may_update_on_host(config_with({"offload.gradients=device"})));
  CHECK_FALSE(may_update_on_host(config_with({"offload.weights=disk:/x", "precision.param=bf16"})));
  CHECK_FALSE(may_update_on_host(config_with({"train.optimizer=muon"})));
  CHECK_FALSE(may_update_on_host(config_with({"train.optimizer=adamw8bit"})));
}

TEST_CASE("a slow link has the host update, and a fast one the device") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  const UpdateCosts slow = measure_update(config_with({"offload.cpu_link_gbs=0.001"}), *device);
  CHECK(slow.prefers_host());
  CHECK(slow.device_ns == Approx(28 / 0.001));
  CHECK_FALSE(measure_update(config_with({"offload.cpu_link_gbs=1000000"}), *device).prefers_host());
  const UpdateCosts narrow =
      measure_update(config_with({"offload.cpu_link_gbs=0.001", "precision.param=bf16"}), *device);
  CHECK(narrow.host_ns > 2 / 0.001);  // the copy that goes up
  CHECK(measure_update(config_with({}), *device).device_ns > 0);
}

}  // namespace update_choice_test
