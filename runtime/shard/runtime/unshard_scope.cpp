#include "runtime/shard/runtime/unshard_scope.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/base/standard_streams.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

[[noreturn]] void refuse(const FlatParameter& unit, const char* when, const char* what_to_do) {
  throw UsageError(fmt::format("an UnshardScope of unit {} begins {}", unit.name, when), what_to_do);
}

}  // namespace

UnshardScope::UnshardScope(ShardedRuntime& runtime, const std::vector<int>& units, const UnshardOptions& options)
    : runtime_(runtime), units_(units), options_(options), exceptions_(std::uncaught_exceptions()) {
  check();
  if (options_.with_gradients) wait_gradients();
  try {
    enter_all();
  } catch (...) {
    leave_all();
    throw;
  }
}

void UnshardScope::check() const {
  const Executor& executor = runtime_.executor();
  if (options_.only_rank && (*options_.only_rank < 0 || *options_.only_rank >= executor.ranks()))
    throw UsageError(fmt::format("an UnshardScope for rank {} of {} alone", *options_.only_rank, executor.ranks()),
                     "name a rank that is");
  for (auto unit = units_.begin(); unit != units_.end(); ++unit) {
    if (std::cmp_greater_equal(*unit, executor.units().size()) || *unit < 0)
      throw UsageError(fmt::format("an UnshardScope of unit {} of a model with {}", *unit, executor.units().size()),
                       "units are counted from 0");
    const FlatParameter& flat = this->flat(*unit);
    if (std::find(units_.begin(), unit, *unit) != unit) refuse(flat, "twice", "name each unit once");
    if (flat.placement->is_partitioned())
      refuse(flat, "of which each rank owns a part", "save a checkpoint, which has the whole");
    if (runtime_.scheduler().is_in_micro_batch())
      refuse(flat, "within a micro-batch", "enter it between micro-batches");
    if (flat.is_in_scope) refuse(flat, "while another UnshardScope of it lives", "end that scope first");
    if (options_.with_gradients) check_gradients(*unit);
  }
}

void UnshardScope::check_gradients(int unit) const {
  const FlatParameter& flat = this->flat(unit);
  const char* const what_to_do = "enter it behind the step's last micro-batch, or leave with_gradients out";
  if (runtime_.scheduler().sum_state(unit) != SumState::none)
    refuse(flat, "with gradients of which the second step of the reduction is to come", what_to_do);
  const GradState state = runtime_.scheduler().grad_state(unit);
  if (state != GradState::none && state != GradState::reducing)
    refuse(flat, "with gradients that are accumulated and not reduced", what_to_do);
}

void UnshardScope::wait_gradients() {
  Executor& executor = runtime_.executor();
  if (executor.step().has_ended()) return executor.wait_reductions();
  for (const int unit : units_) executor.wait_sums(flat(unit));
}

void UnshardScope::enter_all() {
  runtime_.executor().deferred_updates().settle();
  entered_.reserve(units_.size());
  for (const int unit : units_) {
    entered_.push_back({.unit = unit});
    enter(entered_.back());
  }
  if (!options_.on_host) return;
  runtime_.context().stream().synchronize();
  warn_of_host();
}

void UnshardScope::enter(Entered& entered) {
  FlatParameter& unit = flat(entered.unit);
  runtime_.executor().order_check().note_enter(entered.unit, number_of_options());
  unit.is_in_scope = true;
  entered.weights = take(unit, HeldShards::masters(unit), entered);
  for (const Parameter* parameter : unit.parameters) gradients_[parameter] = {};
  if (options_.with_gradients && unit.grad_is_written)
    entered.gradients = take(unit, HeldShards::gradients(unit), entered);
  if (!options_.writes_back) entered.hashes = runtime_.executor().write_check().hash(unit, entered.values);
}

