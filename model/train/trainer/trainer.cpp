#include "model/train/trainer/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "model/data/utf8.h"
#include "model/job/version.h"
#include "model/train/config/config_cuda.h"
#include "model/train/config/schedule.h"
#include "model/train/plan/ceiling.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/print.h"
#include "model/train/rank/program.h"
#include "model/train/rank/startup.h"
#include "model/train/run_dir/export.h"
#include "model/train/run_dir/weights.h"
#include "model/train/trainer/step_numbers.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/units.h"
#include "runtime/device/memory_limit.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/placement/shard_groups.h"

namespace zs {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string describe_omitted(const std::string& omitted) {
  if (omitted == "none") return "";
  return fmt::format(" without {} (the results are meaningless)",
                     omitted == "both" ? "gathers and reductions" : omitted);
}

/// Ranks tell each other paths in messages, which are short.
void check_length(const std::string& path) {
  if (constexpr std::size_t kLongest = 900; path.size() > kLongest)
    throw Error(ExitCode::cannot_create, fmt::format("a path of {} bytes is too long", path.size()), path,
                "use one of at most 900 bytes");
}

}  // namespace

Trainer::Trainer(World& world, const TrainJob& job) : world_(world), watch_(world), job_(job), config_(job_.config) {}

int Trainer::run() {
  watch_.enter(Phase::init);
  limit_.emplace(config_.train.time_limit.value, job_.started, slurm_seconds_left());
  if (const int code = prepare(); code != 0 || job_.dry_run) return report_lost_output(code);
  try {
    return report_lost_output(train());
  } catch (const Error& error) {  // an error of this rank alone: a disk that is full
    if (error.code() != ExitCode::io) throw;
    throw Error(error.code(), error.what_happened(), error.where(),
                fmt::format("{}, then {}", error.what_to_do(), resume_hint()));
  }
}

int Trainer::prepare() {
  if (const int code = choose_device(world_, job_.config); code != 0) return code;
  if (const int code = find_gpus(world_, config_, planned_ranks(), gpus_); code != 0) return code;
  if (const int code = agreed(world_, [&] { check_and_open(); }); code != 0) return code;
  if (const int code = settle_recompute(); code != 0) return code;
  if (const int code = settle_update(); code != 0) return code;
  if (const int code = settle_resident_units(); code != 0) return code;
  if (const int code = agreed(world_, [&] { check_and_plan(); }); code != 0) return code;
  if (const int code = agree_on_data(); code != 0) return code;
  if (!job_.dry_run && !job_.resume.empty()) {
    if (const int code = find_resume_point(); code != 0) return code;
  }
  if (is_first()) print_header();
  if (const int code = verify_data(); code != 0 || job_.dry_run) return code;
  const auto create = [&] {
    if (is_first() && job_.explain.is_wanted()) {
      std::vector<std::string> reads = dataset_->files;
      reads.push_back(job_.config_path);
      explainer_ = std::make_unique<StepExplainer>(job_.explain, std::move(reads));
    }
    create_run();
  };
  if (const int code = agreed(world_, create); code != 0) return code;
  run_dir_ = shared(run_dir_);
  has_checkpoint_ = goes_on_;
  watch_.run_in(run_dir_, resume_hint());
  if (has_checkpoint_) watch_.saved(resume_->step);
  return 0;
}

/// One rank looks, so that a checkpoint that appears meanwhile cannot part the ranks; all of them read what it found.
int Trainer::find_resume_point() {
  resume_.emplace();
  const auto find = [&] {
    if (is_first()) resume_ = find_checkpoint({job_.resume, job_.run_dir, config_.name, job_.overwrite});
    if (resume_) check_length(resume_->checkpoint);
  };
  if (const int code = agreed(world_, find); code != 0) return code;
  const std::string checkpoint = shared(resume_ ? resume_->checkpoint : "");
  if (checkpoint.empty()) {  // the run is to start
    resume_.reset();
    return agreed(world_, [&] {
      weights_ = open_weights(config_, plan_);
      if (is_first()) check_run_dir(run_dir_request());
      if (is_first() && has_results()) check_export(config_, nullptr, job_.run_dir);
    });
  }
  resume_->checkpoint = checkpoint;
  goes_on_ = world_.agree(is_first() && !resume_->run_dir.empty() ? 1 : 0, "").code != 0;
  return agreed(world_, [&] { check_resume_point(); });
}

