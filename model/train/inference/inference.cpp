#include "model/train/inference/inference.h"

#include <utility>

#include "model/data/utf8.h"
#include "model/train/plan/memory_check.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/program.h"
#include "model/train/rank/startup.h"
#include "model/train/run_dir/frozen_weights.h"
#include "runtime/base/units.h"
#include "runtime/device/memory_limit.h"
#include "runtime/shard/checkpoint/checkpoint.h"

namespace zs {

Inference::Inference(World& world, const Config& config, const SavedModel& model)
    : world_(world), watch_(world), config_(config), model_(model) {}

void Inference::adapt_to_ranks() {
  // No step is taken: any number of ranks will do.
  config_.train.global_batch = config_.train.micro_batch * world_.size();
  config_.tensor = {};  // products of no step: every rank computes samples of its own
  try {
    check_ranks(config_, world_.size(), world_.hosts());
  } catch (const Error& error) {
    if (is_first()) print_note(error.what_happened() + ": the weights are sharded over all ranks (zero3)");
    config_.shard.strategy = "zero3";
    config_.shard.group_size = 0;
    config_.shard.reshard_after_forward = true;
    config_.plan.strategy.clear();
    config_.plan.reshard.clear();
    config_.experts = {};
  }
}

void Inference::plan(const std::function<void(Session&)>& work) {
  share_ = cpu_share(world_.local_rank(), world_.local_size());
  check_device(config_, gpus_.gpu);
  PlanOptions options = plan_options(world_, share_.threads);
  if (device_kind(config_) == DeviceKind::cuda) options = on_gpus(options, config_, gpus_);
  plan_ = make_inference_plan(config_, options, work);
  if (!model_.folder.empty()) weights_ = open_weights(config_, plan_);
  if (!model_.checkpoint.empty()) open_frozen();
  for (const auto& files : weights_)
    for (const std::string& warning : files->warnings())
      if (is_first()) print_warning(warning);
  if (!model_.weights.empty()) weights_ = open_run_weights(config_, plan_, model_.weights, is_first());
  check_memory();
  check_threads(share_.threads - 1 + kStreamRoles);  // threads that the device will start
}

/// Opens the folder that has what the checkpoint leaves out.
void Inference::open_frozen() {
  const auto frozen = FrozenWeights::in(CheckpointReader(model_.checkpoint).manifest().attributes);
  if (!frozen) return;
  const std::string folder = frozen->found(config_.model.path, model_.checkpoint);
  weights_.push_back(open_model_weights(config_, plan_, folder));
  if (is_first()) frozen->check(folder, model_.checkpoint);
}

/// One rank of each host speaks for all of them, or each for its own GPU.
void Inference::check_memory() const {
  const bool is_cuda = plan_.device == DeviceKind::cuda;
  if (world_.local_rank() != 0 && !is_cuda) return;
  MemoryDemand demand{config_, plan_options(world_, share_.threads), world_.local_size()};
  if (is_cuda) demand = on_gpus(demand, gpus_);
  const int threads = kStreamRoles + share_.threads - 1;
  const auto limits = is_cuda ? std::vector<MemoryLimit>{gpu_memory_limit(gpus_.gpu)} : memory_limits();
  const auto budgets =
      memory_budgets(limits, threads * (transport_of(world_) == Transport::local ? demand.local_ranks : 1));
  const MemoryBudget* const budget = exceeded(demand, plan_.reserved_bytes, budgets);
  if (budget == nullptr) return;
  throw Error(
      ExitCode::out_of_memory,
      fmt::format("{} are needed, {} may be used", format_bytes(needed_bytes(demand, plan_.reserved_bytes, *budget)),
                  format_bytes(budget->bytes)),
      budget->source, "use more hosts, or lower train.micro_batch or train.sequence");
}

int Inference::load() {
  if (!weights_.empty()) {
    const int code = collectively(
        world_, "", [&] { import_weights(world_, session_->runtime().executor(), std::exchange(weights_, {})); });
    if (code != 0) return code;
  }
  return collectively(world_, "", [&] {
    if (!model_.checkpoint.empty())
      load_weights(world_, session_->runtime().executor(), model_.checkpoint);
    else if (model_.weights.empty())
      begin_adapters(*session_);
  });
}

int Inference::end(bool is_stopped) const {
  const auto fail = [](const Error& error) {
    print_to_stderr("{}\n", error_line(error));
    return static_cast<int>(error.code());
  };
  if (is_first() && stdout_failure() != 0)  // only this rank knows; the launcher goes by a code that is not 0
    return fail({ExitCode::io, fmt::format("standard output was lost: {}", system_reason(stdout_failure())), "stdout",
                 "send it where there is room"});
  if (!is_stopped) return 0;
  const Error stopped(ExitCode::stopped, "stopped on request", "", "nothing was changed");
  return is_first() ? fail(stopped) : static_cast<int>(stopped.code());
}

int Inference::start(const std::function<void(Session&)>& work) {
  watch_.enter(Phase::init);
  if (const int code = choose_device(world_, config_); code != 0) return code;
  adapt_to_ranks();
  if (const int code = find_gpus(world_, config_, world_.size(), gpus_); code != 0) return code;
  if (const int code = agreed(world_, [&] { plan(work); }); code != 0) return code;
  // A run that is under way may save another one while its ranks look.
  model_.checkpoint = world_.agree(is_first() ? 1 : 0, model_.checkpoint).message;
  bind_this_thread(share_.cpus);
  device_ = std::make_unique<RankDevice>(world_, rank_device_options(config_, gpus_, plan_, share_));
  session_ = std::make_unique<Session>(
      device_->device(), device_->world(), config_, Session::Use::inference, [this](const std::string& parameter) {
        return weights_.empty() || !model_.checkpoint.empty() || has_parameter(weights_, parameter);
      });
  plan_.apply_order(session_->runtime());
  return load();
}

}  // namespace zs
