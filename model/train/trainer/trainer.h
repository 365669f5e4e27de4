#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/world.h"
#include "model/data/dataset.h"
#include "model/data/read_ahead.h"
#include "model/train/config/config.h"
#include "model/train/config/config_tensor.h"
#include "model/train/inference/task_run.h"
#include "model/train/plan/gpu_ranks.h"
#include "model/train/plan/memory_check.h"
#include "model/train/plan/plan.h"
#include "model/train/profile/step_explainer.h"
#include "model/train/rank/disk_space.h"
#include "model/train/rank/time_limit.h"
#include "model/train/rank/watch.h"
#include "model/train/report/run_views.h"
#include "model/train/run_dir/frozen_weights.h"
#include "model/train/run_dir/import_weights.h"
#include "model/train/run_dir/metrics.h"
#include "model/train/run_dir/resume.h"
#include "model/train/run_dir/run_dir.h"
#include "model/train/session/session.h"
#include "model/train/trainer/best_validation.h"
#include "model/train/trainer/replayed_run.h"
#include "model/train/trainer/step_numbers.h"
#include "runtime/device/cpu_topology.h"
#include "runtime/device/step_verifier.h"
#include "runtime/shard/checkpoint/checkpoint_save.h"

namespace zs {

struct TrainJob {
  Config config;
  bool dry_run = false;
  bool full_plan = false;  ///< a dry run lists every buffer
  int ranks = 0;           ///< a dry run is of so many, all planned in this process; 0: as launched, or comm.ranks
  std::string plan_name;   ///< a dry run says of this module or parameter alone what becomes of it
  std::string fit;         ///< a dry run says what fits, and chooses the "nearest" or the "largest"; empty: it does not
  std::string fit_out;     ///< and writes that into this file; empty: nowhere
  /// Text of that file, made of what is changed ("train.micro_batch=8"); nothing: the whole configuration.
  std::function<std::string(const std::vector<std::string>& changes)> fit_text = {};
  std::string other_path;  ///< a dry run compares with that configuration, `other`
  std::optional<Config> other = {};
  bool verify_order = false;                 ///< verifies the order of the plan in a dry run, else of the first steps
  bool verify_data = false;                  ///< all of it, before the first step
  bool overwrite = false;                    ///< overwrites a named run directory that holds a run
  std::string resume;                        ///< "latest", "latest-valid", "auto" or a folder; empty: a new run
  std::string run_dir;                       ///< run_dir_asked_for; empty: the next runs/NAME-N
  ExplainRequest explain;                    ///< steps to look at
  std::optional<ReplayRequest> replay = {};  ///< steps of another run, which `resume` is of
  std::string config_path;                   ///< data is looked up beside it too
  std::string program_folder;                ///< and there
  TimeLimit::Clock::time_point started = TimeLimit::Clock::now();  ///< train.time_limit counts from there
};

/// One rank of a training run, from the checks to the saved weights. Errors of the preparation are agreed among the
/// ranks before anything is created, so that one line is printed and every rank ends alike. One host thread uses it.
class Trainer {
 public:
  Trainer(World& world, const TrainJob& job);

  /// The exit code, the same on every rank. Prints the run's lines, and the error line of what every rank saw alike.
  /// Throws what only this rank saw, once the run is under way: the caller aborts the world.
  int run();