void Trainer::check_resume_point() {
  const CheckpointReader reader(resume_->checkpoint);
  resume_->step = reader.manifest().step;
  if (goes_on_) keep_as_saved(job_.config, reader.manifest().attributes);
  changed_keys_ = compare_runs(reader.manifest().attributes, run_attributes(config_, data_facts_), resume_->checkpoint);
  if (resume_->step > config_.train.steps) {
    throw Error(ExitCode::config,
                fmt::format("train.steps {} is less than the checkpoint's {}", config_.train.steps, resume_->step),
                resume_->checkpoint, "raise train.steps");
  }
  if (resume_->step < config_.train.steps) check_samples(resume_->step + 1);
  if (const auto frozen = FrozenWeights::in(reader.manifest().attributes)) {
    const StatusScope status(watch_.watchdog(), "comparing frozen weights", StatusScope::Host::works);
    const std::string folder = frozen->found(config_.model.path, resume_->checkpoint);
    weights_.push_back(open_model_weights(config_, plan_, folder));
    if (is_first()) frozen_.set(frozen->check(folder, resume_->checkpoint));
  } else if (config_.checkpoint.leaves_out_frozen()) {  // nobody knows whether the folder has the same
    job_.config.checkpoint.frozen = "include";
    tell("note", "the checkpoint has the frozen weights, and so will those of this run");
    plan_ = make_plan(config_, memory_demand().plan);  // a copy of theirs may be in it
    check_memory();
  }
  if (!is_first()) return;
  if (!goes_on_) check_run_dir(run_dir_request());
  const auto mark = goes_on_ ? RunMark::find(resume_->run_dir) : std::nullopt;
  if (has_results()) check_export(config_, mark ? &*mark : nullptr, goes_on_ ? resume_->run_dir : job_.run_dir);
}

void Trainer::create_run() {
  if (!is_first()) return;
  const std::string place = goes_on_ ? resume_->run_dir : job_.run_dir.empty() ? "runs" : job_.run_dir;
  check_length(place);
  const bool is_replaced = !goes_on_ && job_.overwrite;
  if (!is_replaced) reserve_space(place);  // before anything is created
  run_dir_ = goes_on_ ? place : create_run_dir(run_dir_request(), config_text());
  log_.emplace(run_dir_ + "/metrics.jsonl");  // nobody else has the run's folder from here on
  log_->check_own();
  mark_ = RunMark::find(run_dir_);
  if (!mark_)
    throw Error(ExitCode::cannot_create, "the run's mark has gone while it started", run_dir_ + "/" + RunMark::kFile,
                "start again");
  if (is_replaced) reserve_space(place);  // with the room that the old run has left
}

