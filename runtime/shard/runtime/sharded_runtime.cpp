#include "runtime/shard/runtime/sharded_runtime.h"

#include <fmt/format.h>

#include <fmt/core.h>

#include <exception>
#include <set>
#include <utility>

#include "comm/together.h"
#include "runtime/base/random.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/usage_error.h"
#include "runtime/shard/collectives/collectives.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/host_view.h"
#include "runtime/tensor/ops.h"

namespace zs {
namespace {

constexpr const char* kSeed = "seed of the initial weights";

bool is_computed_in(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

void check(const MixedPrecisionPolicy& precision, const std::string& unit) {
  if (!is_computed_in(precision.param) || !is_computed_in(precision.reduce) ||
      !is_computed_in(precision.output.value_or(DType::f32))) {
    throw Error(ExitCode::config, fmt::format("unit {}: a dtype that nothing is computed in", unit), {},
                "use f32 or bf16");
  }
  if (precision.reduce == DType::bf16 && precision.param == DType::f32) {
    throw Error(ExitCode::config, fmt::format("unit {}: gradients of f32 parameters are reduced in bf16", unit), {},
                "reduce them in f32, or use bf16 parameters");
  }
}

void check(const Residence& residence, const MixedPrecisionPolicy& precision, bool checks_writes,
           const std::string& unit) {
  const auto check_disk = [&](const std::string& disk, bool is_on_host, const char* what, const char* option) {
    if (!disk.empty() && !is_on_host)
      throw UsageError(fmt::format("unit {}: a disk for {}, which the device keeps", unit, what),
                       fmt::format("set Residence::{} too, or leave the disk out", option));
  };
  check_disk(residence.masters_disk, residence.has_masters_on_host, "the master weights", "has_masters_on_host");
  check_disk(residence.moments_disk, residence.has_moments_on_host, "the optimizer's state", "has_moments_on_host");
  if (!residence.has_masters_on_host) return;
  const auto refuse = [&](const char* who, const char* what, const char* what_to_do) {
    throw Error(ExitCode::config, fmt::format("unit {}: {} keeps the master weights of {}", unit, who, what), {},
                what_to_do);
  };
  const bool is_on_disk = !residence.masters_disk.empty();
  if (is_on_disk && precision.param == DType::f32)
    refuse("a disk", "f32 parameters, which are gathered from them", "use bf16 parameters, or the host's memory");
  if (is_on_disk && precision.is_full_in_evaluation)
    refuse("a disk", "evaluations in f32, which gather them", "evaluate in bf16, or use the host's memory");
  if (checks_writes)
    refuse("the host", "a run that checks writes", "leave checks_writes out, or keep the masters on the device");
}

/// Residence of a unit; weights that are held once have no masters that could be elsewhere.
Residence residence_of(const UnitPolicy& policy, const ShardOptions& options) {
  Residence residence = policy.residence.value_or(options.residence);
  if (!policy.is_frozen || (!options.frozen_dtype && policy.frozen_format == nullptr)) return residence;
  residence.has_masters_on_host = false;
  residence.masters_disk.clear();
  return residence;
}

/// Options that place a unit, but for a number of ranks in between.
PlacementOptions placement_of(const UnitPolicy& policy, const ShardOptions& options) {
  PlacementOptions placement{policy.scheme.value_or(options.scheme), policy.division.value_or(options.division),
                             residence_of(policy, options), policy.partition};
  placement.scheme.deterministic = options.scheme.deterministic;
  return placement;
}

void check_reshard(const UnitPolicy& policy, const ShardScheme& scheme) {
  if (!policy.reshard_after_forward || scheme.shards_parameters()) return;
  throw Error(
      ExitCode::config,
      fmt::format("reshard_after_forward = {} does not go with strategy \"{}\", which does not shard parameters",
                  policy.reshard_after_forward->str(), scheme.name()),
      {}, "leave it out, or use zero3, shard_grad_op, hsdp or nested");
}

/// Sets the unit's own number of ranks in between; of shard_grad_op, which is zero3 but for what is kept between
/// forward and backward.
void set_between(PlacementOptions& placement, const UnitPolicy& policy) {
  if (!policy.reshard_after_forward || policy.reshard_after_forward->group() == 0) return;
  if (!placement.scheme.mesh && placement.scheme.strategy == Strategy::shard_grad_op)
    placement.scheme.strategy = Strategy::zero3;
  placement.scheme.reshard_after_forward = *policy.reshard_after_forward;
}

void check_reduction(const std::string& unit, const MixedPrecisionPolicy& precision,
                     const GradientReduction* reduction) {
  if (reduction == nullptr || precision.reduce_comm_dtype == CommDType::exact) return;
  throw Error(ExitCode::config,
              fmt::format("unit {}: its gradients travel as int8, and are reduced by \"{}\"", unit, reduction->name()),
              {}, "leave out reduce_comm_dtype, or the reduction");
}

/// Parameters in f32 that nothing is gathered for are the masters: there is nothing to compare them with.
void check_writes_are_seen(const FlatParameter& unit, bool checks_writes) {
  if (!checks_writes || unit.compute_copy || unit.is_frozen || !unit.is_never_gathered()) return;
  throw UsageError(
      fmt::format("checks_writes sees no write to unit {}: this rank holds all of it, and its parameters are "
                  "the master weights",
                  unit.name),
      "run on two ranks or more with a strategy that shards parameters, or with bf16 parameters, or leave "
      "checks_writes out");
}

/// Options that decide what memory ranks share, and how they meet: where they differ nothing after this can be agreed.
/// Collective, blocks the host.
const ShardOptions& agreed(const ShardOptions& options, World& world) {
  const std::string own =
      fmt::format("by strategy {}, zero_copy = {}, checks_writes = {}",
                  options.scheme.mesh ? std::string("of a mesh") : name_of(options.scheme.strategy), options.zero_copy,
                  options.checks_writes) +
      (options.frozen_format != nullptr ? fmt::format(", frozen_format {}", options.frozen_format->name) : "");
  const std::optional<Difference> found = difference(world, own);
  if (!found) return options;
  throw Error(ExitCode::ranks_disagree, "the ranks shard the model differently: " + found->str(), {},
              "give fully_shard() the same options on every rank");
}

void check_frozen_dtype(std::optional<DType> dtype) {
  if (dtype.value_or(DType::bf16) == DType::bf16) return;
  throw Error(ExitCode::config, fmt::format("frozen weights are to be held once in {}", name_of(*dtype)), {},
              "hold them in bf16, or leave frozen_dtype out");
}

ShardOptions with_host_groups(ShardOptions options, const World& world) {
  options.scheme = with_host_groups(options.scheme, world.hosts(), {options.grid, world.rank(), world.size()});
  return options;
}

}  // namespace

ShardedRuntime::ShardedRuntime(Context& context, World& world, const ShardOptions& options)
    : ParameterOwner(&context),
      context_(context),
      options_(with_host_groups(agreed(options, world), world)),
      executor_(context, world, {options_.scheme, options.division, options.residence}, options.layout,
                options.zero_copy && !options.checks_writes, {options.omit, options.replace_group, options.grid}) {
  check_frozen_dtype(options.frozen_dtype);
  executor_.order_check().set(kSeed, fmt::to_string(options.seed));
  executor_.order_check().set("dtype of frozen weights",
                              std::string(options.frozen_dtype ? name_of(*options.frozen_dtype) : "as of others"));
  const Division::Factors division = options.division.factors(data_share().count);
  executor_.order_check().set("division of gradients",
                              fmt::format("{} before and {} after the sum", division.before, division.after));
  executor_.order_check().set(
      "reduction of gradients",
      std::string(options.reduction != nullptr ? options.reduction->name() : "a reduce-scatter"));
  executor_.check_all_written(options.checks_writes);
}

ShardedRuntime::~ShardedRuntime() {
  if (executor_.step().is_in_micro_batch() && std::uncaught_exceptions() == 0) {
    print_to_stderr("zshard: error: rank {}: {} was still open when its runtime ended: call end_micro_batch()\n",
                    executor_.rank(), executor_.step().open_name());
  }
  for (auto& [parameter, unit] : unit_of_) {
    auto* owned = const_cast<Parameter*>(parameter);
    if (owned->owner() == nullptr) {  // its module has ended, and left it here
      delete owned;
      continue;
    }
    owned->set_owner(nullptr);
    owned->unbind();
    owned->bind_grad();
  }
  for (auto& [buffer, value] : buffers_) {
    if (!buffer->is_bound())
      delete buffer;  // as above
    else
      buffer->unbind();
  }
}

int ShardedRuntime::add_unit(std::string name, const std::vector<Parameter*>& parameters, const UnitPolicy& policy) {
  if (scheduler_)
    throw UsageError(fmt::format("unit {} is added after the first micro-batch", name), "add all units before it");
  const MixedPrecisionPolicy precision = policy.precision.value_or(options_.precision);
  check(precision, name);
  check(residence_of(policy, options_), precision, options_.checks_writes, name);
  check_frozen_format(policy, options_.checks_writes, name);
  const GradientReduction* const reduction = policy.reduction != nullptr ? policy.reduction : options_.reduction;
  check_reduction(name, precision, reduction);
  const auto placement = place(name, policy);
  const int unit = static_cast<int>(names_.size());
  check_new(name, parameters);
  resident_ += int{stays_resident(policy)};
  const ShardScheme::Slice own = placement->scheme.slice(placement->scheme.partition);
  const bool reads_data = !policy.partition.axis.empty() && executor_.groups().grid().reads_data(policy.partition.axis);
  const std::vector<ParameterPart> parts =
      parts_of(name, parameters, policy.partition, {0, own.index, own.count}, reads_data);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Parameter* const parameter = parameters[i];
    parameter->set_owner(this, parts[i]);
    unit_of_[parameter] = unit;
    unit_of_name_[parameter->name()] = unit;
    if (policy.is_frozen) parameter->set_trainable(false);
  }
  names_.push_back(name);
  policies_.push_back(policy);
  executor_.add_unit(std::move(name), parameters, options_.seed, precision, placement,
                     {policy.is_frozen, options_.frozen_dtype, policy.frozen_format});
  executor_.units().back().reduction = reduction;
  check_writes_are_seen(executor_.units().back(), options_.checks_writes);
  if (policy.reduction != nullptr)
    executor_.order_check().set("reduction of unit " + names_.back(), std::string(reduction->name()));
  return unit;
}

void ShardedRuntime::add_buffer(Parameter& buffer) {
  if (buffer.is_bound())
    throw UsageError(fmt::format("buffer {} belongs to a model that is sharded already", buffer.name()),
                     "shard a model once, and in one runtime at a time");
  const std::vector<float> values(static_cast<std::size_t>(buffer.numel()), buffer.init().constant);
  buffers_.emplace_back(&buffer, Tensor::from_host(context_, buffer.shape(), values));
  buffer.bind(buffers_.back().second.buffer());
  executor_.add_ignored(buffer);
}

Tensor ShardedRuntime::mean_over_ranks(const Tensor& x) {
  if (!x || x.dtype() != DType::f32)
    throw UsageError(fmt::format("mean_over_ranks() of {}", x ? x.describe() : "an empty tensor"),
                     "give a tensor of f32");
  return zs::mean_over_ranks(executor_.loss_comm(), x);
}

double ShardedRuntime::mean_over_ranks(double x) {
  const Tensor mean = mean_over_ranks(Tensor::from_host(context_, {1}, std::vector<float>{static_cast<float>(x)}));
  return static_cast<double>(mean.to_host()[0]);
}

/// Frozen parameters have nothing that the host could keep.
bool ShardedRuntime::stays_resident(const UnitPolicy& policy) const {
  const Residence residence = policy.residence.value_or(options_.residence);
  return resident_ < options_.resident_units && !policy.is_frozen &&
         (residence.has_any() || residence.has_accumulators_on_host);
}

std::shared_ptr<const Placement> ShardedRuntime::place(const std::string& unit, const UnitPolicy& policy) try {
  PlacementOptions options = placement_of(policy, options_);
  if (stays_resident(policy)) options.residence = {.cpu_link_gbs = options.residence.cpu_link_gbs};
  if (policy.scheme)
    options.scheme = with_host_groups(options.scheme, executor_.groups().world().hosts(), executor_.groups().grid());
  check_reshard(policy, ShardScheme(options.scheme, executor_.groups().grid().sub_grid(policy.partition.axes())));
  set_between(options, policy);
  if (policy.frozen_format != nullptr) options.scheme = scheme_of_format(options.scheme);
  return executor_.placement(options);
} catch (const Error& error) {
  throw Error(error.code(), fmt::format("unit {}: {}", unit, error.what_happened()), error.where(), error.what_to_do());
}

/// Checkpoints, initial values and errors know parameters by their names.
void ShardedRuntime::check_new(const std::string& unit, const std::vector<Parameter*>& parameters) const {
  std::set<std::string_view> names;
  for (const Parameter* parameter : parameters) {
    if (parameter->owner() != nullptr) {
      throw UsageError(fmt::format("unit {}: parameter {} already belongs to a unit", unit, parameter->name()),
                       "shard a model once, and add each parameter to one unit");
    }
    const auto other = unit_of_name_.find(parameter->name());
    if (other == unit_of_name_.end() && names.insert(parameter->name()).second) continue;
    throw UsageError(fmt::format("two parameters are called {}: one of unit {}, one of unit {}", parameter->name(),
                                 other == unit_of_name_.end() ? unit : name(other->second), unit),
                     "give their modules different paths");
  }
}

Scheduler& ShardedRuntime::scheduler() {
  if (scheduler_) return *scheduler_;
  scheduler_ = std::make_unique<Scheduler>(names_, options_.schedule, executor_.scheme().unit_schedule());
  for (std::size_t unit = 0; unit < policies_.size(); ++unit) {
    const Placement& placement = *executor_.units()[unit].placement;
    const ShardScheme& scheme = placement.scheme;
    scheduler_->set_parks(static_cast<int>(unit), placement.options.residence.has_accumulators_on_host,
                          placement.has_own_sum);
    if (scheme.options() != executor_.scheme().options())
      scheduler_->set_schedule(static_cast<int>(unit), scheme.unit_schedule());
    if (policies_[unit].frozen_format != nullptr)
      scheduler_->set_after_forward(static_cast<int>(unit), Scheduler::AfterForward::free);
    if (const auto& reshard = policies_[unit].reshard_after_forward) {
      // A number that is all ranks which shard it is as good as `true`.
      const Reshard own = reshard->group() != 0 ? scheme.options().reshard_after_forward : *reshard;
      scheduler_->set_after_forward(static_cast<int>(unit), after_forward_of(own));
    }
  }
  return *scheduler_;
}

Tensor ShardedRuntime::cast_input(int unit, const Tensor& x) const {
  return casts_forward_input(unit, x.dtype())
             ? cast(x, executor_.units().at(static_cast<std::size_t>(unit)).gathered_dtype)
             : x;
}

bool ShardedRuntime::casts_forward_input(int unit, DType dtype) const {
  const FlatParameter& flat = executor_.units().at(static_cast<std::size_t>(unit));
  return flat.precision.cast_forward_inputs && is_computed_in(dtype) && dtype != flat.gathered_dtype;
}

Tensor ShardedRuntime::cast_output(int unit, const Tensor& y) const {
  const FlatParameter& flat = executor_.units().at(static_cast<std::size_t>(unit));
  const bool is_full = mode_ == Mode::eval && flat.precision.is_full_in_evaluation;
  return flat.precision.output && is_computed_in(y.dtype()) ? cast(y, is_full ? DType::f32 : *flat.precision.output)
                                                            : y;
}

std::optional<int> ShardedRuntime::unit_of(const Parameter& parameter) const {
  const auto found = unit_of_.find(&parameter);
  return found == unit_of_.end() ? std::nullopt : std::optional(found->second);
}

void ShardedRuntime::check_no_scope(std::string_view call, int unit) const {
  if (std::cmp_greater_equal(unit, executor_.units().size()) || unit < 0)
    throw UsageError(fmt::format("{}: unit {} of a model with {}", call, unit, executor_.units().size()),
                     "units are counted from 0");
  StepState::check_no_scope(call, executor_.units()[static_cast<std::size_t>(unit)]);
}

std::optional<RandomKey> ShardedRuntime::random_key(std::uint64_t place, std::int64_t samples) const {
  const StepState& step = executor_.step();
  if (!step.is_in_micro_batch())
    throw UsageError("random numbers are asked for while no micro-batch is running",
                     "compute what takes them within a micro-batch or an evaluation");
  if (mode_ == Mode::eval) return {};
  // Micro-batches are dealt out to the ranks one after the other, unless somebody has said otherwise.
  const std::int64_t before = data_share().item(step.micro_batch());
  return RandomKey{options_.seed, step.steps_done(), first_sample_.value_or(before * samples), place};
}

void ShardedRuntime::set_steps_done(std::int64_t steps) {
  executor_.step().check_between_steps("set_steps_done()");
  if (steps < 0) throw UsageError(fmt::format("set_steps_done({})", steps), "pass 0 or more");
  executor_.step().set_steps_done(steps);
}

ShardedRuntime::UnshardHandle ShardedRuntime::unshard(int unit) {
  check_no_scope("unshard()", unit);
  run(scheduler().start_unshard(unit));
  return {this, unit};
}

void ShardedRuntime::reshard(int unit) {
  check_no_scope("reshard()", unit);
  run(scheduler().reshard(unit));
}

void ShardedRuntime::adopt_seed(int root) {
  const Memory memory = context_.pool().acquire(size_of(DType::i64) * 2, context_.stream(), "scalars");
  const Buffer of_root = memory.buffer(DType::i64, 2);
  const auto seed = static_cast<std::int64_t>(options_.seed);
  context_.launch({"seed", {}, {of_root}}, upload_of(context_.kernels(), of_root,
                                                     std::vector{seed, std::int64_t{executor_.has_initial_weights()}}));
  executor_.compute_comm().broadcast(context_.stream(), "seed", of_root, root);
  const HostView view(context_, context_.stream(), of_root);
  options_.seed = static_cast<std::uint64_t>(view.as<std::int64_t>()[0]);
  executor_.order_check().set(kSeed, fmt::to_string(options_.seed));
  executor_.set_seed(options_.seed, view.as<std::int64_t>()[1] != 0);
}

void ShardedRuntime::pregather() {
  executor_.step().check_no_scope("pregather()");
  for (int unit = 0; unit < scheduler().size(); ++unit) run(scheduler().start_unshard(unit));
}

void ShardedRuntime::set_prefetch(ExecOrder::Phase phase, int unit, std::vector<int> targets) {
  scheduler().set_prefetch(phase, unit, std::move(targets));
}

std::uint64_t ShardedRuntime::step_key() {
  std::uint64_t key =
      mix64(static_cast<std::uint64_t>(scheduler().changes()) << 1 | static_cast<std::uint64_t>(scheduler().reduces()));
  const auto add = [&](std::uint64_t value) { key = mix64(key ^ value); };
  for (const auto phase : {ExecOrder::Phase::forward, ExecOrder::Phase::backward}) {
    for (const int unit : scheduler().order(Mode::train).units(phase)) add(static_cast<std::uint64_t>(unit));
    add(~std::uint64_t{0});
  }
  for (const FlatParameter& unit : executor_.units()) {
    add(static_cast<std::uint64_t>(unit.grad_is_written) << 1 | static_cast<std::uint64_t>(unit.sum_is_written));
    for (const Parameter* parameter : unit.parameters) add(static_cast<std::uint64_t>(parameter->is_trainable()));
  }
  return key;
}

}  // namespace zs
