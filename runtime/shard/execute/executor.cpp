#include "runtime/shard/execute/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "comm/buffer_race_check.h"
#include "runtime/base/usage_error.h"
#include "runtime/device/finite_check.h"
#include "runtime/shard/placement/flat_layout.h"

namespace zs {
namespace {

/// The ranks compare sizes before anything else that is known of a unit: what is not alike is the model.
template <class Share>
auto naming_unit(const FlatParameter& unit, const Share& share) {
  try {
    return share();
  } catch (const Error& error) {
    if (error.code() != ExitCode::ranks_disagree) throw;
    constexpr std::size_t kMostNamed = 4;
    std::vector<std::string> parameters;
    for (const FlatView& view : unit.layout->views()) parameters.push_back(view.name + " " + view.shape.str());
    const bool has_more = parameters.size() > kMostNamed;
    if (has_more) parameters.resize(kMostNamed);
    throw Error(
        error.code(), error.what_happened(),
        fmt::format("unit {}, on this rank of {}{}", unit.name, fmt::join(parameters, ", "), has_more ? " ..." : ""),
        "build the same model on every rank");
  }
}

std::shared_ptr<const Placement> make_placement(const PlacementOptions& options, GroupTable& groups,
                                                const LayoutOptions& layout) {
  const ShardScheme scheme(options.scheme, groups.grid().sub_grid(options.partition.axes()));
  return std::make_shared<const Placement>(options, scheme, groups, layout.min_shard_bytes > 0);
}

std::string described(const Placement& placement) {
  return fmt::format("{}; gradients divided by {} before and {} after the sum", placement.scheme.describe(),
                     placement.division.before, placement.division.after);
}

}  // namespace

Executor::Executor(Context& context, World& world, const PlacementOptions& placement, LayoutOptions layout,
                   bool zero_copy, GroupOptions groups)
    : context_(context),
      layout_(std::move(layout)),
      zero_copy_(zero_copy),
      groups_(world, std::move(groups)),
      placements_{make_placement(placement, groups_, layout_)},
      everybody_(groups_.compute()),
      losses_(groups_.losses()),
      comm_pool_(everybody_.prefers_arena() && &everybody_.arena() != &context.device().allocator()
                     ? arena_.emplace(everybody_.arena(), context.device().memory(),
                                      context.device().options().perturb_seed != 0)
                     : context.pool()),
      link_(context, placement.residence.cpu_link_gbs),
      unsharder_(context, comm_pool_, link_),
      reducer_(context, comm_pool_, link_),
      transfer_(context, everybody_, comm_pool_, unsharder_, link_) {
  check(layout_);
  order_check_ = std::make_unique<OrderCheck>(*this, world);
}

void Executor::set_accumulates(int unit, bool accumulates) {
  units_.at(static_cast<std::size_t>(unit)).accumulates = accumulates;
}

void Executor::hold_reductions(const Event& event) { held_for_.push_back(event); }

void Executor::add_ignored(Parameter& parameter) {
  ignored_.push_back(&parameter);
  if (!parameter.is_trainable())
    order_check_->set(fmt::format("initial value of buffer {}", parameter.name()),
                      fmt::to_string(parameter.init().constant));
}

Executor::~Executor() {
  units_.clear();
  try {
    context_.device().synchronize();
  } catch (const std::exception&) {
    // Whoever catches the exception that is on its way has a line to print, which shall be the last.
    if (std::uncaught_exceptions() == 0) context_.device().keep_error(std::current_exception());
    context_.device().keep(std::move(windows_));
  }
}

std::shared_ptr<const Placement> Executor::placement(const PlacementOptions& options) {
  const auto known = std::find_if(placements_.begin(), placements_.end(),
                                  [&](const auto& other) { return other->options == options; });
  if (known != placements_.end()) return *known;
  return placements_.emplace_back(make_placement(options, groups_, layout_));
}

void Executor::add_unit(std::string name, const std::vector<Parameter*>& parameters, std::uint64_t seed,
                        const MixedPrecisionPolicy& precision, std::shared_ptr<const Placement> placement,
                        Freeze freeze) {
  Stream& compute = context_.stream();
  const ShardScheme& scheme = placement->scheme;
  const ShardScheme::Slice slice = scheme.slice(scheme.master);
  // Blocks of a format are of elements that follow each other, whatever the layout of other units.
  auto layout = freeze.format != nullptr
                    ? std::make_shared<const FlatLayout>(parameters, precision.param, slice.count, scheme.finest(),
                                                         freeze.format->block_elems)
                    : make_layout(layout_, parameters, precision.param, slice.count, scheme.finest());
  FlatParameter unit(std::move(name), parameters, std::move(layout), slice.index, precision, seed);
  unit.placement = std::move(placement);
  unit.is_frozen = freeze.is_frozen;
  unit.has_master = !freeze.is_frozen || (!freeze.dtype && freeze.format == nullptr);
  unit.held_format = freeze.format;
  const MemoryOwner owner(context_.device().memory(), unit.name);
  const std::int64_t bytes = unit.layout->held_elems() * size_of(DType::f32);
  if (unit.is_encoded())
    unit.encoded = comm_pool_.acquire(freeze.format->bytes(unit.layout->shard_elems()), compute, "frozen");
  else if (!unit.has_master)
    unit.compute_copy = acquire_shard(unit, *freeze.dtype, "frozen");
  else
    unit.master = unit.has_masters_on_host()
                      ? link_.acquire(bytes, "master", unit.placement->options.residence.masters_disk)
                      : acquire_shard(unit, DType::f32, "master");
  // Before the gradient: else that had memory of the last unit's, which goes to the host meanwhile.
  HostLink::Window drawn = open_masters(unit);
  if (!freeze.is_frozen && unit.placement->options.residence.has_gradients_on_host)
    unit.host_grad = link_.acquire(bytes, "grad_shard");
  else if (!freeze.is_frozen)
    unit.grad = comm_pool_.acquire(bytes, compute, "grad_shard");
  initialise(unit, seed, std::move(drawn));
  if (precision.param == DType::bf16 && unit.has_master) {
    unit.compute_copy = acquire_shard(unit, DType::bf16, "param_shard");
    update_compute_copy(unit);
  }
  if (can_share(unit) && gathers_in_two_steps(unit) && unit.groups().kept_within_hosts) {
    unit.shared_kept = acquire_shared(unit, *unit.groups().gather_small, precision.param,
                                      context_.device().stream(StreamRole::unshard), "kept_shard");
  }
  bind_whole(unit);
  units_.push_back(std::move(unit));
  note_placement(units_.back());
  order_check_->note(units_.back());
  const bool had_initial_weights = has_initial_weights_;
  masters_updated();
  has_initial_weights_ = had_initial_weights;
}

/// The ranks compare it where it is not what all units have.
void Executor::note_placement(const FlatParameter& unit) {
  const ShardScheme& own = unit.placement->scheme;
  const ShardScheme& first = units_.front().placement->scheme;
  has_mixed_norms_ = has_mixed_norms_ || own.mesh().cut_over(own.holders()) != first.mesh().cut_over(first.holders());
  if (unit.placement == placements_.front()) return;
  const std::vector<int> masters = own.mesh().cut_over(own.master), kept = own.mesh().cut_over(own.between);
  order_check_->set("placement of unit " + unit.name,
                    fmt::format("{}; masters by {}, between by {}", described(*unit.placement), fmt::join(masters, " "),
                                fmt::join(kept, " ")));
}

Communicator& Executor::norm_comm() {
  if (has_mixed_norms_ || units_.empty()) return everybody_;
  const ShardGroups& groups = units_.front().groups();
  return groups.norm ? *groups.norm : everybody_;
}

/// Acquires the memory that the other ranks gather: beside theirs, where the ranks can share memory.
Memory Executor::acquire_shard(FlatParameter& unit, DType dtype, const char* label) {
  if (can_share(unit) && !gathers_in_two_steps(unit) && dtype == unit.precision.param &&
      unit.precision.gather_format == nullptr) {
    if (Memory shared = acquire_shared(unit, *unit.groups().gather, dtype, context_.stream(), label)) return shared;
  }
  return comm_pool_.acquire(unit.layout->held_elems() * size_of(dtype), context_.stream(), label);
}

/// True if the order of the unit's shards is the order of its parameters, and nothing else has to be there.
bool Executor::can_share(const FlatParameter& unit) const {
  return zero_copy_ && !unit.is_local() && !unit.is_staged() && !unit.layout->is_interleaved() &&
         unit.layout->whole_elems() == 0;
}

/// True if gathers go from the masters to the small group's shards, and from those.
bool Executor::gathers_in_two_steps(const FlatParameter& unit) {
  return unit.groups().gather->size() < unit.layout->ranks();
}

/// Acquires one of the parts that `group` gathers, in a window of all of them, which the unit's parameters are from now
/// on; none where the group has no windows.
Memory Executor::acquire_shared(FlatParameter& unit, Communicator& group, DType dtype, Stream& stream,
                                const char* label) {
  const std::int64_t elems = unit.layout->gathered_elems() / group.size(), bytes = elems * size_of(dtype);
  auto window = naming_unit(unit, [&] { return group.shared_window(bytes * group.size()); });
  if (!window) return {};
  unit.shared = {window.get(), elems * group.size(), dtype, comm_pool_.device()};
  windows_.push_back(std::move(window));
  const Buffer own = unit.shared.slice(group.rank() * elems, elems);
  if (!group.is_race_checked()) return comm_pool_.adopt(own.data, bytes, stream, label);
  unit.published = own;
  // This memory is beside what is counted, so that a step has the memory that was planned.
  windows_.push_back(BufferRaceCheck::allocate(bytes));
  return comm_pool_.adopt(windows_.back().get(), bytes, stream, label);
}

void Executor::bind_whole(const FlatParameter& unit) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout->views()[i];
    if (!view.is_whole) continue;
    unit.is_staged() ? unit.parameters[i]->unbind()  // until it is unsharded
                     : unit.parameters[i]->bind(unit.whole_view(unit.held_param_buffer(), view));
  }
}

