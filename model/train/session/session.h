#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "model/data/sample_batch.h"
#include "model/datasets/token_dataset.h"
#include "model/nn/language_model.h"
#include "model/sharding/shard_plan.h"
#include "model/train/config/config.h"
#include "model/train/session/pair_training.h"
#include "model/train/session/product_tuning.h"
#include "model/train/session/router_records.h"
#include "model/train/session/step_replay.h"
#include "model/train/session/straggler.h"
#include "model/train/session/target_weights.h"
#include "runtime/shard/offload/activation_store.h"
#include "runtime/shard/optimizers/gradient_facts.h"
#include "runtime/shard/optimizers/lost_updates.h"
#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

/// Result that a step leaves for the host.
struct StepResult {
  std::vector<float> losses;  ///< losses of every micro-batch of every rank, in global order
  float grad_norm = 0;
  std::int64_t peak_bytes = 0;  ///< counted, the largest of the ranks
  std::int64_t host_bytes = 0;  ///< counted of the host beside that, where it keeps anything (docs/offload.md)
  /// Calls to the system for counted memory since the last step's end, the most of the ranks.
  std::int64_t allocations = 0;
  std::int64_t stop = 0;          ///< the largest of what the ranks gave enqueue_step
  bool wants_validation = false;  ///< asked of some rank (Session::validate_on_request)
  std::optional<PreferenceNumbers> preference = {};
  bool is_save_due = false;  ///< some rank says so (Session::save_by), as of the next
  bool is_writing = false;
  bool lacks_data = false;        ///< some rank has no data for what follows (Session::look_ahead)
  StepWaits waits;                ///< times that the ranks waited for each other
  std::int64_t data_wait_ns = 0;  ///< for samples that had not been read, the longest of a rank (count_data_waits)
  std::vector<LostShare> lost_updates = {};  ///< lost updates, where run.lost_updates_every says so
  std::vector<MixtureLoad> mixtures = {};
};

/// One model on one rank, as a rule in training: device memory, units, optimizer, and a step as stream work. The
/// trainer runs it on the CPU, the plan runs the very same code on the meta device. One host thread uses it.
class Session {
 public:
  static constexpr std::int64_t kManyWindows = std::numeric_limits<std::int64_t>::max();

  enum class Use : std::uint8_t {
    training,
    inference,  ///< no optimizer, and no steps: the weights are read, not trained
  };

  /// `is_loaded`: whether the caller will fill a parameter from files, which then need not be drawn; until then it is
  /// zeros.
  Session(Device& device, World& world, const Config& config, Use use = Use::training,
          const std::function<bool(const std::string& parameter)>& is_loaded = {});

  /// Micro-batches of one step over all ranks, and on each rank, of which the last may be empty.
  std::int64_t global_micro_batches() const { return config_.train.global_batch / config_.train.micro_batch; }
  std::int64_t local_micro_batches() const { return micro_batches_a_rank(config_, share_.count); }

  /// Enqueues step `step` (from 1), whole: forward and backward of this rank's micro-batches (micro-batch i of the step
  /// runs on rank i mod ranks), the reduction, the update. With cuda.graph its samples are all read first, and its work
  /// may be that of a captured step. Collective. OrderMismatch where ranks do not communicate alike, which then is
  /// found before the work is launched. `stop`: a number that every rank learns the largest of, in StepResult.
  /// `gradients`: looks at them before the update, and waits for the device; null: nobody does.
  void enqueue_step(std::int64_t step, float lr, const ReadSamples& read, std::int64_t stop,
                    GradientFacts* gradients = nullptr);
  /// Sets `is_asked`: from here on it is called between micro-batches of steps and validations, some times a second,
  /// when the device has done those before. It is collective and the same on every rank. Where it says true the step or
  /// the validation is dropped: what it has summed is cleared, the weights are those of the step before, and
  /// is_interrupted() is true. A step that is captured as a graph is whole or has not begun.
  void interrupt_by(std::function<bool()> is_asked) { is_asked_ = std::move(is_asked); }
  /// True if that has happened to the step or validation enqueued last: it has no result.
  bool is_interrupted() const { return is_interrupted_; }
  /// Sets `is_enough`, for plans: before each micro-batch of a step or a validation it is asked; true makes it the
  /// last.
  void abridge(std::function<bool()> is_enough) { is_enough_ = std::move(is_enough); }
  /// `lacks_data`: asked while a step computes whether this rank lacks what follows; all ranks learn it with the step's
  /// result.
  void look_ahead(std::function<bool()> lacks_data) { lacks_data_ = std::move(lacks_data); }
  /// `is_wanted`: asked in each step whether somebody wants a validation after it; all ranks learn it with the step's
  /// result.
  void validate_on_request(std::function<bool()> is_wanted) { wants_validation_ = std::move(is_wanted); }
  /// Asked while a step computes: whether a checkpoint is due, and whether one is still being written. All ranks learn
  /// with the step's result whether any says so.
  void save_by(std::function<bool()> is_due, std::function<bool()> is_writing) {
    is_save_due_ = std::move(is_due), is_writing_ = std::move(is_writing);
  }
  /// u8, for a BackgroundSave; empty without checkpoint.background.
  Buffer save_memory() const { return save_memory_ ? save_memory_.buffer(DType::u8, save_memory_.bytes()) : Buffer{}; }
  /// `waited_ns`: how long this rank has waited for samples in all steps so far.
  void count_data_waits(std::function<std::int64_t()> waited_ns) { data_waited_ns_ = std::move(waited_ns); }
  /// Waits for the step and reads its result. An error on the meta device.
  StepResult finish_step();

