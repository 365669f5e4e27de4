#include "model/train/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "comm/world.h"
#include "model/train/config/config_experts.h"
#include "model/train/config/config_tensor.h"
#include "model/train/plan/explain.h"
#include "model/train/session/session.h"
#include "model/train/session/token_window.h"
#include "model/train/session/whole_parameters.h"
#include "runtime/base/units.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

ReadSamples no_samples(const Config& config) {
  return [&config](std::int64_t) {
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(config.train.micro_batch * config.train.sequence));
    SampleBatch batch{zeros, zeros};
    if (config.data.format != "stream")  // any documents take as much memory
      batch.lengths.assign(static_cast<std::size_t>(config.train.micro_batch), config.train.sequence);
    return batch;
  };
}

std::string describe_units(const TrainPlan& plan) {
  const bool is_flat = std::none_of(plan.units.begin(), plan.units.end(),
                                    [](const auto& unit) { return unit.layout->is_interleaved(); });
  std::size_t width = 16;
  for (const TrainPlan::Unit& unit : plan.units) width = std::max(width, unit.name.size() + 1);
  std::string text = fmt::format("{:<{}}{:>8}{:>14}{:>14}{:>12}{:>12}{}\n", "unit", width, "params", "elements",
                                 "shard elems", "full", "weights", is_flat ? "" : "      gathered         whole");
  std::int64_t elements = 0;
  for (const TrainPlan::Unit& unit : plan.units) {
    const UnitLayout& layout = *unit.layout;
    elements += layout.numel();
    text += fmt::format("{:<{}}{:>8}{:>14}{:>14}{:>12}{:>12}", unit.name, width, layout.views().size(), layout.numel(),
                        layout.shard_elems(), format_bytes(layout.numel() * size_of(unit.precision.param)),
                        format_bytes(unit.weights_bytes()));
    text += is_flat ? "\n" : fmt::format("{:>14}{:>14}\n", layout.gathered_shard_elems(), layout.whole_elems());
  }
  return text + fmt::format("{:<{}}{:>8}{:>14}\n", "all", width, "", elements);
}

/// Description of the units that are read where their shards lie.
std::string describe_zero_copy(const TrainPlan& plan) {
  std::vector<std::string> names;
  for (const TrainPlan::Unit& unit : plan.units) {
    if (unit.is_zero_copy) names.push_back(unit.name);
  }
  if (names.empty()) return "zero-copy: no unit\n";
  std::string which = "all units";
  if (names.size() < plan.units.size()) which = fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("zero-copy: {}, {} of shards on this rank where the others read them\n", which,
                     format_bytes(plan.shared_bytes));
}

/// Table of parameters that are cut one by one: each with its dim, and what the first rank has of it, which is the
/// most.
std::string describe_parameters(const TrainPlan& plan) {
  std::string text =
      fmt::format("\nevery parameter\n  {:<40}{:>20}{:>8}{:>16}\n", "name", "shape", "dim", "elements a rank");
  for (const TrainPlan::Unit& unit : plan.units) {
    std::vector<std::int64_t> here(unit.layout->views().size(), 0);
    for (const ShardSegment& segment : unit.layout->held_segments(0)) here[segment.view] += segment.count;
    for (std::size_t i = 0; i < here.size(); ++i) {
      const FlatView& view = unit.layout->views()[i];
      text += fmt::format("  {:<40}{:>20}{:>8}{:>16}\n", view.name, view.shape.str(),
                          view.is_whole ? "whole" : fmt::format("{}", view.dim), here[i]);
    }
  }
  return text;
}

/// Beside the device's own memory.
std::string describe_pinned(const TrainPlan& plan) {
  std::string text = plan.device == DeviceKind::cuda ? "\npage-locked memory of the host, for this rank's GPU\n"
                                                     : "\nmemory of the host, beside this rank's device\n";
  const auto line = [&](const std::string& name, std::int64_t bytes) {
    text += fmt::format("  {:<16}{:>16}  {}\n", name, bytes, format_bytes(bytes));
  };
  if (plan.upload_bytes > 0) line(PinnedMemory::kUploads, plan.upload_bytes);
  for (std::size_t role = 0; role < plan.staging_bytes.size(); ++role) {
    if (const std::int64_t bytes = plan.staging_bytes[role]; bytes > 0)
      line(name_of(static_cast<StreamRole>(role)), bytes);
  }
  std::int64_t others = plan.upload_bytes;
  for (const std::int64_t bytes : plan.staging_bytes) others += bytes;
  for (const auto& [kind, bytes] : plan.host_by_kind) {
    line(kind, bytes);
    others += bytes;
  }
  const std::int64_t windows = plan.pinned_bytes - others;
  if (!plan.disk_bytes.empty()) line("disk_window", windows);
  if (plan.host_by_kind.contains("scalars") && windows > 0) line("param_window", windows);  // for updates by the host
  line("from the system", plan.pinned_bytes);
  return text;
}