void Executor::set_mode(bool is_evaluation) {
  for (FlatParameter& unit : units_) {
    unit.gathers_exactly = is_evaluation && unit.precision.is_full_in_evaluation;
    set_gathered(unit, unit.gathers_exactly ? DType::f32 : unit.precision.param);
  }
}

void Executor::set_gathered(FlatParameter& unit, DType dtype) {
  if (dtype == unit.gathered_dtype) return;
  unit.gathered_dtype = dtype;
  bind_whole(unit);
}

void Executor::begin_write(FlatParameter& unit, bool with_others) {
  if (with_others && unit.is_zero_copy())
    norm_comm().barrier(context_.stream(), "the write-back of unit " + unit.name);  // as wait_readers
  withdraw(unit);
}

void Executor::end_write(FlatParameter& unit) {
  if (unit.has_master && unit.compute_copy) update_compute_copy(unit);
  has_initial_weights_ = false;
  unsharder_.masters_updated();
}

void Executor::wait_sums(FlatParameter& unit) {
  if (unit.grad_is_written && !unit.grad_is_divided) reducer_.gather_whole(unit);
  reducer_.wait_reductions();
}

void Executor::run(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    FlatParameter& unit = units_.at(static_cast<std::size_t>(action.unit));
    const bool is_freed = action.kind == Action::Kind::free_full || action.kind == Action::Kind::defer_free;
    if (is_freed && checks_all_written_ && unit.is_waited_for) write_check_.compare(unit, Unsharder::full_buffer(unit));
    switch (action.kind) {
      case Action::Kind::gather:
        deferred_updates_.before_gather(action.unit);
        unsharder_.gather(unit);
        break;
      case Action::Kind::two_level_gather:
        deferred_updates_.before_gather(action.unit);
        unsharder_.two_level_gather(unit);
        break;
      case Action::Kind::gather_secondary: unsharder_.gather_secondary(unit); break;
      case Action::Kind::wait_gathered:
        if (FiniteCheck* const check = context_.device().trace().finite_check()) check->place().unit = unit.name;
        unsharder_.wait_gathered(unit);
        break;
      case Action::Kind::keep_secondary_shard: unsharder_.keep_secondary_shard(unit); break;
      case Action::Kind::drop_secondary_shard: unsharder_.drop_secondary_shard(unit); break;
      case Action::Kind::free_full: unsharder_.free_full(unit); break;
      case Action::Kind::defer_free: unsharder_.defer_free(unit); break;
      case Action::Kind::free_deferred: unsharder_.free_deferred(unit); break;
      case Action::Kind::begin_gradient: reducer_.begin_gradient(unit); break;
      case Action::Kind::reduce: reduce(unit); break;
      case Action::Kind::finish: reducer_.finish(unit); break;
      case Action::Kind::park_gradient: reducer_.park_accumulated(unit); break;
      case Action::Kind::reload_gradient: reducer_.reload_accumulated(unit); break;
      case Action::Kind::resume_gradient: reducer_.resume_accumulated(unit); break;
      case Action::Kind::park_sum: reducer_.park_sum(unit); break;
      case Action::Kind::reload_sum: reducer_.reload_sum(unit); break;
      case Action::Kind::release_gradient: reducer_.release_gradient(unit); break;
    }
  }
}