  /// Mean loss over the first run.validate_batches x global_batch samples, each once, or all where there are no more
  /// `windows`; spread over the ranks as a step's are. NaN where it was interrupted. Collective; blocks.
  double validate(const ReadSamples& read, std::int64_t windows = kManyWindows);
  /// Enqueues a validation without reading a result: for the meta device.
  void enqueue_validation(const ReadSamples& read, std::int64_t windows = kManyWindows);
  /// Logits (vocab) of what follows the last of `tokens`, which with a cache follow those that it has seen. Collective;
  /// blocks.
  std::vector<float> next_token_logits(const std::vector<std::int32_t>& tokens, KvCache* cache = nullptr);
  /// Enqueues the logits without reading them: for the meta device.
  Tensor enqueue_logits(const std::vector<std::int32_t>& tokens, KvCache* cache = nullptr);

  ShardedRuntime& runtime() { return runtime_; }
  Optimizer& optimizer() { return *optimizer_; }
  LanguageModel& model() { return *model_; }
  /// Null where shard.units is not "plan".
  const ResolvedPlan* resolved_plan() const { return resolved_plan_ ? &*resolved_plan_ : nullptr; }
  const Config& config() const { return config_; }
  Device& device() { return device_; }
  ProductTuning& products() { return products_; }
  /// Replay by which steps became graphs; null without cuda.graph.
  StepReplay* replay() { return replay_ ? &*replay_ : nullptr; }

 private:
  /// A micro-batch of (micro_batch, sequence) tokens.
  struct Batch : TokenBatch {
    Tensor weights;  ///< weights of the targets, where some may count for nothing
    float seed = 0;  ///< share in the step's mean loss
  };
  /// True if this rank's micro-batch i of a step has samples.
  bool has_samples(std::int64_t i) const { return share_.item(i) < global_micro_batches(); }
  /// The share of this rank's micro-batch i in the step's mean loss.
  float backward_seed(std::int64_t i) const {
    return has_samples(i) ? 1.0f / static_cast<float>(global_micro_batches()) : 0.0f;
  }
  /// The first sample of this rank's micro-batch i of a step or a validation that begins with the sample `first`.
  std::int64_t first_sample(std::int64_t first, std::int64_t i) const;
  SampleBatch read_batch(std::int64_t first_sample, std::int64_t rows, const ReadSamples& read) const;
  /// This rank's micro-batch i of the step that begins with the sample `first`. Where it has no samples: some whose
  /// targets count for nothing, so that the rank takes part.
  SampleBatch read_step_batch(std::int64_t first, std::int64_t i, const ReadSamples& read) const;
  Batch upload(SampleBatch batch);
  /// Samples of a validation, and those of them that micro-batch `i` of all ranks has, from 0 to micro_batch.
  std::int64_t validation_samples(std::int64_t windows) const;
  std::int64_t validation_rows(std::int64_t samples, std::int64_t i) const;
  /// The rows of micro-batch i in those of all of a step.
  Batch kept_batch(std::int64_t i) const;
  void upload_batches(const std::vector<SampleBatch>& batches);
  /// This rank's of a step.
  std::vector<SampleBatch> read_batches(std::int64_t first_of_step, const ReadSamples& read) const;
  bool weighs() const { return config_.data.has_ignored_targets; }
  /// Uploads the weight of all of this rank's targets of a step to the device.
  void upload_weight(const std::vector<SampleBatch>& batches);
  /// Sum of the weights of the step's targets over all ranks, f32 (1). Empty: nothing has weights.
  Tensor step_targets();
  /// `scale`: of the weights; empty: 1.
  Tensor forward_loss(const Batch& batch, const Tensor& scale = {});
  /// All that the device does for a step's losses and weights. `batch(i)`: this rank's micro-batch i.
  void enqueue_work(
      const std::function<Batch(std::int64_t)>& batch, const std::function<void()>& before_update = [] {});
  void send_status(std::int64_t stop);
  /// True if the next `micro_batches`, and all that belongs to them, shall be dropped, which is asked before they are
  /// enqueued. Then they are.
  bool drops(std::int64_t micro_batches);
  /// Sets how often `drops` asks, from what the slowest rank's last step took.
  void set_poll_interval(std::int64_t slowest_step_us);
  /// Enqueues the fault point of TRAIN_FAULT, on the compute stream.
  void enqueue_fault_point();
  Buffer loss_slot(std::int64_t slot) const;
  void gather_losses();
  /// Gathers the weights of the targets of each of this rank's micro-batches of a validation, to every rank.
  void gather_weights(std::vector<float> weights);
  /// The mean of `losses`, those of a validation's micro-batches, by what their targets weigh.
  double weighted_mean(const std::vector<float>& losses, std::int64_t samples) const;
  /// Time spent in operations between ranks, since it was asked last. On the compute stream.
  std::int64_t waited_since_last_ns();
  std::vector<float> in_order(const Memory& gathered, std::int64_t count) const;

