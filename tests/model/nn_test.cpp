// Layers that no family uses as they are, and what all layers have in common.
#include <catch2/catch.hpp>

#include <map>

#include "model/nn/mlp.h"
#include "model/nn/module_list.h"
#include "model/nn/norm.h"
#include "runtime/shard/sharded_runtime.h"
#include "tests/tensor/gradient_check.h"

namespace zs::test {
namespace {

std::vector<std::string> names_of(const Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.own_parameters()) names.push_back(parameter->name());
  for (const Module* child : module.children())
    for (std::string& name : names_of(*child)) names.push_back(std::move(name));
  return names;
}

/// A model that is nothing but its layers, in one unit.
struct Stack : Module {
  Stack() : Module(""), layers(make_child<Sequential>("layers")), more(make_child<ModuleList<Linear>>("more")) {
    layers.add<RMSNorm>(6)
        .add<Linear>(6, 10)
        .add([](const Tensor& x) { return gelu(x, GeluKind::erf); })
        .add<Linear>(10, 4, LinearOptions{.has_bias = false});
    for (int i = 0; i < 2; ++i) more.add(4, 4);
  }
  Tensor forward(const Tensor& x) {
    const ForwardScope scope = enter();
    Tensor y = layers.forward(x);
    for (Linear* layer : more) y = layer->forward(y);
    return y;
  }
  Sequential& layers;
  ModuleList<Linear>& more;
};

}  // namespace

TEST_CASE("layers name their parameters by where they are, in the order of the model") {
  CHECK(names_of(Stack()) == std::vector<std::string>{"layers.0.weight", "layers.1.weight", "layers.1.bias",
                                                      "layers.3.weight", "more.0.weight", "more.0.bias",
                                                      "more.1.weight", "more.1.bias"});
  CHECK(names_of(Mlp("mlp", {.width = 4, .hidden = 8})) ==
        std::vector<std::string>{"mlp.up.weight", "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"});
  CHECK(names_of(Mlp("mlp", {.width = 4, .hidden = 8, .activation = Activation::swiglu, .has_bias = false})) ==
        std::vector<std::string>{"mlp.gate_up.weight", "mlp.down.weight"});
}

TEST_CASE("a Sequential and a ModuleList compute their layers one after the other") {
  const auto device = Device::create(DeviceKind::cpu, {});
  Context context(*device);
  const auto world = make_single_world({});
  Stack stack;
  ShardedRuntime runtime(context, *world, {});
  shard_module(stack, runtime, Units::model);
  std::map<std::string, Values> w;
  runtime.executor().read_full(0, [&](const Parameter& parameter, const float* values) {
    w[parameter.name()] = Values(values, values + parameter.numel());
  });
  const Values x = normal({5, 6}, "x").values;
  runtime.begin_micro_batch(Mode::eval, true);
  const Tensor y = stack.forward(Tensor::from_host(context, {5, 6}, to_floats(x)));
  runtime.end_micro_batch();
  Values want =
      ref::linear(ref::rms_norm(x, w.at("layers.0.weight"), 1e-5), w.at("layers.1.weight"), &w.at("layers.1.bias"), 6);
  want = ref::linear(ref::gelu(want, GeluKind::erf), w.at("layers.3.weight"), nullptr, 10);
  for (const std::string layer : {"more.0.", "more.1."})
    want = ref::linear(want, w.at(layer + "weight"), &w.at(layer + "bias"), 4);
  check_close("y", y.to_host(), want, 2e-6);
  CHECK(stack.more.size() == 2);
  CHECK(stack.more[1].path() == "more.1");
}

}  // namespace zs::test
