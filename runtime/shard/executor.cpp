#include "runtime/shard/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <utility>

#include "comm/buffer_race_check.h"
#include "runtime/base/random.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

bool is_zero(const Init& init) {
  return !init.function && init.normal_std == 0 && init.uniform_bound == 0 && init.constant == 0;
}

/// Draws the initial values of parameters, each by itself, so that any number of threads draw the same.
struct InitialValues {
  std::uint64_t seed;
  int threads;
  std::vector<float> values = {};

  /// Those of a segment from its element `begin` on, as many as are worth a copy.
  void draw(const FlatView& view, const ShardSegment& segment, std::int64_t begin) {
    constexpr std::int64_t kMost = std::int64_t{1} << 18, kWorthATeam = 1 << 12;
    values.resize(static_cast<std::size_t>(std::min(kMost, segment.count - begin)));
    const Init& init = view.init;
    if (init.function) {
      for (std::int64_t i = 0; i < std::ssize(values); ++i)
        values[static_cast<std::size_t>(i)] = init.function(segment.element(begin + i));
      return;
    }
    const bool is_normal = init.normal_std != 0;
    if (!is_normal && init.uniform_bound == 0) return std::fill(values.begin(), values.end(), init.constant);
    const CounterRng rng(seed, hash_name(view.name));
#pragma omp parallel for schedule(static) num_threads(std::ssize(values) < kWorthATeam ? 1 : threads)
    for (std::int64_t i = 0; i < std::ssize(values); ++i) {
      const auto counter = static_cast<std::uint64_t>(segment.element(begin + i));
      values[static_cast<std::size_t>(i)] = static_cast<float>(
          is_normal ? init.normal_std * rng.normal(counter) : init.uniform_bound * (2 * rng.uniform(counter) - 1));
    }
  }
};

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
  const World& world = groups.world();
  const ShardScheme scheme(options.scheme, world.rank(), world.size());
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

void Executor::add_ignored(Parameter& parameter) { ignored_.push_back(&parameter); }