  Device& device_;
  World& world_;
  Config config_;
  Context context_;
  std::unique_ptr<LanguageModel> model_;
  ShardedRuntime runtime_;
  DataShare share_;  // micro-batch i of a step is of share i mod count
  std::optional<ResolvedPlan> resolved_plan_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<ActivationStore> activations_;  // offload.activations
  std::optional<PairTraining> pairs_;           // data.format = "preference"
  std::optional<LostUpdates> lost_updates_;     // run.lost_updates_every
  GradientFacts* gradient_facts_ = nullptr;     // null: nobody wants any
  bool is_metered_ = false;                     // the step enqueued last
  std::optional<RouterRecords> records_;        // records of the routers of mixtures
  std::optional<StepReplay> replay_;            // cuda.graph
  ProductTuning products_;
  Batch kept_;  // then: of all micro-batches of a step, one after the other
  std::int64_t loss_slots_ = 0;
  std::function<bool()> is_enough_ = [] { return false; }, lacks_data_ = is_enough_, is_save_due_ = is_enough_,
                        is_writing_ = is_enough_, wants_validation_ = is_enough_;
  Memory local_losses_, all_losses_, status_;  // f32 (slots), f32 (shares, slots), i64 (kStatus)
  Memory save_memory_;                         // memory of the host
  Memory step_weight_;                         // f32 (1): weight of this rank's targets
  Memory local_weights_, all_weights_;         // as the losses
  std::int64_t between_bytes_ = 0;             // the most that was live between the last step and this one
  bool has_sent_ = false;                      // the status of a step
  std::int64_t allocations_seen_ = 0;
  std::int64_t waited_seen_ns_ = 0;  // the compute stream's
  std::function<std::int64_t()> data_waited_ns_ = [] { return std::int64_t{0}; };
  std::int64_t data_waited_seen_ns_ = 0;
  std::function<bool()> is_asked_;  // null: nobody is
  bool is_interrupted_ = false;
  std::int64_t micro_batches_a_poll_ = 1, since_poll_ = 0;
  std::chrono::steady_clock::time_point step_began_;
  std::int64_t last_step_us_ = 0;
};

/// Options of a job of so many ranks.
ShardOptions shard_options(const Config& config, int ranks = 1);

/// Tells each block of the model what it recomputes. Error(config) where train.recompute is "auto", which a plan has to
/// have made a choice of (choose_recompute), or has a pattern that matches no block. How many recompute all.
std::size_t set_recompute(LanguageModel& model, const Config& config);

/// shard.unit_mib, or, where that is below 0, what so many ranks that exchange through `transport` use instead: 64 over
/// NCCL, else 0.
double unit_mib(const Config& config, Transport transport, int ranks);

/// Gives a new model its adapters, if the configuration has any, and makes its units. With adapters these are units of
/// their own, and all others are frozen.
void shard_model(LanguageModel& model, ShardedRuntime& runtime, const Config& config, double unit_mib);

/// Swaps in the weights that validations are of, where they are others than those that are trained, and back.
void swap_validated_weights(Session& session);

/// Gives new adapters what follows from the model's weights, which are there: where neither a checkpoint nor a folder
/// has had them. Collective, between steps.
void begin_adapters(Session& session);

}  // namespace zs
