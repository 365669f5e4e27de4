#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "model/data/utf8.h"
#include "model/train/config/config_dataset.h"
#include "model/train/config/config_recompute.h"
#include "model/train/plan/explain.h"
#include "model/train/plan/fit.h"
#include "model/train/plan/recompute_choice.h"
#include "model/train/plan/resident_choice.h"
#include "model/train/plan/update_choice.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/program.h"
#include "model/train/rank/startup.h"
#include "model/train/run_dir/export.h"
#include "model/train/session/sample_text.h"
#include "model/train/trainer/trainer.h"
#include "runtime/base/units.h"
#include "runtime/device/memory_limit.h"
#include "runtime/shard/offload/disk_file.h"

namespace zs {
namespace {

/// Number of threads that a rank starts: those of the device, that which reads ahead, and those which write checkpoints
/// and read what these leave out.
int started_threads(const CpuShare& share, const Config& config) {
  return share.threads - 1 + kStreamRoles + 1 + int{config.checkpoint.background} +
         int{config.checkpoint.leaves_out_frozen()};
}

/// Each figure is a number of its own in a line of metrics.jsonl.
void check_metrics(const TaskRun& run) {
  std::set<std::string> names;
  for (const Task& task : run.tasks())
    if (!names.insert(task.name).second)
      throw Error(ExitCode::config, fmt::format("two tasks have the name {}", escaped(task.name)), "run.evaluate",
                  "give one of the files another name");
  if (constexpr std::size_t kMost = 8192; json_bytes(run.metrics()) > kMost)
    throw Error(ExitCode::config, "these are more tasks than a line of metrics.jsonl has room for", "run.evaluate",
                "name fewer, or give the files shorter names");
}

}  // namespace

int Trainer::planned_ranks() const {
  if (job_.ranks > 0) return job_.ranks;
  return job_.dry_run && world_.size() == 1 ? static_cast<int>(config_.comm.ranks) : world_.size();
}

void Trainer::check_and_open() {
  check_ranks(config_, planned_ranks(), planned_ranks() == world_.size() ? world_.hosts() : std::vector<int>{});
  if (!job_.resume.empty() && !has_results()) {
    throw Error(ExitCode::config,
                "a run that does not exchange all its data has no results, and goes on from no checkpoint",
                config_.comm.omit != "none" ? "comm.omit" : "transport null",
                "let everything be exchanged, or start a run of its own, without --resume and in another run.dir");
  }
  std::vector<MemoryBudget> disks;
  add_disk_budgets(config_, disks);  // refuses what is none
  share_ = cpu_share(world_.local_rank(), world_.local_size());
  open_data();
  data_facts_ = facts_of(*dataset_);
  if (job_.fit.empty()) limit_validation(job_.config);
  check_device(config_, gpus_.gpu);
}

int Trainer::settle_recompute() {
  std::vector<std::string>& recompute = job_.config.train.recompute;
  if (!is_recompute_auto(recompute)) return 0;
  RecomputeSet set;
  const std::int64_t blocks = config_.model.layers;
  recompute = set.entries(blocks);
  if (!job_.fit.empty()) return 0;  // --fit shows what each costs
  const bool looks = world_.local_rank() == 0 || device_kind(config_) == DeviceKind::cuda;
  RecomputeSet own;
  bool has_looked = false;
  for (;;) {  // at most once for each rank
    bool offers = false;
    const auto look = [&] {
      if (!looks || has_looked) return;
      const std::vector<MemoryBudget> known = budgets();
      if (fits(memory_demand(), set, known)) return;
      own = choose_recompute(memory_demand(), known);
      has_looked = true;
      offers = own != set;
    };
    if (const int code = agreed(world_, look); code != 0) return code;
    const World::Agreement offer = world_.agree(offers ? 1 : 0, fmt::format("{} {}", own.whole, own.attention));
    if (offer.code == 0) break;
    if (offers && offer.rank != world_.rank()) has_looked = false;  // once more, with what that rank needs
    std::istringstream(offer.message) >> set.whole >> set.attention;
  }
  recompute = set.entries(blocks);
  return 0;
}

int Trainer::settle_update() {
  std::string& update = job_.config.offload.update;
  if (update != "auto") return 0;
  update = "device";
  if (!may_update_on_host(config_)) return 0;
  const DeviceKind kind = device_kind(config_);
  if (kind == DeviceKind::cuda && job_.dry_run) {
    update_choice_ = "device, as nothing is measured in a dry run for GPUs";
    return 0;
  }
  UpdateCosts own;
  const auto look = [&] {
    DeviceOptions options = kind == DeviceKind::cuda ? gpu_options(config_, gpus_.gpu) : DeviceOptions{};
    options.threads = share_.threads;
    options.cpus = share_.cpus;
    own = measure_update(config_, *Device::create(kind, options));
  };
  if (const int code = agreed(world_, look); code != 0) return code;
  const auto costs = fmt::format("an update takes {:.2f} ns a parameter by the host's processors, {:.2f} over the link",
                                 own.host_ns, own.device_ns);
  const World::Agreement slower = world_.agree(own.prefers_host() ? 0 : 1, costs);
  if (slower.code == 0) update = "host";
  update_choice_ = fmt::format("{}: {}", update, slower.code == 0 ? costs : slower.message);
  return 0;
}

int Trainer::settle_resident_units() {
  Config::Count& units = job_.config.offload.resident_units;
  if (!job_.fit.empty()) return 0;  // --fit chooses it for each setting
  if (!std::exchange(units.is_auto, false) || !config_.offload.has_any_of_units()) return 0;
  const bool looks = world_.local_rank() == 0 || device_kind(config_) == DeviceKind::cuda;
  std::int64_t most = kMostResidentUnits, own = -1;
  for (;;) {  // ends: each offer is smaller than the last
    const auto look = [&] {
      if (looks && own != most) own = choose_resident_units(memory_demand(), budgets(), most);
    };
    if (const int code = agreed(world_, look); code != 0) return code;
    const World::Agreement offer = world_.agree(looks && own < most ? 1 : 0, fmt::to_string(own));
    if (offer.code == 0) break;
    std::istringstream(offer.message) >> most;
  }
  units.value = most;
  return 0;
}

void Trainer::check_and_plan() {
  if (!job_.fit.empty()) return fit();
  plan_ = make_plan(config_, memory_demand().plan);
  if (job_.resume.empty()) weights_ = open_weights(config_, plan_);
  if (has_results() && job_.resume.empty()) check_export(config_, nullptr, job_.run_dir);
  if (job_.dry_run && job_.verify_order) throw_if_out_of_order(verify_order(plan_.trace), "the plan of a step");
  if (!job_.plan_name.empty()) answer_ = explain(plan_, config_, job_.plan_name);
  if (job_.other) compare();
  if (job_.dry_run) return;
  if (config_.cuda.graph && job_.explain.is_wanted())
    throw Error(ExitCode::config, "cuda.graph = true hides the ops of a step from --explain and --trace", "cuda.graph",
                "leave one of them out");
  check_memory();
  check_threads(started_threads(share_, config_));
  if (job_.resume.empty()) check_samples(1);
  if (is_first() && job_.resume.empty()) check_run_dir(run_dir_request());
  for (const auto& [folder, bytes] : plan_.disk_bytes)  // found out before the run has a folder of its own
    if (world_.local_rank() == 0) static_cast<void>(DiskFile(folder, 0, true));
}

void Trainer::limit_validation(Config& config) const {
  if (dataset_->validation) zs::limit_validation(config, dataset_->validation->windows());
}

void Trainer::fit() {
  if (!is_first()) return;
  if (!job_.fit_out.empty()) check_fit_file(job_.fit_out, job_.config_path);
  FitRequest request{memory_demand(), budgets(true), {}};
  if (config_.data.format == "stream" && config_.data.weights.empty())
    request.tokens = {dataset_->train.tokens(), dataset_->validation ? dataset_->validation->tokens() : 0};
  const std::vector<FitRow> rows = find_fits(request);
  if (rows.empty()) {
    limit_validation(request.demand.config);
    const TrainPlan plan = make_plan(request.demand.config, request.demand.plan);
    throw memory_refusal(request.demand, plan.rank_bytes(), request.budgets);
  }
  const std::size_t chosen = job_.fit == "largest" ? 0 : nearest(rows);
  const FitRow& row = rows[chosen];
  if (job_.fit_text) {
    write_fit(job_.fit_out, row, job_.fit_text(row.changes));
    answer_ = fmt::format("written to {} for {}: {}", escaped(job_.fit_out), format_number(planned_ranks(), "rank"),
                          describe_choice(row));
    return;
  }
  answer_ = describe(rows, chosen, request);
  if (job_.fit_out.empty()) return;
  const Config& config = row.demand.config;
  write_fit(job_.fit_out, row, to_toml(with_absolute_paths(config, job_.config_path, job_.program_folder)));
  answer_ += fmt::format("written to {}\n", escaped(job_.fit_out));
}

void Trainer::compare() {
  Config config = *job_.other;
  check_ranks(config, planned_ranks(), memory_demand().plan.hosts);
  // Facts that were found out for this run hold for that one.
  if (config.device == "auto") config.device = config_.device;
  limit_validation(config);
  MemoryDemand demand = memory_demand();
  demand.config = config;
  if (is_recompute_auto(config.train.recompute))
    config.train.recompute = choose_recompute(demand, budgets()).entries(config.model.layers);
  demand.config = config;
  if (Config::Count& units = config.offload.resident_units; units.is_auto)
    units = {.value = config.offload.has_any_of_units() ? choose_resident_units(demand, budgets()) : 0};
  std::string note;
  if (std::string& update = config.offload.update; update == "auto") {
    const bool is_open = may_update_on_host(config);
    update = is_open && !update_choice_.empty() ? config_.offload.update : "device";
    if (is_open)
      note = fmt::format("offload.update = \"auto\" of {} is planned as \"{}\": a run measures which is faster\n",
                         job_.other_path, update);
  }
  const TrainPlan other = make_plan(config, memory_demand().plan);
  answer_ =
      describe_difference({plan_, config_, escaped(job_.config_path)}, {other, config, escaped(job_.other_path)}) +
      note;
}

void Trainer::open_data() {
  const StatusScope status(watch_.watchdog(), "reading data", StatusScope::Host::works);
  DatasetOptions options = dataset_options(config_, job_.config_path, job_.program_folder);
  open_text(config_, options);
  tokenizer_ = options.tokenizer;
  options.threads = share_.threads;
  dataset_ = open_dataset(options);
  has_own_sequence_ = config_.train.sequence == 0;
  resolve_by_data(job_.config, dataset_->train.sequence(), dataset_->train.windows());
  if (job_.other) resolve_by_data(*job_.other, dataset_->train.sequence(), dataset_->train.windows());
  check_targets(*dataset_, can_validate() ? config_.run.validate_batches * config_.train.global_batch : 0);
  // A wrong prompt is refused now, not at the end.
  if (config_.run.sample_tokens > 0)
    SampleText(config_, tokenizer_.get()).prompt(config_.run.sample_prompt, "run.sample_prompt");
  if (config_.run.evaluate.empty()) return;
  tasks_.emplace(open_tasks(config_, task_files(config_, job_.config_path, job_.program_folder), tokenizer_.get()));
  check_metrics(*tasks_);
}

std::string Trainer::shared(const std::string& path) { return world_.agree(is_first() ? 1 : 0, path).message; }

MemoryDemand Trainer::memory_demand() const {
  MemoryDemand demand{config_, plan_options(world_, share_.threads), world_.local_size()};
  demand.plan.validation_windows = dataset_->validation ? dataset_->validation->windows() : 0;
  if (tasks_) demand.plan.evaluate = [this](Session& session) { tasks_->enqueue_shapes(session); };
  if (planned_ranks() != world_.size()) {  // a dry run for ranks that it has not got
    demand.plan.ranks = demand.local_ranks = planned_ranks();
    demand.plan.hosts.clear();
  }
  return device_kind(config_) == DeviceKind::cuda ? on_gpus(demand, gpus_) : demand;
}

std::vector<MemoryLimit> Trainer::limits() const {
  if (device_kind(config_) != DeviceKind::cuda) return memory_limits();
  return {gpu_memory_limit(gpus_.gpu)};
}

std::vector<MemoryBudget> Trainer::budgets(bool may_offload) const {
  const int threads = started_threads(share_, config_);
  const int processes = transport_of(world_) == Transport::local ? memory_demand().local_ranks : 1;
  std::vector<MemoryBudget> budgets = memory_budgets(limits(), threads * processes);
  if (device_kind(config_) == DeviceKind::cuda) {
    for (MemoryBudget& budget : budgets) budget.of = MemoryBudget::Of::device;
    const bool has_host = may_offload || config_.offload.uses_host() || config_.checkpoint.background;
    for (MemoryBudget& budget : has_host ? memory_budgets(memory_limits(), threads * processes) : decltype(budgets){}) {
      budget.of = MemoryBudget::Of::host;
      budgets.push_back(budget);
    }
  }
  add_offload_budgets(config_, budgets);
  add_disk_budgets(config_, budgets);
  return budgets;
}

/// One rank of each host speaks for all of them, or each for its own GPU.
void Trainer::check_memory() const {
  if (world_.local_rank() != 0 && plan_.device == DeviceKind::cpu) return;
  const std::vector<MemoryBudget> known = budgets();  // a GPU's is another one at every look
  if (exceeded(memory_demand(), plan_.rank_bytes(), known) != nullptr)
    throw memory_refusal(memory_demand(), plan_.rank_bytes(), known);
}

}  // namespace zs