void Trainer::print_header() const {
  if (job_.fit_text) return print_to_stdout("{}", AsIs{answer_});  // a run follows, with all the rest
  const std::vector<MemoryLimit> all = limits();
  const MemoryLimit& limit = lowest(all);
  const std::string groups =
      gpus_.transport == Transport::nccl ? "" : ShardGroups::describe(world_, scheme_options(config_));
  print_to_stdout("zshard {}: {}, {} ({} each), cpu {}, transport {}{}{}, memory limit {} ({})\n", version(),
                  format_number(world_.size(), "rank"), share_.description, format_number(share_.threads, "thread"),
                  cpu_isa(), describe_transport(world_, gpus_), groups.empty() ? "" : fmt::format(" ({})", groups),
                  describe_omitted(config_.comm.omit), format_bytes(limit.bytes), limit.source);
  if (!update_choice_.empty()) print_to_stdout("offload.update: {}\n", update_choice_);
  for (const std::string& warning : plan_.warnings) print_to_stderr("zshard: warning: {}\n", warning);
  if (const auto keys = unused_cuda_keys(config_); !keys.empty())
    tell("warning", fmt::format("without effect on the CPU: {}", fmt::join(keys, ", ")));
  if (!answer_.empty()) {
    print_to_stdout("planned for {}\n{}", format_number(planned_ranks(), "rank"), AsIs{answer_});
  } else if (job_.dry_run) {
    print_to_stdout("{}\n{}", AsIs{describe(plan_, config_, planned_ranks(), job_.full_plan)},
                    AsIs{describe_budgets(memory_demand(), plan_.rank_bytes(), budgets())});
    if (job_.verify_order) print_to_stdout("order verified: the plan of a step, {} entries\n", plan_.trace.size());
  }
}

int Trainer::train() {
  bind_this_thread(share_.cpus);
  stragglers_ = StragglerWatch(share_.is_shared);
  device_ = std::make_unique<RankDevice>(world_, rank_device_options(config_, gpus_, plan_, share_));
  if (job_.verify_order) verifier_.emplace(device_->device());
  session_ = std::make_unique<Session>(
      device_->device(), device_->world(), config_, Session::Use::training,
      [this](const std::string& parameter) { return resume_ || has_parameter(weights_, parameter); });
  plan_.apply_order(session_->runtime());
  is_terminal_ = is_first() && prints_to_terminal();
  if (const std::string text = device_->has_gpu_world() ? describe_registration(device_->world(), config_) : "";
      is_first() && !text.empty())
    print_to_stdout("{}\n", text);
  if (const std::string text = gpu_attention(config_).text; is_first() && !text.empty()) print_to_stdout("{}\n", text);
  measure_ceiling();
  if (explainer_) {
    const double ranks = world_.size();
    explainer_->start(device_->device(), {ceiling_gflops_.value_or(0) / ranks, copy_gb_s_ / ranks},
                      config_.model.window == 0 ? config_.train.sequence : 0);
  }
  if (is_first()) {
    print_to_stdout("{}: {} parameters in {} units, {} of {} tokens; planned peak {} a rank; writing to {}\n",
                    config_.name, format_count(static_cast<double>(session_->model().parameter_count())),
                    plan_.units.size(), format_count(static_cast<double>(dataset_->train.tokens())), config_.data.kind,
                    format_bytes(plan_.step_peak_bytes), run_dir_);
  }
  if (is_first()) print_data();
  if (is_first()) print_how_to_stop();
  if (const int code = load_checkpoint(); code != 0) return code;
  open_views();
  if (job_.replay) replayed_.emplace(*job_.replay, is_first());
  const int code = run_steps(resume_ ? resume_->step : 0);
  end_views(code);
  return code;
}

int Trainer::run_steps(std::int64_t done) {
  read_ahead_from(done + 1);
  margin_.emplace(checkpoint_bytes(), saved_bytes(plan_, !config_.checkpoint.leaves_out_frozen()));
  last_poll_ = last_save_ = Clock::now();
  // The verifier would take what the host waits for within a step for an order that events have made.
  if (!verifier_) session_->interrupt_by([this] { return agrees_to_stop(); });
  if (const int code = validate_before(done); code != 0) return code;
  if (lacks_data_) return end_without_data(done);
  if (const auto code = train_steps(done)) return *code;
  if (replayed_) return replayed_->finish();
  explain_steps();
  if (const int failure = finish_save(); failure != 0) return failure;
  const bool is_over = done == config_.train.steps || is_out_of_patience();
  const bool is_stopped = stop_ != StopReason::none && (!is_over || lacks_validation_);
  if (is_stopped && has_results() && saved_step_ != done) {
    if (const int failure = save_checkpoint(done, true); failure != 0) return failure;
  }
  finish(done, is_stopped);
  return is_stopped ? static_cast<int>(ExitCode::stopped) : 0;
}

