#include "model/sharding/fully_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "comm/together.h"
#include "runtime/base/name_pattern.h"
#include "runtime/base/random.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

bool has_marked(const Module& module) {
  const auto& children = module.children();
  return std::any_of(children.begin(), children.end(),
                     [](const Module* child) { return child->own_policy().has_value() || has_marked(*child); });
}

/// Each unit's policy, and which patterns have found one.
class Policies {
 public:
  explicit Policies(const FullyShardOptions& options) : options_(options), is_used_(options.policies.size()) {
    for (const auto& policy : options.policies) patterns_.emplace_back(policy.first);
  }

  UnitPolicy of(const Module& module) {
    UnitPolicy policy;
    bool is_first = true;
    const std::string name = module.path().empty() ? "root" : module.path();
    for (std::size_t i = 0; i < options_.policies.size(); ++i) {
      if (!patterns_[i].matches(name)) continue;
      is_used_[i] = true;
      if (std::exchange(is_first, false)) policy = options_.policies[i].second;
    }
    return module.own_policy() && *module.own_policy() != UnitPolicy{} ? *module.own_policy() : policy;
  }

  void check(const std::vector<std::string>& units) const {
    const auto unused = std::find(is_used_.begin(), is_used_.end(), false);
    if (unused == is_used_.end()) return;
    throw UsageError(fmt::format("fully_shard: no unit has a path like \"{}\"",
                                 options_.policies[static_cast<std::size_t>(unused - is_used_.begin())].first),
                     fmt::format("the units are {}; a policy is for those", fmt::join(units, ", ")));
  }

 private:
  const FullyShardOptions& options_;
  std::vector<NamePattern> patterns_;
  std::vector<bool> is_used_;
};

/// A line for each parameter, in the order of modules.
void add_lines(const Module& module, std::vector<std::string>& lines) {
  const std::string unit = module.own_policy() ? ", of the unit " + module.path() : "";
  for (const auto& parameter : module.own_parameters())
    lines.push_back(fmt::format("has {} {}{}", parameter->name(), parameter->shape().str(), unit));
  for (const Module* child : module.children()) add_lines(*child, lines);
}

/// Ranks whose models differ would make units, and memory that they share, of different numbers.
void check_models_alike(const Module& root, World& world) {
  if (world.size() == 1) return;
  std::vector<std::string> lines;
  add_lines(root, lines);
  std::uint64_t hash = lines.size();
  for (const std::string& line : lines) hash = mix64(hash ^ hash_name(line));
  if (!difference(world, fmt::to_string(hash))) return;
  for (std::size_t i = 0;; ++i) {
    constexpr std::size_t kMostBytes = 300;
    const auto found = difference(world, i < lines.size() ? lines[i].substr(0, kMostBytes) : "has no more parameters");
    if (found) {
      throw Error(ExitCode::ranks_disagree, "the ranks' models differ: " + found->str(), {},
                  "make the same modules on every rank");
    }
    if (i >= lines.size()) break;
  }
  throw Error(ExitCode::ranks_disagree, "the ranks' models differ in long names of parameters", {},
              "make the same modules on every rank");
}

}  // namespace

void fully_shard(Module& module, const UnitPolicy& policy) {
  if (module.owner() != nullptr) {
    throw UsageError(
        fmt::format("fully_shard: module \"{}\" belongs to a model that is sharded already", module.path()),
        "shard modules before the model that contains them");
  }
  if (module.own_policy()) {
    throw UsageError(fmt::format("fully_shard was called twice for module \"{}\"", module.path()),
                     "call it once for each module");
  }
  module.set_own_policy(policy);
}

ShardedModel fully_shard(Module& root, Context& context, World& world, const FullyShardOptions& options) {
  if (root.owner() != nullptr) {
    throw UsageError(
        root.path().empty()
            ? "fully_shard: the model is sharded already"
            : fmt::format("fully_shard: module \"{}\" belongs to a model that is sharded already", root.path()),
        "shard a model once, and in one runtime at a time");
  }
  auto runtime = std::make_unique<ShardedRuntime>(context, world, options.shard);
  check_models_alike(root, world);
  ShardedModel model(root, std::move(runtime));
  const bool are_marked = has_marked(root);
  if (options.plan) {
    if (are_marked || !options.policies.empty() || options.is_ignored)
      throw UsageError("fully_shard: a plan, and units, policies or ignored parameters beside it",
                       "say all of it in the plan, or leave the plan out");
    shard_by_plan(root, model.runtime(), *options.plan);
    return model;
  }
  Policies policies(options);
  const auto is_unit = [&](const Module& module) {
    return are_marked ? module.own_policy().has_value() : module.is_block();
  };
  shard_module(root, model.runtime(), is_unit, options.is_ignored,
               [&](const Module& module) { return policies.of(module); });
  policies.check(model.runtime().names());
  return model;
}