 private:
  int prepare();
  void check_and_open();
  /// Collective: the set of blocks that train.recompute = "auto" stands for, with which every rank's memory is enough.
  int settle_recompute();
  /// Collective: the same of the number of units that offload.resident_units = "auto" stands for.
  int settle_resident_units();
  /// Collective: who makes the updates that offload.update = "auto" leaves open: the host, where that takes less time
  /// on every rank.
  int settle_update();
  void check_and_plan();
  void open_data();
  void limit_validation(Config& config) const;
  /// Prints and writes what --fit asks for.
  void fit();
  /// Prints what --plan-diff asks for.
  void compare();
  /// Number of ranks as launched; a dry run on one rank plans for job_.ranks or comm.ranks.
  int planned_ranks() const;
  MemoryDemand memory_demand() const;
  /// Limits of this host's memory, or of this rank's GPU.
  std::vector<MemoryLimit> limits() const;
  /// `may_offload`: of the host's, too, whatever is configured.
  std::vector<MemoryBudget> budgets(bool may_offload = false) const;
  void check_memory() const;
  int find_resume_point();
  void check_resume_point();
  RunDirRequest run_dir_request() const;
  /// The configuration as it is in force, for the run's directory.
  std::string config_text() const;
  /// The first rank's path, on every rank.
  std::string shared(const std::string& path);
  void create_run();
  void take_up_run();
  int load_checkpoint();
  /// Loads the weights of model.path, where a new run begins from them.
  int load_weights();
  bool has_results() const;
  bool is_saved(std::int64_t step) const;
  /// `is_last_chance`: nothing else will keep what was done.
  int save_checkpoint(std::int64_t step, bool is_last_chance);
  /// Makes a checkpoint of what a thread has written, or waits for it; 0 where there is none on its way.
  int finish_save();
  void wait_for_writing() const;
  /// Runs what saves; a warning where the checkpoint of `step` is not saved and the run goes on.
  int try_to_save(std::int64_t step, bool is_last_chance, const std::function<void()>& body);
  void note_saved(std::int64_t step, double seconds);
  int prune_saved(std::int64_t step);
  /// Only those that the run's mark lists.
  void prune_own_checkpoints();
  /// Hint of how the run can go on after it has ended early: "go on with --resume latest".
  std::string resume_hint() const;
  std::string save_final_weights();
  void print_header() const;
  /// Prints how to end the run with time to save, where mpirun would leave little.
  void print_how_to_stop() const;
  /// Reserves space on the disk of `folder`, for the final weights; and there must be room for a checkpoint, if there
  /// shall be any.
  void reserve_space(const std::string& folder);
  std::int64_t checkpoint_bytes() const;  ///< about: of one
  int train();
  /// All but the preparation: the steps, and what the run leaves.
  int run_steps(std::int64_t done);
  /// Trains from the first step that is not done, to the last or to a stop; `done`: the steps that are done then. A
  /// code ends this rank's part at once.
  std::optional<int> train_steps(std::int64_t& done);
  /// Reason to stop that this rank knows; and, below, the one that all of them have agreed on.
  StopReason own_stop();
  bool agrees_to_stop();
  /// Validates after a step, where it is time, or one is asked for. 0, or an exit code, as all that validate.
  int validate_behind(std::int64_t step, bool is_requested, StepMetrics& metrics);
  void answer_within(std::int64_t step);
  /// Validations before the first step: one that a stop has cut short, of the run that goes on; or that of a new run.
  int validate_before(std::int64_t done);
  /// True if somebody has put a file kValidateNow into the run's directory; after the validation it goes.
  bool is_validation_requested() const;
  void take_request() const;
  /// Collective: what the metrics of the run that goes on say.
  void find_best();
  void note_validation(std::int64_t step, float loss);
  bool is_out_of_patience() const;
  /// The step whose checkpoint stays beside the newest.
  std::optional<std::int64_t> kept_best() const;
  void say_best(std::int64_t steps_done) const;
  int validate(StepMetrics& metrics);
  void measure_ceiling();
  /// Prints where the steps' time went, and writes their trace, if that is asked for and not done.
  void explain_steps();
  std::optional<double> ceiling_percent(const StepMetrics& metrics) const;
  int step(std::int64_t step, StepMetrics& metrics);
  bool is_validated(std::int64_t step) const;
  bool can_validate() const { return config_.run.validate_every > 0 && (dataset_->validation || tasks_); }
  /// Steps 1 and 2, and the first that ends with a validation.
  bool is_verified(std::int64_t step) const;
  int check_order(std::int64_t step);
  /// A line on stderr, if there is one, of one rank. `kind`: "note" or "warning".
  void tell(const char* kind, const std::string& line) const;
  void report(const StepMetrics& metrics, double seconds_left);
  /// Writes to metrics.jsonl, and to what else shows the run.
  void log(const StepMetrics& metrics);
  void open_views();
  void refresh_views();
  /// `code`: the exit code.
  void end_views(int code);
  void finish(std::int64_t steps_done, bool was_stopped);
  /// Reports that standard output could not be written, and what is lost with it.
  int report_lost_output(int code) const;
  std::string lost_output() const;
  void print_sample();
  /// Reads when it is asked.
  ReadSamples reader(const SampleSource& source) const;