std::optional<int> Trainer::train_steps(std::int64_t& done) {
  StepMetrics metrics;
  const auto start = Clock::now();
  const std::int64_t steps = replayed_ ? replayed_->last_step() : config_.train.steps, before = done;
  while (done < steps && stop_ == StopReason::none && !is_out_of_patience()) {
    watch_.enter(done == before ? Phase::first_step : Phase::step, done + 1);
    if (watch_.hit("step")) return 0;
    if (const int code = step(done + 1, metrics); code != 0) {
      if (code == static_cast<int>(ExitCode::non_finite)) finish_save();
      return code;
    }
    if (metrics.step != done + 1) break;  // dropped: the step is as if it had not begun
    ++done;
    if (is_first() && done == before + 1) metrics.peak_by_kind = device_->device().memory().at_peak();
    if (is_first())
      report(metrics, seconds_since(start) / static_cast<double>(done - before) * static_cast<double>(steps - done));
    if (replayed_) continue;  // nothing of it is kept
    if (explainer_ && explainer_->has_all()) explain_steps();
    if (save_ && !is_writing_) {
      if (const int failure = finish_save(); failure != 0) return failure;
    }
    if (is_saved(done) || (lacks_data_ && has_results())) {
      if (const int failure = save_checkpoint(done, lacks_data_); failure != 0) return failure;
    }
    if (lacks_data_) return end_without_data(done);
  }
  return std::nullopt;
}

/// Else they follow from whatever memory held where something should have come.
bool Trainer::has_results() const { return transport_of(world_) != Transport::null && config_.comm.omit == "none"; }

bool Trainer::is_saved(std::int64_t step) const {
  const std::int64_t every = config_.checkpoint.every;
  const bool is_end = step == config_.train.steps || is_out_of_patience();
  const bool is_now = (every > 0 && step % every == 0) || is_save_due_ || is_end;
  if (!has_results()) return false;
  return (config_.checkpoint.is_regular() && is_now) || (is_new_best_ && config_.checkpoint.keep_best) ||
         (is_end && config_.train.average > 0);
}

/// Only the live line has room for it, and only one rank prints that; all of them measure.
void Trainer::measure_ceiling() {
  const bool is_explained = job_.explain.is_wanted();  // on every rank alike
  const bool is_shown = world_.agree(is_terminal_ || is_explained ? 1 : 0, "").code != 0;
  if (!is_shown || plan_.device != DeviceKind::cpu) return;
  const DeviceOptions options{.threads = share_.threads, .cpus = share_.cpus, .sync_timeout_s = config_.comm.timeout_s};
  ceiling_gflops_ = product_rate_gflops(world_, options, config_.precision.param == "bf16" ? DType::bf16 : DType::f32);
  if (is_explained) copy_gb_s_ = copy_rate_gb_s(world_, options);
}

std::optional<double> Trainer::ceiling_percent(const StepMetrics& metrics) const {
  if (!ceiling_gflops_) return std::nullopt;
  const double flops = flops_per_token(session_->model().working_parameter_count(), config_.model.layers,
                                       config_.model.width, config_.train.sequence);
  return 100 * metrics.tokens_per_s * flops * 1e-9 / *ceiling_gflops_;
}

