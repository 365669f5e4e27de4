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
          {"a module below itself", {"\"parent\"", "its own child"}, [](Context&) { Parent(); }}};
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

}  // namespace

TEST_CASE("a value that a call cannot take is a UsageError that names both") {
  for (const auto& cases : {of_shapes(), of_gradients_and_devices(), of_modules(), of_options()}) {
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