WholeUnit UnshardScope::take(FlatParameter& unit, const HeldShards& shards, Entered& entered) {
  const bool are_masters = shards.role == HeldShards::Role::master;
  ScopeTransfer& transfer = runtime_.executor().transfer();
  WholeUnit whole =
      options_.only_rank ? transfer.gather_to(unit, shards, *options_.only_rank) : transfer.gather(unit, shards);
  if (options_.on_host) whole = transfer.to_host(unit, std::move(whole));
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const bool has_none = !are_masters && !unit.parameters[i]->is_trainable();
    const Buffer buffer = has_none ? Buffer{} : whole.of(*unit.layout, unit.layout->views()[i]);
    (are_masters ? values_ : gradients_)[unit.parameters[i]] = buffer;
    if (!is_seen()) continue;
    entered.values.buffers.push_back(buffer);
    entered.values.names.push_back(are_masters ? unit.parameters[i]->name()
                                               : "the gradient of " + unit.parameters[i]->name());
  }
  return whole;
}

void UnshardScope::warn_of_host() {
  const Executor& executor = runtime_.executor();
  if (units_.empty() || options_.only_rank || executor.ranks() == 1 || executor.rank() != 0 ||
      std::exchange(runtime_.has_warned_host_, true))
    return;
  std::int64_t bytes = 0;
  for (const int unit : units_) bytes += flat(unit).layout->full_elems() * size_of(DType::f32);
  print_to_stderr(
      "zshard: warning: an UnshardScope on the host has {} bytes there on each of {} ranks; only_rank has them on "
      "one\n",
      bytes, executor.ranks());
}

/// Number of the options that all ranks have alike; what becomes of an exception is each rank's own.
std::int64_t UnshardScope::number_of_options() const {
  return std::int64_t{options_.writes_back} | std::int64_t{options_.on_host} << 1 |
         std::int64_t{options_.with_gradients} << 2 |
         std::int64_t{options_.only_rank ? *options_.only_rank + 1 : 0} << 3;
}

UnshardScope::~UnshardScope() noexcept(false) {
  if (model_.has_ended()) {
    if (std::uncaught_exceptions() == exceptions_) model_.check("the end of an UnshardScope");
    return;
  }
  if (std::uncaught_exceptions() != exceptions_) {
    end_by_exception();
    leave_all();
    return;
  }
  try {
    end();
  } catch (...) {
    leave_all();
    throw;
  }
  leave_all();
}

void UnshardScope::leave_all() noexcept {
  Stream& compute = runtime_.context().stream();
  for (; !entered_.empty(); entered_.pop_back()) {
    Entered& last = entered_.back();
    try {
      for (WholeUnit* whole : {&last.weights, &last.gradients}) {
        whole->sharded.release(compute);
        whole->whole.release(compute);
      }
    } catch (const std::exception&) {  // thrown by a device that has failed: the memory goes with its owner
    }
    flat(last.unit).is_in_scope = false;
    runtime_.executor().order_check().note_leave();
  }
}

void UnshardScope::end() {
  WriteCheck& check = runtime_.executor().write_check();
  if (options_.writes_back) {
    for (Entered& entered : entered_) write_back(entered);
    for (const Entered& entered : entered_)
      if (entered.written.rows) check.compare(entered.written);
    return;
  }
  for (const Entered& entered : entered_) check.note_changed(flat(entered.unit), entered.values, entered.hashes);
  runtime_.executor().settle_written();
}

void UnshardScope::end_by_exception() noexcept {
  const bool stores = options_.writes_back && options_.after_exception == UnshardOptions::After::write_back;
  if (stores) warn_of_discarded();
  try {
    for (auto entered = entered_.rbegin(); entered != entered_.rend(); ++entered) {
      if (stores) store_alone(*entered);
      if (entered->written.rows) runtime_.executor().write_check().compare_later(std::move(entered->written));
    }
  } catch (const std::exception& error) {
    print_to_stderr("zshard: warning: rank {}: what was written in an UnshardScope is discarded: {}\n",
                    runtime_.executor().rank(), error.what());
  }
}

/// One line, whatever number of units.
void UnshardScope::warn_of_discarded() const {
  const auto is_lost = [&](const Entered& entered) { return !is_storable_alone(flat(entered.unit)); };
  const auto first = std::find_if(entered_.begin(), entered_.end(), is_lost);
  if (first == entered_.end() || !is_seen()) return;
  const auto more = std::count_if(first + 1, entered_.end(), is_lost);
  print_to_stderr(
      "zshard: warning: rank {}: an exception ended an UnshardScope: what was written into unit {}{} is discarded, "
      "since {}\n",
      runtime_.executor().rank(), flat(first->unit).name, more > 0 ? fmt::format(" and {} more", more) : "",
      options_.only_rank ? "the other ranks may not come to take it" : "other ranks may be reading its shards");
}