  // trainer_data.cpp
  /// How much data there is, and how often the steps go over it.
  void print_data() const;
  /// Reader of the training data, from `ahead_`.
  ReadSamples reader_ahead();
  /// Begins to read this rank's micro-batches from those of `step` on.
  void read_ahead_from(std::int64_t step);
  /// Collective: 0, or 72 where ranks have different data.
  int agree_on_data();
  /// Collective: reads all data, each rank its share, where that is asked for.
  int verify_data();
  /// Error(dataset) where this rank's samples of `step` cannot be read.
  void check_samples(std::int64_t step) const;
  /// True if the samples cannot be read; remembers why.
  bool lacks_samples(std::int64_t step);
  /// Collective: whether some rank cannot read its samples of a validation.
  bool lacks_validation_samples();
  /// Collective, after `step`, which is saved: the rank that lacks data says why. Its exit code.
  int end_without_data(std::int64_t step);
  bool is_first() const { return world_.rank() == 0; }

  World& world_;
  RankWatch watch_;
  TrainJob job_;
  const Config& config_;
  DataShare data_share_ = data_share_of(config_, world_.rank(), world_.size());
  CpuShare share_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // null: text is bytes
  std::optional<Dataset> dataset_;
  std::optional<TaskRun> tasks_;
  std::optional<ReadAhead> ahead_;  // reader ahead of the dataset
  DataFacts data_facts_;
  std::optional<Error> missing_data_;  // error of this rank
  bool lacks_data_ = false;            // some rank: training cannot go on
  bool has_own_sequence_ = false;      // train.sequence is the data's
  GpuRanks gpus_;
  TrainPlan plan_;
  std::string answer_;         // answer of a dry run, instead of the plan
  std::string update_choice_;  // choice that offload.update = "auto" stands for, and why
  /// Weights that a new run begins from, or that a checkpoint leaves out; none: they are drawn, or in the checkpoint
  WeightImports weights_;
  FrozenRecord frozen_;  // the first rank's
  std::optional<ResumePoint> resume_;
  std::vector<std::string> changed_keys_;  // since the checkpoint
  std::string run_dir_;
  std::optional<RunMark> mark_;  // the first rank's
  bool goes_on_ = false;         // a run does, in its own directory; agreed
  bool has_checkpoint_ = false;  // this run has saved one
  std::unique_ptr<RankDevice> device_;
  std::optional<StepVerifier> verifier_;
  std::unique_ptr<Session> session_;
  struct SaveOnItsWay {
    SaveOnItsWay(std::int64_t of_step, const RankWatch& watch, const TrainingState& state, const std::string& root,
                 const CheckpointInfo& info, const Buffer& held)
        : step(of_step), files(watch, true), save(state, root, info, &files, held) {}

    std::int64_t step;
    CheckpointWatch files;
    BackgroundSave save;
  };
  std::unique_ptr<SaveOnItsWay> save_;
  bool is_save_due_ = false, is_writing_ = false;  // agreed
  TimeLimit::Clock::time_point last_save_;         // when it began
  std::optional<MetricsLog> log_;
  std::optional<RunViews> views_;  // the first rank's
  std::optional<ReplayedRun> replayed_;
  std::unique_ptr<StepExplainer> explainer_;  // the first rank's, where steps are to be explained
  StragglerWatch stragglers_;
  SpaceReserve space_;
  std::optional<TimeLimit> limit_;
  std::optional<StopMargin> margin_;
  TimeLimit::Clock::time_point last_poll_;
  StopReason stop_ = StopReason::none;  // agreed
  bool lacks_validation_ = false;       // the stop came in the midst of it
  BestValidation best_;
  bool is_new_best_ = false;      // the validation of this step
  std::int64_t saved_step_ = -1;  // the checkpoint in the run's directory
  std::string weights_hash_;
  bool is_terminal_ = false;
  std::optional<double> ceiling_gflops_;
  double copy_gb_s_ = 0;  // rate of all ranks; 0: not measured
  SkippedSteps skipped_;
};

}  // namespace zs