int Trainer::step(std::int64_t step, StepMetrics& metrics) {
  if (verifier_) is_verified(step) ? verifier_->resume() : verifier_->pause();
  if (explainer_) explainer_->begin_step(step);
  if (replayed_) replayed_->begin_step(step, *session_);
  const auto start = Clock::now();
  StepResult result;
  double seconds = 0;
  answer_within(step);
  try {
    session_->enqueue_step(step, static_cast<float>(learning_rate(config_.train, step - 1)), reader_ahead(),
                           static_cast<std::int64_t>(own_stop()), replayed_ ? replayed_->gradients() : nullptr);
    if (session_->is_interrupted()) {
      if (explainer_) explainer_->drop_step();
      return 0;
    }
    result = session_->finish_step();
    seconds = seconds_since(start);
    if (explainer_) explainer_->end_step();
  } catch (const OrderMismatch& error) {  // all ranks throw it alike
    watch_.dump(error.what());
    if (is_first())
      print_to_stderr("{}{}\n", is_terminal_ ? "\n" : "", error_line(error, fmt::format("step {}", step)));
    return static_cast<int>(error.code());
  }
  metrics = step_metrics(config_, step, result, seconds);
  if (replayed_ && replayed_->ends(metrics, result, config_)) return 0;  // nothing more comes of it
  const std::int64_t batch = config_.train.global_batch;
  tell("warning", skipped_.note(metrics, dataset_->train.targets((step - 1) * batch, batch) > 0));
  try {
    if (has_results()) check_finite(config_, world_.size(), step, result);
  } catch (const Error& error) {  // every rank sees the same numbers
    if (is_first()) {
      log(metrics);
      print_to_stderr("{}{}\n", is_terminal_ ? "\n" : "", error_line(error, fmt::format("step {}", step)));
    }
    return static_cast<int>(error.code());
  }
  if (world_.size() > 1) tell("warning", stragglers_.after_step(result.waits, seconds));
  tell("note", session_->products().take_message());
  if (StepReplay* const replay = session_->replay()) tell("note", replay->take_message(step));
  stop_ = std::max(stop_, static_cast<StopReason>(result.stop));
  is_save_due_ = result.is_save_due, is_writing_ = result.is_writing;
  lacks_data_ = result.lacks_data;
  if (const int code = validate_behind(step, result.wants_validation, metrics); code != 0) return code;
  if (is_verified(step)) {
    if (const int code = check_order(step); code != 0) return code;
  }
  return 0;
}

void Trainer::tell(const char* kind, const std::string& line) const {
  if (is_first() && !line.empty())
    print_to_stderr("{}{}: {}: {}\n", is_terminal_ ? "\n" : "", program_name(), kind, escaped(line));
}

bool Trainer::is_validated(std::int64_t step) const {
  return can_validate() && (step % config_.run.validate_every == 0 || step == config_.train.steps);
}

bool Trainer::is_verified(std::int64_t step) const {
  return verifier_ &&
         (step <= 2 || (is_validated(step) && step == std::min(config_.run.validate_every, config_.train.steps)));
}

int Trainer::check_order(std::int64_t step) {
  VerifiedOrder order;
  const int code = agreed(world_, [&] { order = verifier_->check(fmt::format("step {}", step)); });
  if (code == 0 && is_first()) {
    print_to_stdout("{}order verified: step {}, {} operations and {} waits of this rank\n", is_terminal_ ? "\n" : "",
                    step, order.ops, order.waits);
  }
  return code;
}

void Trainer::report(const StepMetrics& metrics, double seconds_left) {
  log(metrics);
  if (metrics.is_validated()) refresh_views();
  const Progress progress{.metrics = metrics,
                          .steps = config_.train.steps,
                          .seconds_left = seconds_left,
                          .ceiling_percent = ceiling_percent(metrics)};
  const std::int64_t interval = std::max<std::int64_t>(1, config_.train.steps / 50);
  const bool is_milestone = metrics.is_validated() || metrics.step == 1 || metrics.step == config_.train.steps;
  if (is_terminal_) {
    constexpr int kColumns = 120;
    print_to_stdout("{}{}", AsIs{live_line(progress, kColumns)}, is_milestone ? "\n" : "");
  } else if (is_milestone || metrics.step % interval == 0) {
    print_to_stdout("{}\n", progress_line(progress));
  }
  if (!metrics.tasks.empty()) print_to_stdout("{}\n", escaped(tasks_line(metrics, config_.train.steps)));
}

}  // namespace zs
