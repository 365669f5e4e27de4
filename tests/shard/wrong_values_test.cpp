// Values that a call cannot take: a UsageError that names it, and no failed check, signal or endless loop.
#include <catch2/catch.hpp>

#include <limits>

#include "model/nn/batch_norm.h"
#include "model/nn/embedding.h"
#include "model/nn/kv_cache.h"
#include "model/nn/linear.h"
#include "model/nn/mlp.h"
#include "model/nn/norm.h"
#include "model/sharding/fully_shard.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/dot_product_attention.h"
#include "runtime/tensor/recompute.h"
#include "tests/shard/chain_model.h"

namespace zs::test::wrong_values_test {
namespace {

using Catch::Contains;
using std::int64_t;
constexpr int64_t kHuge = int64_t{1} << 32, kMost = std::numeric_limits<int64_t>::max();

struct Case {
  const char* name;
  std::vector<std::string> words;
  std::function<void(Context&)> body;
};

Tensor floats(Context& context, const Shape& shape) {
  return Tensor::from_host(context, shape, std::vector<float>(static_cast<std::size_t>(shape.numel()), 0.5f));
}
Tensor ids(Context& context, const Shape& shape, std::int32_t id) {
  return Tensor::from_host(context, shape, std::vector<std::int32_t>(static_cast<std::size_t>(shape.numel()), id));
}

std::vector<Case> of_shapes() {
  return {{"elements beyond counting",
           {"(4294967296, 4294967296)"},
           [](Context& c) {
             Tensor::zeros(c, {kHuge, kHuge}, DType::f32);
           }},
          {"an expansion beyond counting",
           {"more elements"},
           [](Context& c) {
             expand(floats(c, {1, 1}), {kHuge, kHuge});
           }},
          {"lines whose end is beyond counting",
           {"op slice", "from 2 on"},
           [](Context& c) { slice(floats(c, {4}), 0, 2, kMost); }},
          {"rows behind the end",
           {"2 rows from 3 on of f32 (4, 2)"},
           [](Context& c) {
             floats(c, {4, 2}).rows(3, 2);
           }},
          {"rows whose end is beyond counting",
           {"from 2 on"},
           [](Context& c) {
             floats(c, {4, 2}).rows(2, kMost);
           }},
          {"integers as floats", {"to_host() of i32 (4)", "HostView"}, [](Context& c) { ids(c, {4}, 1).to_host(); }},
          {"integers and floats",
           {"op add", "i32", "cast one of them"},
           [](Context& c) { floats(c, {4}) + ids(c, {4}, 1); }},
          {"a line that is not there",
           {"op gather", "50"},
           [](Context& c) {
             gather(floats(c, {5, 2}), 0, ids(c, {1, 2}, 50)).to_host();
           }},
          {"a mask that is to be added",
           {"op check_mask", "below 0, element 1"},
           [](Context& c) {
             const Tensor x = floats(c, {1, 1, 2, 4});
             const std::vector<float> added{0, -1e30f, 0, 0};
             dot_product_attention(x, x, x, {.mask = Tensor::from_host(c, {2, 2}, added)});
             c.device().synchronize();
           }},
          {"halves of an odd row", {"op swiglu", "(2, 3)"}, [](Context& c) {
             swiglu(floats(c, {2, 3}));
           }}};
}

std::vector<Case> of_gradients_and_devices() {
  return {{"a gradient of an output",
           {"set_requires_grad()", "detach()"},
           [](Context& c) {
             Tensor x = floats(c, {4});
             x.set_requires_grad();
             Tensor y = x * 2.0f;
             y.set_requires_grad();
           }},
          {"a tensor from outside",
           {"op mul of a recomputed function", "among the inputs"},
           [](Context& c) {
             Tensor x = floats(c, {4});
             x.set_requires_grad();
             recompute({x}, [z = x * 2.0f](const std::vector<Tensor>& v) { return v[0] * z; });
           }},
          {"nothing to recompute from",
           {"recompute()"},
           [](Context& c) { recompute({}, [&](const std::vector<Tensor>&) { return floats(c, {1}); }); }},
          {"another shape the second time",
           {"op rows with result (2)", "first ran op rows with result (4)"},
           [](Context& c) {
             Tensor x = floats(c, {4});
             x.set_requires_grad();
             int calls = 0;
             sum(recompute({x}, [&](const std::vector<Tensor>& v) {
               return v[0].rows(0, ++calls == 1 ? 4 : 2);
             })).backward();
           }},
          {"tensors of two devices",
           {"op mul", "different devices"},
           [](Context& c) {
             const auto device = Device::create(DeviceKind::cpu, {});
             Context other(*device);
             floats(c, {4}) * floats(other, {4});
           }},
          {"a hook that is empty",
           {"on_gradient with an empty function"},
           [](Context& c) { on_gradient(floats(c, {4}), nullptr); }},
          {"an empty function to recompute",
           {"recompute() of an empty function"},
           [](Context& c) {
             Tensor x = floats(c, {4});
             x.set_requires_grad();
             recompute({x}, TensorFunction());
           }},
          {"a reshape with two sizes left open",
           {"dim 1 is -1"},
           [](Context& c) {
             floats(c, {4}).reshape({-1, -1});
           }},
          {"a reshape that leaves no whole size",
           {"(4) to (3, -1)", "divide 4 elements"},
           [](Context& c) {
             floats(c, {4}).reshape({3, -1});
           }},
          {"a size of a dim that is not there",
           {"dim 2 of a shape with 1 dims"},
           [](Context& c) { static_cast<void>(floats(c, {4}).size(2)); }},
          {"no work",
           {"\"mine\"", "empty function"},
           [](Context& c) {
             c.launch({"mine", {}, {}}, {});
           }},
          {"no threads", {"0 threads"}, [](Context&) { Device::create(DeviceKind::cpu, {.threads = 0, .cpus = {}}); }}};
}

std::vector<Case> of_modules() {
  struct Parent : Module {
    Parent() : Module("parent") { add_child(*this); }
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return {{"a layer without inputs", {"net.weight", "(4, 0)"}, [](Context&) { Linear("net", 0, 4); }},
          {"a layer without outputs", {"net.weight", "(0, 4)"}, [](Context&) { Linear("net", 4, 0); }},
          {"a layer beyond counting", {"(4294967296, 4294967296)"}, [](Context&) { Linear("net", kHuge, kHuge); }},
          {"a norm of nothing", {"norm.weight", "(0)"}, [](Context&) { LayerNorm("norm", 0); }},
          {"another norm of nothing", {"norm.weight"}, [](Context&) { RMSNorm("norm", 0); }},
          {"a norm's eps", {"\"norm\"", "-1"}, [](Context&) { LayerNorm("norm", 4, -1.0f); }},
          {"a momentum", {"\"norm\"", "5"}, [](Context&) { BatchNorm("norm", 4, {.momentum = 5}); }},
          {"an MLP without a middle", {"mlp.up.weight"}, [](Context&) { Mlp("mlp", {.width = 8, .hidden = 0}); }},
          {"no vocabulary", {"table.weight"}, [](Context&) { Embedding("table", 0, 4, {}); }},
          {"a padding that is no row", {"\"table\"", "9"}, [](Context&) { Embedding("table", 4, 4, {}, 9); }},
          {"a cache of nothing", {"KvCache of -4"}, [](Context&) { KvCache(-4); }},
          {"values that are none",
           {"net.weight", "nan"},
           [nan](Context&) { Linear("net", 4, 4, {.init = {.constant = nan}}); }},
          {"a child without a name",
           {"a part without a name of module \"parent\""},
           [](Context&) {
             struct Nameless : Module {
               Nameless() : Module("parent") { make_child<Linear>("", 4, 4); }
             };
             Nameless();
           }},
          {"a module below itself", {"\"parent\"", "its own child"}, [](Context&) { Parent(); }}};
}

std::vector<Case> of_calls() {
  struct Base : Layer<Base> {
    explicit Base(std::int64_t width) : weight(add_parameter("weight", {width}, {}, true)) {}
    Parameter& weight;
    Tensor forward(const Tensor& x) { return x; }
  };
  struct Outer : Layer<Outer> {
    Outer() : Layer("outer") {}
    Linear& inner = make_child<Linear>("inner", 8, 4);
    Tensor forward(const Tensor& x) { return inner(x); }
  };
  struct Silent : Base {
    Silent() : Base(4) {}
    Tensor forward(const Tensor& x) { return x * 2.0f; }
  };
  return {{"a subclass that is no layer of its own",
           {"a Silent, is called as the Base", "Layer<Silent, Base>"},
           [](Context& c) { Silent()(floats(c, {4})); }},
          {"a width that a layer within a layer does not take",
           {"op linear", "rows of 8 (in outer.inner)"},
           [](Context& context) {
             const auto world = make_single_world({.timeout_s = 60});
             Outer outer;
             ShardedModel model = fully_shard(outer, context, *world);
             auto evaluation = model.evaluation();
             outer(floats(context, {2, 5}));
           }},
          {"a token of a vocabulary's padding", {"op embedding", "6", "5"}, [](Context& context) {
             const auto world = make_single_world({.timeout_s = 60});
             Embedding table("table", 8, 4, {});
             table.weight().set_matrix_rows({5});
             ShardedModel model = fully_shard(table, context, *world);
             auto evaluation = model.evaluation();
             table(ids(context, {1, 2}, 4)).to_host();
             table(ids(context, {1, 2}, 6)).to_host();
           }}};
}

std::vector<Case> of_options() {
  const auto with = [](ShardOptions options) {
    return [options = std::move(options)](Context& context) {
      const auto world = make_single_world({.timeout_s = 60});
      Linear net("net", 4, 4);
      ShardedModel model = fully_shard(net, context, *world, {.shard = options});
      auto evaluation = model.evaluation();
    };
  };
  const auto on = [](std::function<void(ShardedRuntime&)> body) {
    return [body = std::move(body)](Context& context) {
      const auto world = make_single_world({.timeout_s = 60});
      Linear net("net", 4, 4);
      ShardedModel model = fully_shard(net, context, *world);
      body(model.runtime());
    };
  };
  return {{"a division by 0", {"Division", "by 0"}, with({.division = {Division::Rule::custom, 0}})},
          {"a prefetch below 0", {"PrefetchOptions", "-1"}, with({.schedule = {.prefetch = -1}})},
          {"a limit below 0", {"PrefetchOptions", "-1"}, with({.schedule = {.limit = -1}})},
          {"no reductions", {"max_reductions_in_flight 0"}, with({.schedule = {.max_reductions_in_flight = 0}})},
          {"shards below 0",
           {"min_shard_bytes -1"},
           with({.layout = {.layout = Layout::per_parameter, .min_shard_bytes = -1}})},
          {"a disk for what the device keeps",
           {"a disk for the optimizer's state", "has_moments_on_host"},
           with({.residence = {.moments_disk = "state"}})},
          {"a disk for weights that the device keeps",
           {"a disk for the master weights"},
           with({.residence = {.has_moments_on_host = true, .masters_disk = "state"}})},
          {"a target that is not there", {"set_prefetch() of unit 77"}, on([](ShardedRuntime& runtime) {
             runtime.set_prefetch(ExecOrder::Phase::forward, 0, {77});
           })},
          {"a unit that is not there", {"unshard(): unit 9 of a model with 1"}, on([](ShardedRuntime& runtime) {
             (void)runtime.unshard(9);
           })},
          {"a scope of one", {"UnshardScope of unit 9"}, on([](ShardedRuntime& runtime) {
             const UnshardScope scope(runtime, std::vector<int>{9});
           })}};
}

struct Affine : Layer<Affine> {
  struct Options {
    float factor = 2, plus = 0;
  };
  Tensor forward(const Tensor& x, const Options& options, const Shape& shape = {1}) {
    return (x * options.factor + options.plus).reshape(shape);
  }
};
struct Scale : Layer<Scale> {
  explicit Scale(float by) : factor(by) {}
  float factor;
  Tensor forward(const Tensor& x) { return x * factor; }
};
struct Twice : Layer<Twice, Scale> {
  Twice() : Layer(2.0f) {}
  Tensor forward(const Tensor& x) { return Scale::forward(Scale::forward(x)); }
};
struct Dispatched : Layer<Dispatched> {
  bool serves_subclasses() const override { return true; }
  virtual Tensor forward(const Tensor& x) { return x; }
};
struct Negated : Dispatched {
  Tensor forward(const Tensor& x) override { return neg(x); }
};

}  // namespace

TEST_CASE("one size of a reshape may be left open") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  const Tensor x = floats(context, {4, 6});
  CHECK(x.reshape({2, -1, 3}).shape() == Shape({2, 4, 3}));
  CHECK(x.reshape({-1}).size(0) == 24);
  CHECK(x.reshape({3, 8}).size(-1) == 8);
}

TEST_CASE("a layer is called with arguments in braces") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  Tensor x = floats(context, {1});
  const Tensor same = x;
  Affine affine;
  CHECK(affine(x, {}).to_host() == std::vector{1.0f});
  CHECK(affine(same, {.factor = 3, .plus = 1}).to_host() == std::vector{2.5f});
  CHECK(affine(x, {}, {1, 1}).shape() == Shape({1, 1}));
  CHECK(affine(x, Affine::Options{}).to_host() == std::vector{1.0f});
  CHECK(affine(same, {}, same.shape()).to_host() == std::vector{1.0f});
}

TEST_CASE("a subclass of a layer is called as one over it, or through a forward that is virtual") {
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Context context(*device);
  const Tensor x = floats(context, {1});
  CHECK(Twice()(x).to_host() == std::vector{2.0f});
  CHECK(Scale(3)(x).to_host() == std::vector{1.5f});
  Negated negated;
  Dispatched& layer = negated;
  CHECK(layer(x).to_host() == std::vector{-0.5f});
}

TEST_CASE("a value that a call cannot take is a UsageError that names both") {
  for (const auto& cases : {of_shapes(), of_gradients_and_devices(), of_modules(), of_calls(), of_options()}) {
    for (const Case& one : cases) {
      INFO(one.name);
      const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
      Context context(*device);
      std::string text = "nothing was said";
      try {
        one.body(context);
      } catch (const UsageError& error) {
        text = error.what();
      } catch (const std::exception& error) {
        text = std::string("not a UsageError: ") + error.what();
      }
      CHECK(text.find("not a UsageError") == std::string::npos);
      for (const std::string& word : one.words) CHECK_THAT(text, Contains(word));
    }
  }
}

}  // namespace zs::test::wrong_values_test