void UnshardScope::write_back() {
  model_.check("write_back() of an UnshardScope");
  if (!options_.writes_back)
    throw UsageError("write_back() of an UnshardScope for reading", "enter it with writes_back = true");
  for (Entered& entered : entered_) write_back(entered);
  if (options_.on_host) runtime_.context().stream().synchronize();
}

void UnshardScope::write_back(Entered& entered) {
  Executor& executor = runtime_.executor();
  FlatParameter& unit = flat(entered.unit);
  const UnitState before = runtime_.scheduler().state(entered.unit);
  runtime_.run(runtime_.scheduler().reshard(entered.unit));  // copies that are gathered, or at hand, are old now
  executor.begin_write(unit, true);
  put(unit, HeldShards::masters(unit), entered.weights);
  executor.end_write(unit);
  if (options_.with_gradients && unit.grad_is_written) put(unit, HeldShards::gradients(unit), entered.gradients);
  if (options_.only_rank) {
    executor.order_check().note_scatter(entered.unit);
  } else {
    executor.order_check().note_write_back(entered.unit);
    executor.write_check().note_write_back(entered.written, unit, entered.values);
  }
  if (before != UnitState::sharded) runtime_.run(runtime_.scheduler().start_unshard(entered.unit));
  if (before == UnitState::unsharded) runtime_.run(runtime_.scheduler().wait_unshard(entered.unit));
}

void UnshardScope::put(FlatParameter& unit, const HeldShards& shards, const WholeUnit& from) {
  ScopeTransfer& transfer = runtime_.executor().transfer();
  WholeUnit staged;
  if (options_.on_host) staged = transfer.to_device(unit, from);
  const WholeUnit& source = options_.on_host ? staged : from;
  options_.only_rank ? transfer.scatter(unit, shards, source, *options_.only_rank)
                     : transfer.store(unit, shards, source);
}

void UnshardScope::store_alone(Entered& entered) {
  Executor& executor = runtime_.executor();
  FlatParameter& unit = flat(entered.unit);
  if (!is_storable_alone(unit)) return;
  runtime_.run(runtime_.scheduler().reshard(entered.unit));
  executor.begin_write(unit, false);
  put(unit, HeldShards::masters(unit), entered.weights);
  executor.end_write(unit);
  if (options_.with_gradients && unit.grad_is_written) put(unit, HeldShards::gradients(unit), entered.gradients);
  executor.order_check().note_write_back(entered.unit);
  executor.write_check().note_write_back(entered.written, unit, entered.values);
}

Buffer UnshardScope::find(const std::unordered_map<const Parameter*, Buffer>& buffers, const Parameter& parameter) {
  const auto found = buffers.find(&parameter);
  if (found != buffers.end()) return found->second;
  throw UsageError(fmt::format("parameter {} is in no unit of this UnshardScope", parameter.name()),
                   "enter the unit that it belongs to; an ignored parameter has a value of its own");
}

Buffer UnshardScope::value(const Parameter& parameter) const { return find(values_, parameter); }

Buffer UnshardScope::gradient(const Parameter& parameter) const {
  if (!options_.with_gradients)
    throw UsageError("gradient() of an UnshardScope without gradients", "enter it with with_gradients = true");
  return find(gradients_, parameter);
}

void broadcast_parameters(ShardedRuntime& runtime, int root) {
  Executor& executor = runtime.executor();
  if (root < 0 || root >= executor.ranks()) {
    throw UsageError(fmt::format("broadcast_parameters() from rank {} of {}", root, executor.ranks()));
  }
  executor.step().check_no_scope("broadcast_parameters()");
  runtime.adopt_seed(root);
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit) {
    const UnshardScope scope(runtime, {unit}, {.only_rank = root});
  }
  for (const Parameter* parameter : executor.ignored())
    executor.compute_comm().broadcast(runtime.context().stream(), parameter->name(), parameter->value(), root);
}

}  // namespace zs