void Executor::divide(const char* name, const Buffer& gradient, float divisor) {
  if (divisor == 1) return;
  context_.launch({name, {gradient}, {gradient}},
                  [&kernels = context_.kernels(), gradient, factor = 1 / divisor](ExecContext& exec) {
                    kernels.scale(exec, gradient, gradient, factor);
                  });
}

void Executor::divide_sum(FlatParameter& unit) {
  if (unit.placement->division.after == 1) return;
  reducer_.bring_gradient(unit, context_.stream());
  divide("divide_sum", unit.held_grad_buffer(), unit.placement->division.after);
  Event divided;
  if (unit.host_grad) context_.stream().record(divided);
  reducer_.park_gradient(unit, divided);
}

void Executor::reduce(FlatParameter& unit) {
  divide("divide", reducer_.full_buffer(unit), unit.placement->division.before);
  for (const Event& event : held_for_) context_.device().stream(StreamRole::reduce).wait(event);
  held_for_.clear();
  reducer_.reduce(unit);
}

void Executor::wait_reductions() {
  order_check_->compare_if_due();
  if (!order_check_->defers()) write_check_.compare_replicas(units_);
  write_check_.compare_late();
  for (FlatParameter& unit : units_) {
    if (unit.grad_is_written && !unit.grad_is_divided) reducer_.gather_whole(unit);
  }
  reducer_.wait_reductions();
  for (FlatParameter& unit : units_) {
    if (unit.grad_is_written && !unit.grad_is_divided) divide_sum(unit);
    unit.grad_is_divided = unit.grad_is_written;
  }
}

void Executor::clear_gradients() {
  for (FlatParameter& unit : units_) {
    reducer_.clear(unit);
    unit.grad_is_divided = false;
  }
  reported_.clear();
  updated_.reset();
  step_.end_step();
}

void Executor::abandon_gradients(const std::vector<int>& units) {
  reducer_.wait_reductions();
  for (const int unit : units) {
    reducer_.clear(units_.at(static_cast<std::size_t>(unit)));
    units_.at(static_cast<std::size_t>(unit)).grad_is_divided = false;
  }
}

}  // namespace zs