Executor::~Executor() {
  units_.clear();
  try {
    context_.device().synchronize();
  } catch (const std::exception& error) {
    // Whoever catches the exception that is on its way has a line to print, which shall be the last.
    if (std::uncaught_exceptions() == 0)
      print_to_stderr("zshard: rank {}: work that nobody waited for failed: {}\n", rank(), error.what());
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
                        bool is_frozen) {
  Stream& compute = context_.stream();
  const ShardScheme& scheme = placement->scheme;
  const ShardScheme::Slice slice = scheme.slice(scheme.master);
  FlatParameter unit(std::move(name), parameters,
                     make_layout(layout_, parameters, precision.param, slice.count, scheme.finest()), slice.index,
                     precision, seed);
  unit.placement = std::move(placement);
  unit.is_frozen = is_frozen;
  const MemoryOwner owner(context_.device().memory(), unit.name);
  const std::int64_t bytes = unit.layout->held_elems() * size_of(DType::f32);
  unit.master = unit.has_masters_on_host()
                    ? link_.acquire(bytes, "master", unit.placement->options.residence.masters_disk)
                    : acquire_shard(unit, DType::f32, "master");
  // Before the gradient: else that had memory of the last unit's, which goes to the host meanwhile.
  HostLink::Window drawn = open_masters(unit);
  if (!is_frozen && unit.placement->options.residence.has_gradients_on_host)
    unit.host_grad = link_.acquire(bytes, "grad_shard");
  else if (!is_frozen)
    unit.grad = comm_pool_.acquire(bytes, compute, "grad_shard");
  initialise(unit, seed, std::move(drawn));
  if (precision.param == DType::bf16) {
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
  has_mixed_norms_ = has_mixed_norms_ || own.mesh().cut_over(own.master) != first.mesh().cut_over(first.master);
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

/// What the other ranks gather lies beside theirs, where the ranks can share memory.
Memory Executor::acquire_shard(FlatParameter& unit, DType dtype, const char* label) {
  if (can_share(unit) && !gathers_in_two_steps(unit) && dtype == unit.precision.param &&
      unit.precision.gather_format == nullptr) {
    if (Memory shared = acquire_shared(unit, *unit.groups().gather, dtype, context_.stream(), label)) return shared;
  }
  return comm_pool_.acquire(unit.layout->held_elems() * size_of(dtype), context_.stream(), label);
}

/// Whether the order of its shards is the order of its parameters, and nothing else has to be there.
bool Executor::can_share(const FlatParameter& unit) const {
  return zero_copy_ && !unit.is_local() && !unit.comes_from_host() && !unit.layout->is_interleaved() &&
         unit.layout->whole_elems() == 0;
}

/// From the masters to the small group's shards, and from those.
bool Executor::gathers_in_two_steps(const FlatParameter& unit) {
  return unit.groups().gather->size() < unit.layout->ranks();
}

/// One of the parts that `group` gathers, in a window of all of them, which the unit's parameters are from now on; none
/// where the group has no windows.
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
  windows_.push_back(
      BufferRaceCheck::allocate(bytes));  // beside what is counted, so that a step has the memory that was planned
  return comm_pool_.adopt(windows_.back().get(), bytes, stream, label);
}

void Executor::bind_whole(const FlatParameter& unit) {
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout->views()[i];
    if (!view.is_whole) continue;
    unit.comes_from_host() ? unit.parameters[i]->unbind()  // until it is unsharded
                           : unit.parameters[i]->bind(unit.whole_view(unit.held_param_buffer(), view));
  }
}

void Executor::set_mode(bool is_evaluation) {
  for (FlatParameter& unit : units_) {
    set_gathered(unit, is_evaluation && unit.precision.is_full_in_evaluation ? DType::f32 : unit.precision.param);
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
  if (unit.compute_copy) update_compute_copy(unit);
  has_initial_weights_ = false;
  unsharder_.masters_updated();
}

void Executor::wait_sums(FlatParameter& unit) {
  if (unit.grad_is_written && !unit.grad_is_divided) reducer_.gather_whole(unit);
  reducer_.wait_reductions();
}

void Executor::set_seed(std::uint64_t seed, bool draws) {
  wait_readers();
  for (FlatParameter& unit : units_) {
    unit.seed = seed;
    if (!draws) continue;
    withdraw(unit);
    initialise(unit, seed, open_masters(unit));
    if (unit.compute_copy) update_compute_copy(unit);
  }
  unsharder_.masters_updated();
}

void Executor::update_compute_copy(FlatParameter& unit) {
  if (!unit.has_masters_on_host()) return cast_masters(unit, unit.master_buffer());
  HostLink::Window window = link_.load(unit.name, {unit.master_buffer()});
  context_.stream().wait(window.arrived);
  cast_masters(unit, window[0]);
  HostLink::drop(std::move(window), context_.stream());
}

void Executor::cast_masters(const FlatParameter& unit, const Buffer& master) {
  const Buffer compute_copy = unit.compute_copy_buffer();
  std::vector<std::pair<ShardSegment, StochasticRounding>> at_random;
  if (unit.precision.rounds_stochastically)
    for (const ShardSegment& segment : unit.held_segments()) at_random.emplace_back(segment, unit.rounding_of(segment));
  context_.launch(
      {"compute_copy:" + unit.name, {master}, {compute_copy}},
      [&kernels = context_.kernels(), compute_copy, master, at_random = std::move(at_random)](ExecContext& exec) {
        kernels.cast(exec, compute_copy, master);  // the padding too
        for (const auto& [segment, rounding] : at_random)
          kernels.stochastic_cast(exec, compute_copy.slice(segment.shard_offset, segment.count),
                                  master.slice(segment.shard_offset, segment.count), rounding);
      });
}

void Executor::masters_loaded() {
  for (FlatParameter& unit : units_) {
    if (unit.compute_copy) update_compute_copy(unit);
  }
  masters_updated();
}

HostLink::Window Executor::open_masters(const FlatParameter& unit) {
  return unit.has_masters_on_host() ? link_.open(unit.name, {unit.master_buffer()}) : HostLink::Window();
}

void Executor::initialise(FlatParameter& unit, std::uint64_t seed, HostLink::Window window) {
  draw(unit, window.parts.empty() ? unit.master_buffer() : window[0], seed);
  link_.store(std::move(window));
}

void Executor::draw(const FlatParameter& unit, const Buffer& master, std::uint64_t seed) {
  // The device's threads, not the stream's: on a GPU it is the host that draws, with all that this rank has.
  InitialValues initial{seed, context_.device().options().threads};
  context_.launch({"initialise:" + unit.name, {}, {master}},
                  [&kernels = context_.kernels(), master, initial, views = unit.layout->views(),
                   segments = unit.held_segments()](ExecContext& exec) mutable {
                    kernels.zero(exec, master);
                    for (const ShardSegment& segment : segments) {
                      if (is_zero(views[segment.view].init)) continue;
                      for (std::int64_t at = 0; at < segment.count; at += std::ssize(initial.values)) {
                        initial.draw(views[segment.view], segment, at);
                        kernels.upload(exec, master.slice(segment.shard_offset + at, std::ssize(initial.values)),
                                       initial.values.data());
                      }
                    }
                  });
}

void Executor::run(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    FlatParameter& unit = units_.at(static_cast<std::size_t>(action.unit));
    const bool is_freed = action.kind == Action::Kind::free_full || action.kind == Action::Kind::defer_free;
    if (is_freed && checks_all_written_ && unit.is_waited_for) write_check_.compare(unit, Unsharder::full_buffer(unit));
    switch (action.kind) {
      case Action::Kind::gather:
        due_updates_.before_gather(action.unit);
        unsharder_.gather(unit);
        break;
      case Action::Kind::two_level_gather:
        due_updates_.before_gather(action.unit);
        unsharder_.two_level_gather(unit);
        break;
      case Action::Kind::gather_secondary: unsharder_.gather_secondary(unit); break;
      case Action::Kind::wait_gathered: unsharder_.wait_gathered(unit); break;
      case Action::Kind::keep_secondary_shard: unsharder_.keep_secondary_shard(unit); break;
      case Action::Kind::drop_secondary_shard: unsharder_.drop_secondary_shard(unit); break;
      case Action::Kind::free_full: unsharder_.free_full(unit); break;
      case Action::Kind::defer_free: unsharder_.defer_free(unit); break;
      case Action::Kind::free_deferred: unsharder_.free_deferred(unit); break;
      case Action::Kind::begin_gradient: reducer_.begin_gradient(unit); break;
      case Action::Kind::reduce: reduce(unit); break;
      case Action::Kind::finish: reducer_.finish(unit); break;
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

void Executor::check_all_sharded() const {
  for (const FlatParameter& unit : units_) {
    if (!unit.is_unsharded()) continue;
    throw UsageError(fmt::format("the weights of unit {} are updated while it is unsharded", unit.name),
                     "end the step's last micro-batch first");
  }
}

void Executor::withdraw_masters() {
  step_.check_no_scope("masters_updated()");
  check_all_sharded();
  for (FlatParameter& unit : units_) withdraw(unit);
  has_initial_weights_ = false;
}

void Executor::masters_updated() {
  withdraw_masters();
  unsharder_.masters_updated();
}

void Executor::masters_updated(const Event& done) {
  withdraw_masters();
  if (has_zero_copy()) unsharder_.masters_updated();  // shards are withdrawn on compute
  context_.device().stream(StreamRole::unshard).wait(done);
  const auto is_on_host = [](const FlatParameter& unit) { return unit.comes_from_host(); };
  if (std::any_of(units_.begin(), units_.end(), is_on_host)) context_.device().stream(StreamRole::offload).wait(done);
}

/// Whoever reads this rank's shard too early, or still, shall not find the old weights.
void Executor::withdraw(FlatParameter& unit) {
  unit.is_published = false;
  if (unit.published.empty()) return;
  context_.launch({"withdraw:" + unit.name, {}, {unit.published}},
                  [slice = unit.published](ExecContext&) { BufferRaceCheck::hide(slice); });
}

void Executor::forget_published() {
  if (!has_zero_copy()) return;
  wait_readers();  // the next step's first publication may write what another rank still reads
  for (FlatParameter& unit : units_) unit.is_published = false;
  unsharder_.masters_updated();
}

bool Executor::has_zero_copy() const {
  return std::any_of(units_.begin(), units_.end(), [](const FlatParameter& unit) { return unit.is_zero_copy(); });
}

void Executor::wait_readers() {
  due_updates_.settle();
  if (has_zero_copy()) norm_comm().barrier(context_.stream(), "readers");
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

void Executor::read_full(int unit_index, const UseParameter& use) {
  due_updates_.settle();
  FlatParameter& unit = units_.at(static_cast<std::size_t>(unit_index));
  Memory memory;
  const Buffer full = unsharder_.gather_masters(unit, memory);
  if (unit.has_masters_on_host()) link_.settle(context_.device().stream(StreamRole::unshard));
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const FlatView& view = unit.layout->views()[i];
    const Buffer values =
        view.is_whole ? unit.whole_view(unit.master_buffer(), view) : full.slice(view.offset, view.numel);
    if (link_.is_on_disk(values)) {
      std::vector<float> read(static_cast<std::size_t>(values.elems));
      context_.device().synchronize();
      if (context_.device().kind() != DeviceKind::meta) link_.read(values, read.data());
      use(*unit.parameters[i], read.data());
      continue;
    }
    const HostView here(context_, context_.device().stream(StreamRole::unshard), values);
    link_.check();
    use(*unit.parameters[i], here.as<float>());
  }
}

}  // namespace zs