ShardedModel::~ShardedModel() {
  if (runtime_ == nullptr) return;
  const auto has_lost = [](const FlatParameter& unit) {
    return std::any_of(unit.parameters.begin(), unit.parameters.end(),
                       [](const Parameter* parameter) { return parameter->owner() == nullptr; });
  };
  // The tree of a module that has ended cannot be walked
  if (std::none_of(executor().units().begin(), executor().units().end(), has_lost)) root_->detach();
}

ShardedRuntime& ShardedModel::runtime() const {
  if (runtime_ != nullptr) return *runtime_;
  throw UsageError("a ShardedModel is used after it was moved from", "use the one that it was moved to");
}

int ShardedModel::unit_of(const Module& module) const {
  if (module.owner() == runtime_.get()) return module.owner_unit();
  throw UsageError(fmt::format("module \"{}\" is no part of this sharded model", module.path()),
                   "register it by add_child() before fully_shard()");
}

/// Each unit once, parents first.
template <class Set>
void ShardedModel::for_each_unit(const char* call, const Module& module, bool recurse, const Set& set) const {
  std::vector<int> units;
  const std::function<void(const Module&)> collect = [&](const Module& part) {
    if (part.is_unit() && std::find(units.begin(), units.end(), part.owner_unit()) == units.end())
      units.push_back(part.owner_unit());
    for (const Module* child : part.children())
      if (recurse) collect(*child);
  };
  if (unit_of(module) >= 0) collect(module);
  if (units.empty()) {
    throw UsageError(fmt::format("{}: module \"{}\" is no unit, but a part of unit {}", call, module.path(),
                                 runtime_->name(unit_of(module))),
                     "give it to fully_shard() before the model, or name the unit");
  }
  for (const int unit : units) set(unit);
}

void ShardedModel::set_requires_gradient_sync(const Module& module, bool requires_sync, bool recurse) {
  for_each_unit("set_requires_gradient_sync()", module, recurse,
                [&](int unit) { runtime_->set_requires_gradient_sync(unit, requires_sync); });
}

void ShardedModel::set_requires_all_reduce(const Module& module, bool requires_all_reduce, bool recurse) {
  for_each_unit("set_requires_all_reduce()", module, recurse,
                [&](int unit) { runtime_->set_requires_all_reduce(unit, requires_all_reduce); });
}

void ShardedModel::set_reshard_after_forward(const Module& module, bool reshards, bool recurse) {
  for_each_unit("set_reshard_after_forward()", module, recurse,
                [&](int unit) { runtime_->set_reshard_after_forward(unit, reshards); });
}

void ShardedModel::set_unshard_in_backward(const Module& module, bool unshards, bool recurse) {
  for_each_unit("set_unshard_in_backward()", module, recurse,
                [&](int unit) { runtime_->set_unshard_in_backward(unit, unshards); });
}

void ShardedModel::set_reshard_after_backward(const Module& module, bool reshards, bool recurse) {
  for_each_unit("set_reshard_after_backward()", module, recurse,
                [&](int unit) { runtime_->set_reshard_after_backward(unit, reshards); });
}

MicroBatch::MicroBatch(ShardedRuntime& runtime, Mode mode, const MicroBatchOptions& options)
    : runtime_(&runtime), model_(runtime.executor().step().life()), exceptions_(std::uncaught_exceptions()) {
  runtime.begin_micro_batch(mode, options.last, options.first_sample);
  if (mode == Mode::eval) no_grad_ = std::make_unique<NoGradGuard>(runtime.context());
}

void MicroBatch::backward(const Tensor& loss, float seed) {
  if (runtime_ == nullptr)
    throw UsageError("backward() behind the end of its micro-batch", "call it within, once for each micro-batch");
  zs::backward(loss, seed);
}

void MicroBatch::end() {
  if (runtime_ == nullptr) throw UsageError("a micro-batch is ended twice", "leave out end(), or call it once");
  ShardedRuntime& runtime = *std::exchange(runtime_, nullptr);
  no_grad_.reset();
  model_.check("the end of a micro-batch");
  try {
    runtime.check_backward();
    runtime.end_micro_batch();
  } catch (...) {
    runtime_ = &runtime;
    abandon();
    throw;
  }
}

void MicroBatch::abandon() noexcept {
  ShardedRuntime& runtime = *std::exchange(runtime_, nullptr);
  no_grad_.reset();
  if (model_.has_ended()) return;
  try {
    runtime.abandon();
  } catch (const UsageError& error) {  // the micro-batch is abandoned all the same
    print_to_stderr("zshard: warning: rank {}: {}\n", runtime.executor().rank(), error.what());
  } catch (const std::exception&) {  // the exception that is under way says why
  }
}

MicroBatch::~MicroBatch() noexcept(false) {
  if (runtime_ == nullptr) return;
  if (std::uncaught_exceptions() > exceptions_) {
    abandon();
  } else {
    end();
  }
}

}  // namespace zs