std::string describe_disks(const TrainPlan& plan) {
  std::string text;
  for (const auto& [folder, bytes] : plan.disk_bytes)
    text +=
        fmt::format("\na file of this rank in {}\n  {:<16}{:>16}  {}\n", folder, "state", bytes, format_bytes(bytes));
  return text;
}

std::string describe_memory(const TrainPlan& plan, bool is_full) {
  std::string text = "\nbytes on this rank, by kind, at the peak of a step\n";
  const auto line = [&](const std::string& name, std::int64_t bytes) {
    text += fmt::format("  {:<16}{:>16}  {}\n", name, bytes, format_bytes(bytes));
  };
  for (const auto& [label, bytes] : plan.at_peak) line(label, bytes);
  line("peak_bytes", plan.step_peak_bytes);
  line("between steps", plan.persistent_bytes);
  line("from the system", plan.reserved_bytes);
  if (plan.pinned_bytes > 0) text += describe_pinned(plan);
  text += describe_disks(plan);
  text += fmt::format("\nbuffers of a step on this rank (micro-batches that repeat the one before are left out)\n{}",
                      describe_grouped(plan.buffers, plan.trace));
  if (is_full) text += fmt::format("\nevery buffer of a step\n{}", describe_all(plan.buffers, plan.trace));
  return text;
}

std::string describe_schedule(const TrainPlan& plan) {
  std::string text;
  for (const Action& action : plan.micro_batch)
    text += fmt::format("  {:<18}{}\n", name_of(action.kind), plan.units[static_cast<std::size_t>(action.unit)].name);
  return text;
}

/// Staging of the compute stream: losses, norms and the like come to the host through it.
constexpr std::int64_t kLeastStaging = std::int64_t{1} << 20;

/// Bytes that the host uploads in a step, inputs and targets above all, so that it need not wait for the GPU within
/// one; and room for weights to go up by the piece.
std::int64_t upload_bytes(const Config& config, int ranks) {
  constexpr std::int64_t kLeast = std::int64_t{1} << 20, kMost = std::int64_t{64} << 20;
  const std::int64_t samples = micro_batches_a_rank(config, data_shares(config, ranks)) * config.train.micro_batch;
  return std::clamp(2 * samples * config.train.sequence * size_of(DType::i32) + kLeast, kLeast, kMost);
}

/// A session on the meta device, whose memory has no end.
class MetaRun {
 public:
  MetaRun(const Config& config, const PlanOptions& options)
      : device_(Device::create(DeviceKind::meta, {.threads = options.threads,
                                                  .cpus = {},
                                                  .slab_bytes = Pool::kGrowingSlab,
                                                  .stands_for = options.device,
                                                  .upload_bytes = upload_bytes(config, options.ranks),
                                                  .pinned_bytes = Pool::kGrowingSlab,
                                                  .cudnn_attention = options.cudnn_attention})),
        world_(make_meta_world(options.rank, options.ranks,
                               {options.transport, options.hosts, options.sums_in_rank_order})),
        read_(no_samples(config)),
        validation_windows_(options.validation_windows),
        evaluate_(options.evaluate) {
    device_->trace().start();
  }

  /// Separate, so that what comes before the session in a run does so here.
  Session& start(const Config& config, Session::Use use = Session::Use::training) {
    return session_.emplace(*device_, *world_, config, use);
  }

  void step(std::int64_t number) { session_->enqueue_step(number, 0, read_, false); }
  /// Makes the updates that are left for the next step, as a checkpoint behind a step does.
  void settle() { session_->runtime().executor().deferred_updates().settle(); }
  /// Does the work of a run beside its steps.
  void rest() {
    const Config& config = session_->config();
    if (config.run.validate_every > 0 && validation_windows_ > 0)
      session_->enqueue_validation(read_, validation_windows_);
    if (evaluate_) evaluate_(*session_);
    for (int unit = 0; unit < std::ssize(session_->runtime().executor().units()); ++unit)
      read_whole(session_->runtime().executor(), unit, [](const Parameter&, const Executor::Piece&) {});
    if (config.run.sample_tokens > 0) TokenWindow::enqueue_longest(*session_);
  }

