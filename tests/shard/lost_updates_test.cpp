// Updates that are lost in rounding, counted on any number of ranks, against the weights as they were and are.
#include "runtime/shard/optimizers/lost_updates.h"

#include <cmath>

#include "model/sharding/fully_shard.h"
#include "runtime/shard/optimizers/adamw8bit.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/optimizers/sgd.h"
#include "runtime/tensor/reduction.h"
#include "tests/message_of.h"
#include "tests/shard/optimizer_run.h"

namespace zs::test::lost_updates_test {
namespace {

const std::vector<std::string> kPatterns{"*.bias", "layer1.*"};

/// By hand, of one rank: the weights before and after a step of this rate, and whose gradient is not 0.
std::vector<LostShare> counted(const Make& make, DType param, float lr) {
  const auto world = make_single_world({.timeout_s = 60});
  Run run(*world, {}, make, param);
  const std::vector<std::string> groups{"*.bias", "layer1.*", "others"};
  std::vector<std::array<double, 3>> sums(3);
  const Arrays before = run.weights();
  run.accumulate(1);
  run.runtime.executor().wait_reductions();
  run.device->synchronize();
  std::vector<std::pair<std::size_t, std::vector<float>>> gradients;
  for (const FlatParameter& unit : run.runtime.executor().units())
    for (const FlatView& view : unit.layout->views()) {
      const float* const grad = unit.grad_buffer().slice(view.offset, view.numel).as<float>();
      const std::size_t group = NamePattern("*.bias").matches(view.name)     ? 0
                                : NamePattern("layer1.*").matches(view.name) ? 1
                                                                             : 2;
      gradients.emplace_back(group, std::vector<float>(grad, grad + view.numel));
    }
  run.optimizer->step(lr, 1);
  const Arrays after = run.weights();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    auto& [elems, masters, copies] = sums[gradients[i].first];
    for (std::size_t j = 0; j < gradients[i].second.size(); ++j) {
      if (gradients[i].second[j] == 0) continue;
      ++elems;
      masters += before[i][j] == after[i][j] ? 1 : 0;
      copies += static_cast<float>(BFloat16(before[i][j])) == static_cast<float>(BFloat16(after[i][j])) ? 1 : 0;
    }
  }
  std::vector<LostShare> shares;
  for (std::size_t i = 0; i < 3; ++i) {
    if (sums[i][0] == 0) continue;
    shares.push_back({groups[i], sums[i][0], sums[i][1] / sums[i][0], {}});
    if (param == DType::bf16) shares.back().copies = sums[i][2] / sums[i][0];
  }
  return shares;
}

std::vector<LostShare> metered(int ranks, const SchemeOptions& scheme, const Make& make, DType param, float lr,
                               const LayoutOptions& layout) {
  return on_ranks(ranks, [&](World& world) {
    Run run(world, scheme, make, param, layout);
    LostUpdates lost(run.runtime.executor(), kPatterns);
    run.accumulate(1);
    run.optimizer->set_scalars(lr, 1);
    lost.begin();
    run.optimizer->update();
    lost.end();
    return lost.shares();
  })[static_cast<std::size_t>(ranks) - 1];
}

}  // namespace

TEST_CASE("lost updates are counted by group, the same in every scheme and layout") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  const float lr = GENERATE(3e-8f, 3e-6f, 1e-3f);
  const Make make = maker_of<Sgd>(SgdConfig{.order_free = true});
  const std::vector<LostShare> expected = counted(make, param, lr);
  REQUIRE(expected.size() == 3);
  CHECK(expected[2].masters > (lr < 1e-7f ? 0.5 : -1));  // of 0.1 a last place is 7e-9, and gradients are below 1
  for (const std::string& name : scheme_names()) {
    CAPTURE(name, name_of(param), lr);
    CHECK(metered(4, scheme_of(name, 4), make, param, lr, {}) == expected);
    CHECK(metered(2, scheme_of(name, 2), make, param, lr, {.layout = Layout::per_parameter, .min_shard_bytes = 100}) ==
          expected);
  }
}

TEST_CASE(
    "lost updates are counted of optimizers that update whole matrices or in 8 bits, and of a step of 0 all are lost") {
  const Make make =
      GENERATE(maker_of<Muon>(MuonConfig{.matrices = {"layer*.weight"}, .weight_decay = 0, .order_free = true}),
               maker_of<AdamW8bit>(AdamWConfig{.weight_decay = 0, .order_free = true}));
  const float lr = GENERATE(0.0f, 1e-3f);
  const auto shares = metered(2, {}, make, DType::bf16, lr, {});
  REQUIRE(shares.size() == 3);
  CHECK(shares == counted(make, DType::bf16, lr));
  for (const LostShare& share : shares) CHECK((share.masters == 1) == (lr == 0));
}

TEST_CASE("elements without a gradient are not counted, whatever their weights are") {
  struct Net : Layer<Net> {
    Tensor forward(const Tensor& x) { return linear(x, weight, nullptr); }
    Parameter& weight = add_parameter("weight", {3, 4}, {}, true);  // zeros
  };
  const auto world = make_single_world({.timeout_s = 60});
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Net net;
  ShardedModel model = fully_shard(net, context, *world);
  Sgd optimizer(model, {});
  LostUpdates lost(model.executor(), {});
  auto micro_batch = model.micro_batch();
  sum(net(Tensor::from_host(context, {1, 4}, std::vector<float>{1, 0, 0, 0}))).backward();
  micro_batch.end();
  optimizer.set_scalars(1, 1);
  lost.begin();
  optimizer.update();
  lost.end();
  CHECK(lost.shares() == std::vector<LostShare>{{"all", 3, 0, {}}});
}

}  // namespace zs::test::lost_updates_test
