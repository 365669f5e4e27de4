#include "tests/shard/audited_ops.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>

#include "runtime/shard/checkpoint/copy_weights.h"
#include "runtime/tensor/elementwise.h"
#include "runtime/tensor/integers.h"
#include "runtime/tensor/values.h"
#include "tests/shard/audit_device.h"
#include "tests/shard/chain_model.h"
#include "tests/tensor/op_by_elements.h"

namespace zs::test {

namespace {

/// A mask that happens to be 1 all over is as if it were not read. Masks alone have tests of their own among the ops.
bool is_of_mask(const std::string& finding) {
  return (finding.starts_with("'eq") || finding.starts_with("'where")) &&
         finding.find("does not read") != std::string::npos;
}

}  // namespace

Names audit_general_ops(DType dtype) {
  std::vector<NamedOp> ops = general_ops(), of_others;
  add_composed(of_others);
  Names composed;
  for (const NamedOp& op : of_others) composed.insert(op.name);
  const auto add = [&](const char* name, const std::function<Tensor(const Tensor&)>& run) {
    ops.push_back(
        {name, {{normal({4, 6}, name)}, {}, [run](Context&, const auto& x, const auto&) { return run(x[0]); }, {}}});
  };
  add("argmax", [](const Tensor& x) { return x + cast(eq(argmax(x, 1).reshape({4, 1}), 3.0f), x.dtype()); });
  add("dropout",
      [](const Tensor& x) { return dropout(x, 0.5f, {.seed = 1, .step = 2, .first_sample = 3, .place = 4}); });
  add("integers", [](const Tensor& x) {
    const Tensor ids = cast(clamp(x, 0, 3), DType::i32);
    const Tensor chosen = where(relu(x), remainder(ids + 2.0f, 4), ids) + full(x.context(), {6}, 0, DType::i32);
    return x * cast(sum(one_hot(chosen, 4), {2}), x.dtype()) + cast(chosen, x.dtype());
  });
  add("square", [](const Tensor& x) {
    return elementwise(
        "square", x, [](float v) { return v * v; }, [](float v) { return 2 * v; });
  });
  Names names;
  for (const auto& [name, op] : ops) {
    AuditDevice device(std::int64_t{1} << 20);
    {
      Context context(device);
      std::vector<Tensor> inputs;
      for (const Argument& argument : op.inputs) {
        inputs.push_back(Tensor::from_host(context, argument.shape, to_floats(argument.values), dtype));
        inputs.back().set_requires_grad();
      }
      const Tensor y = op.run(context, inputs, {});
      backward(y.numel() == 1 && y.dtype() == DType::f32
                   ? y.reshape({})
                   : weighted_sum(y, to_floats(normal(y.shape(), "weights").values)));
    }
    INFO(name << " of " << name_of(dtype));
    std::vector<std::string> findings = device.findings();
    if (composed.count(name) > 0) std::erase_if(findings, is_of_mask);
    CHECK(fmt::format("{}", fmt::join(findings, "; ")) == "");
    names.insert(device.audited().begin(), device.audited().end());
  }
  return names;
}

Names audit_copying() {
  const auto world = make_single_world({.timeout_s = 60});
  AuditDevice device(std::int64_t{1} << 20);
  {
    Context context(device);
    Chain model, other;
    ShardedRuntime from(context, *world, {}), to(context, *world, {});
    shard_module(model, from, Units::block);
    shard_module(other, to, Units::block);
    copy_weights(from.executor(), to.executor(), 0.5f);
    copy_weights(from.executor(), to.executor());
  }
  CHECK(fmt::format("{}", fmt::join(device.findings(), "; ")) == "");
  return device.audited();
}

}  // namespace zs::test