  Device& device() { return *device_; }
  ShardedRuntime& runtime() { return session_->runtime(); }
  Session& session() { return *session_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<World> world_;
  ReadSamples read_;
  std::int64_t validation_windows_;
  std::function<void(Session&)> evaluate_;
  std::optional<Session> session_;
};

/// Notices that the micro-batches of a step have begun to repeat: one that finds every block of memory where an earlier
/// one did does what that did, unless that was the first, which has nothing to add its gradients to.
class Repetition {
 public:
  /// True if the micro-batch that begins in this layout may stand for all that follow.
  bool has_begun(std::uint64_t layout) {
    if (std::exchange(is_first_, false)) return false;
    const bool is_known = std::find(layouts_.begin(), layouts_.end(), layout) != layouts_.end();
    layouts_.push_back(layout);
    return is_known || std::ssize(layouts_) == kMost;
  }

 private:
  static constexpr std::int64_t kMost = 12;  // small blocks wander for longer, for a thousandth of the memory
  bool is_first_ = true;
  std::vector<std::uint64_t> layouts_;
};

void take_recorded(TrainPlan& plan, MetaRun& run, const PlanOptions& options) {
  plan.scratch_bytes = run.device().scratch().bytes();
  plan.staging_bytes = run.device().pinned_memory().staging().bytes();
  if (options.device == DeviceKind::cuda) {
    std::int64_t& compute = plan.staging_bytes[static_cast<std::size_t>(StreamRole::compute)];
    compute = std::max(compute, kLeastStaging);
  }
  plan.train_order = run.runtime().scheduler().order(Mode::train);
  plan.eval_order = run.runtime().scheduler().order(Mode::eval);
}

/// The order of units and the size of the streams' scratch, which shape everything after their first micro-batch; or
/// second, where sums onto what the first one left need more.
void record(TrainPlan& plan, const Config& config, const PlanOptions& options) {
  MetaRun run(config, options);
  run.start(config).abridge([number = 0]() mutable { return ++number % 2 == 0; });
  run.step(1);
  run.rest();
  take_recorded(plan, run, options);
  plan.warnings = list_warnings(run.session());
  if (const std::string empty = describe_empty_micro_batches(config, options.ranks); !empty.empty())
    plan.warnings.push_back(empty);
}

/// A parameter that is used outside of its unit's forward is the plan's mistake, which comes out when the model runs.
template <class Work>
void run_by_plan(const Config& config, const Work& work) try {
  work();
} catch (const UsageError& error) {
  if (config.shard.units != "plan") throw;
  throw Error(ExitCode::config, "plan.apply: " + error.what_happened(), {},
              "leave that module to the unit around it: its parameters are used where neither its own forward nor its "
              "hook's runs");
}

/// Takes the bytes that a whole run has taken from the system.
void take_reserved(TrainPlan& plan, MetaRun& run) {
  plan.peak_bytes = run.device().memory().peak_bytes();
  plan.reserved_bytes = run.device().memory().reserved_bytes();
  plan.shared_bytes = run.device().memory().adopted_bytes();
  plan.pinned_bytes = run.device().pinned_memory().counter().reserved_bytes();
  plan.disk_bytes = run.runtime().executor().link().disk_bytes();
  for (const FlatParameter& unit : run.runtime().executor().units()) plan.units.push_back(TrainPlan::Unit::of(unit));
  note_places(plan, run.session());
}

/// Configuration for a run on ranks with this transport; the meta world's own is none.
Config with_unit_mib(Config config, const PlanOptions& options) {
  config.shard.unit_mib = unit_mib(config, options.transport, options.ranks);
  return config;
}

void plan_step(TrainPlan& plan, MetaRun& run) {
  MemoryCounter& memory = run.device().memory();
  auto& entries = run.device().trace().entries();
  plan.persistent_bytes = memory.live_bytes();
  const std::size_t begin = entries.size();
  const ShardGroups::Sent sent = run.runtime().executor().groups().sent();
  memory.reset_peak();
  if (run.session().config().checkpoint.every == 1) run.settle();
  const std::int64_t between = memory.peak_bytes();
  plan.at_peak = memory.at_peak();
  run.step(2);
  run.device().trace().stop();
  plan.sent = run.runtime().executor().groups().sent().since(sent);
  plan.step_peak_bytes = std::max(between, memory.peak_bytes());
  if (memory.peak_bytes() >= between) plan.at_peak = memory.at_peak();
  const MemoryCounter& host = run.device().pinned_memory().counter();
  plan.host_bytes = host.live_bytes();
  for (const auto& [kind, bytes] : host.live_by_label())
    if (kind != PinnedMemory::kUploads && kind != PinnedMemory::kStaging && bytes > 0) plan.host_by_kind[kind] = bytes;
  plan.micro_batch = run.runtime().actions();
  for (const std::size_t moment : run.runtime().moments()) plan.moments.push_back(moment - begin);
  plan.buffers = buffers_of(entries, begin, entries.size());
  plan.trace.assign(std::make_move_iterator(entries.begin() + static_cast<std::ptrdiff_t>(begin)),
                    std::make_move_iterator(entries.end()));
}

}  // namespace

PlanOptions plan_options(const World& world, int threads) {
  return {.rank = world.rank(),
          .ranks = world.size(),
          .threads = threads,
          .transport = transport_of(world),
          .hosts = world.hosts(),
          .sums_in_rank_order = world.sums_in_rank_order()};
}

void limit_validation(Config& config, std::int64_t windows) {
  const std::int64_t batch = config.train.global_batch;
  config.run.validate_batches = std::min(config.run.validate_batches, windows / batch + (windows % batch > 0 ? 1 : 0));
}

TrainPlan make_plan(const Config& wanted, const PlanOptions& options) {
  const Config config = with_unit_mib(wanted, options);
  TrainPlan plan;
  plan.device = options.device;
  if (options.device == DeviceKind::cuda) plan.upload_bytes = upload_bytes(config, options.ranks);
  run_by_plan(config, [&] { record(plan, config, options); });
  MetaRun run(config, options);
  plan.reserve(run.device());
  Session& session = run.start(config);
  plan.apply_order(session.runtime());
  Repetition repetition;
  if (!options.has_every_micro_batch)
    session.abridge([&] { return repetition.has_begun(run.device().memory().layout()); });
  run.step(1);
  repetition = {};
  plan_step(plan, run);
  repetition = {};
  run.rest();
  take_reserved(plan, run);
  return plan;
}

TrainPlan make_inference_plan(const Config& wanted, const PlanOptions& options,
                              const std::function<void(Session&)>& work) {
  const Config config = with_unit_mib(wanted, options);
  TrainPlan plan;
  plan.device = options.device;
  if (options.device == DeviceKind::cuda) plan.upload_bytes = upload_bytes(config, options.ranks);
  {
    MetaRun run(config, options);
    run_by_plan(config, [&] { work(run.start(config, Session::Use::inference)); });
    take_recorded(plan, run, options);
  }
  MetaRun run(config, options);
  plan.reserve(run.device());
  Session& session = run.start(config, Session::Use::inference);
  plan.apply_order(session.runtime());
  work(session);
  take_reserved(plan, run);
  return plan;
}

std::unique_ptr<Device> TrainPlan::create_device(DeviceOptions options, const MakeDevice& make) const {
  options.slab_bytes = reserved_bytes - shared_bytes;
  if (upload_bytes > 0) options.upload_bytes = upload_bytes;
  options.pinned_bytes += pinned_bytes;
  auto created = make(device, options);
  reserve(*created);
  return created;
}

void TrainPlan::reserve(Device& created) const {
  created.scratch().reserve(created, scratch_bytes);
  created.pinned_memory().staging().reserve(created, staging_bytes);
}

void TrainPlan::apply_order(ShardedRuntime& runtime) const {
  runtime.scheduler().set_order(Mode::train, train_order);
  runtime.scheduler().set_order(Mode::eval, eval_order);
}

std::string describe(const TrainPlan& plan, const Config& config, int ranks, bool is_full) {
  const auto micro_batches = micro_batches_a_rank(config, data_shares(config, ranks));
  std::string text =
      fmt::format("plan: {}, {} micro-batch{} of {} x {} tokens a rank and step, {} parameters, prefetch {}\n\n",
                  format_number(ranks, "rank"), micro_batches, micro_batches == 1 ? "" : "es", config.train.micro_batch,
                  config.train.sequence, config.precision.param, config.shard.prefetch);
  text += describe_units(plan);
  text += describe_zero_copy(plan);
  text += describe_mixtures(config, ranks);
  text += describe_tensor(config, ranks, plan.sent.along.sent_bytes() / std::min<std::int64_t>(micro_batches, 2));
  if (config.train.recompute != std::vector<std::string>{"none"})
    text += fmt::format("recomputed in backward: {}\n", fmt::join(config.train.recompute, ", "));
  if (config.offload.has_any_of_units() && config.offload.resident_units.value > 0)
    text += fmt::format("units of which the device keeps what the host does of the others: the first {}\n",
                        std::min<std::int64_t>(config.offload.resident_units.value, std::ssize(plan.units)));
  if (is_full && config.shard.layout == "per_parameter") text += describe_parameters(plan);
  text += describe_memory(plan, is_full);
  if (!plan.lists.empty()) text += fmt::format("\ngathered ahead by the plan\n  {}\n", fmt::join(plan.lists, "\n  "));
  text += fmt::format("\nschedule of the last micro-batch of a step\n{}", describe_schedule(plan));
  return text;
}

}  // namespace zs
