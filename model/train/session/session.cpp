#include "model/train/session/session.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "comm/health/watchdog.h"
#include "model/families/family.h"
#include "model/train/config/config_optimizer.h"
#include "model/train/config/config_plan.h"
#include "model/train/config/pattern_entries.h"
#include "runtime/base/random.h"
#include "runtime/device/finite_check.h"
#include "runtime/shard/checkpoint/checkpoint_save.h"
#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

constexpr const char* kFaultPoint = "compute";
/// Numbers whose maxima over the ranks are known at the end of a step.
enum Status : std::uint8_t {
  peak_bytes,
  host_bytes,
  allocations,
  stop,
  no_data,
  wants_validation,
  save_due,
  writing,
  least_wait,
  most_wait,
  slowest_step_us,
  data_wait_ns
};
constexpr int kStatus = data_wait_ns + 1;
/// The least wait and whose it is, in one number whose maximum is wanted: nanoseconds below kLongestWait, then the
/// rank.
constexpr std::int64_t kLongestWait_ns = std::int64_t{1} << 46, kRanks = std::int64_t{1} << 16;

/// Between two polls of whether to go on. Each of them drains the compute stream, which costs about a millisecond.
constexpr std::int64_t kPollEvery_us = 200'000;

/// Lengths of the first `tokens` tokens.
std::vector<std::int64_t> first_of(std::vector<std::int64_t> lengths, std::int64_t tokens) {
  auto end = lengths.begin();
  for (std::int64_t at = 0; at < tokens && end != lengths.end(); ++end) at += *end;
  lengths.erase(end, lengths.end());
  return lengths;
}

/// Zeros instead of random values, where somebody fills them.
void draw_nothing(const Module& module, const std::function<bool(const std::string&)>& is_loaded) {
  for (const auto& parameter : module.own_parameters())
    if (is_loaded(parameter->name())) parameter->set_init({});
  for (const Module* child : module.children()) draw_nothing(*child, is_loaded);
}

/// Factor of a target's weight, so that micro-batches' losses have the mean over what counts in all
/// of the step's as their mean: 1 where every target counts. Empty: nothing has weights.
Tensor weight_scale(const Config& config, const Tensor& step_targets) {
  if (!step_targets) return {};
  const auto nominal = static_cast<float>(config.train.global_batch * config.train.sequence);
  // At least 1: in a step in which no target counts nothing is learnt, and nothing updated.
  return nominal / clamp(step_targets, 1.0f, std::numeric_limits<float>::max());
}

std::vector<std::string> parameter_names(const Executor& executor) {
  std::vector<std::string> names;
  for (const FlatParameter& unit : executor.units())
    for (const Parameter* parameter : unit.parameters) names.push_back(parameter->name());
  return names;
}

}  // namespace

Session::Session(Device& device, World& world, const Config& config, Use use,
                 const std::function<bool(const std::string& parameter)>& is_loaded)
    : device_(device),
      world_(world),
      config_(config),
      context_(device),
      model_(family_named(config.model.family).make(config.model)),
      runtime_(context_, world, shard_options(config, world.size())),
      share_(runtime_.data_share()),
      products_(device, world) {
  if (is_loaded) draw_nothing(*model_, is_loaded);
  if (use == Use::training) {
    const std::size_t blocks = set_recompute(*model_, config);
    if (config.offload.activations == "host")
      model_->set_input_keeper(&activations_.emplace(context_, blocks, config.offload.cpu_link_gbs));
  }
  if (config.shard.units == "plan") {
    resolved_plan_ = shard_by_plan(*model_, runtime_, plan_of(config));
  } else {
    shard_model(*model_, runtime_, config, unit_mib(config, transport_of(world), world.size()));
  }
  check_matches(config.shard.dims, parameter_names(runtime_.executor()));
  if (use == Use::inference) return;
  waited_since_last_ns();  // the job's start is no step
  optimizer_ = make_optimizer(runtime_.executor(), config);
  if (config.run.lost_updates_every > 0) lost_updates_.emplace(runtime_.executor(), group_patterns(config));
  loss_slots_ = local_micro_batches() *
                (config.run.validate_every > 0 ? std::max<std::int64_t>(1, config.run.validate_batches) : 1);
  const std::int64_t slot_bytes = loss_slots_ * size_of(DType::f32);
  local_losses_ = device.pool().acquire(slot_bytes, context_.stream(), "scalars");
  all_losses_ = device.pool().acquire(slot_bytes * share_.count, context_.stream(), "scalars");
  status_ = device.pool().acquire(kStatus * size_of(DType::i64), context_.stream(), "scalars");
  if (config.data.format == "preference")
    pairs_.emplace(context_, config, local_losses_.buffer(DType::f32, loss_slots_), loss_slots_, share_.count);
  if (config.checkpoint.background)
    save_memory_ = device.pinned_memory().acquire(
        BackgroundSave::held_bytes(runtime_.executor(), *optimizer_, !config.checkpoint.leaves_out_frozen()),
        context_.stream(), "checkpoint");
  if (!model_->routers().empty()) records_.emplace(context_, runtime_.executor(), *model_);
  if (weighs()) {
    runtime_.order_check().set("what counts alike in the loss", config.train.loss);
    step_weight_ = device.pool().acquire(size_of(DType::f32), context_.stream(), "scalars");
    local_weights_ = device.pool().acquire(slot_bytes, context_.stream(), "scalars");
    all_weights_ = device.pool().acquire(slot_bytes * share_.count, context_.stream(), "scalars");
  }
  if (!config.cuda.graph) return;
  replay_.emplace(device, world, runtime_.order_check());
  const Shape shape{local_micro_batches() * config_.train.micro_batch, config_.train.sequence};
  kept_ = {
      {Tensor::empty(context_, shape, DType::i32, "batch"), Tensor::empty(context_, shape, DType::i32, "batch"), {}},
      weighs() ? Tensor::empty(context_, shape, DType::f32, "batch") : Tensor{}};
}

std::int64_t Session::first_sample(std::int64_t first, std::int64_t i) const {
  return first + share_.item(i) * config_.train.micro_batch;
}

SampleBatch Session::read_batch(std::int64_t first_sample, std::int64_t rows, const ReadSamples& read) const {
  SampleBatch batch = read(first_sample);
  for (auto* values : {&batch.inputs, &batch.targets})
    values->resize(static_cast<std::size_t>(rows * config_.train.sequence));
  if (!batch.lengths.empty()) batch.lengths = first_of(std::move(batch.lengths), rows * config_.train.sequence);
  return batch;
}

SampleBatch Session::read_step_batch(std::int64_t first, std::int64_t i, const ReadSamples& read) const {
  if (has_samples(i)) return read_batch(first_sample(first, i), config_.train.micro_batch, read);
  const auto tokens = static_cast<std::size_t>(config_.train.micro_batch * config_.train.sequence);
  return {std::vector<std::int32_t>(tokens, 0), std::vector<std::int32_t>(tokens, weighs() ? kIgnoredTarget : 0)};
}

Session::Batch Session::upload(SampleBatch batch) {
  const Shape shape{std::ssize(batch.inputs) / config_.train.sequence, config_.train.sequence};
  const auto tensor = [&](auto values) { return Tensor::from_host(context_, shape, std::move(values)); };
  Batch made;
  if (weighs()) made.weights = tensor(weigh_targets(config_, batch).each);
  made.inputs = tensor(std::move(batch.inputs));
  made.targets = tensor(std::move(batch.targets));
  if (!batch.lengths.empty()) made.documents = Documents(std::move(batch.lengths));
  return made;
}

std::vector<SampleBatch> Session::read_batches(std::int64_t first_of_step, const ReadSamples& read) const {
  std::vector<SampleBatch> batches;
  for (std::int64_t i = 0; i < local_micro_batches(); ++i) batches.push_back(read_step_batch(first_of_step, i, read));
  return batches;
}

Session::Batch Session::kept_batch(std::int64_t i) const {
  const std::int64_t rows = config_.train.micro_batch;
  return {{kept_.inputs.rows(i * rows, rows), kept_.targets.rows(i * rows, rows), {}},
          weighs() ? kept_.weights.rows(i * rows, rows) : Tensor{}};
}

void Session::upload_batches(const std::vector<SampleBatch>& batches) {
  const auto upload = [&](const Tensor& tensor, const auto& values) {
    const Buffer out = tensor.buffer();
    context_.launch({"samples", {}, {out}}, upload_of(context_.kernels(), out, values));
  };
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const Batch batch = kept_batch(static_cast<std::int64_t>(i));
    upload(batch.inputs, batches[i].inputs);
    upload(batch.targets, batches[i].targets);
    if (weighs()) upload(batch.weights, weigh_targets(config_, batches[i]).each);
  }
}

Tensor Session::forward_loss(const Batch& batch, const Tensor& scale) {
  LossOptions options{.seed = batch.seed, .chunk = config_.train.loss_chunk};
  if (batch.weights) {
    options.ignored = kIgnoredTarget;
    options.weights = scale ? batch.weights * scale : batch.weights;
  }
  return model_->loss(batch.inputs, batch.targets, options, batch.documents);
}

void Session::enqueue_fault_point() {
  Watchdog* const watchdog = world_.watchdog();
  if (watchdog == nullptr || !watchdog->faults().has(kFaultPoint)) return;
  context_.launch({kFaultPoint, {}, {}}, [watchdog](ExecContext&) { watchdog->faults().hit(kFaultPoint); });
}

Buffer Session::loss_slot(std::int64_t slot) const {
  return local_losses_.buffer(DType::f32, loss_slots_).slice(slot, 1);
}

void Session::gather_losses() {
  runtime_.executor().loss_comm().all_gather(context_.stream(), "losses", local_losses_.buffer(DType::f32, loss_slots_),
                                             all_losses_.buffer(DType::f32, loss_slots_ * share_.count));
}

std::vector<float> Session::in_order(const Memory& gathered, std::int64_t count) const {
  const HostView view(context_, context_.stream(), gathered.buffer(DType::f32, loss_slots_ * share_.count));
  const auto* const values = view.as<float>();
  std::vector<float> ordered(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    ordered[static_cast<std::size_t>(i)] = values[(i % share_.count) * loss_slots_ + i / share_.count];
  }
  return ordered;
}

bool Session::drops(std::int64_t micro_batches) {
  if (!is_asked_) return false;
  if ((since_poll_ += micro_batches) < micro_batches_a_poll_) return false;
  since_poll_ = 0;
  context_.stream().synchronize();
  if (!is_asked_()) return false;
  is_interrupted_ = true;
  runtime_.abandon_step();
  device_.synchronize();
  return true;
}

void Session::set_poll_interval(std::int64_t slowest_step_us) {
  if (slowest_step_us > 0)
    micro_batches_a_poll_ =
        std::max<std::int64_t>(1, kPollEvery_us * local_micro_batches() / std::max<std::int64_t>(slowest_step_us, 1));
}

void Session::enqueue_step(std::int64_t step, float lr, const ReadSamples& read, std::int64_t stop,
                           GradientFacts* gradients) {
  gradient_facts_ = gradients;
  is_interrupted_ = false;
  is_metered_ = lost_updates_ && (step == 1 || step % config_.run.lost_updates_every == 0);
  step_began_ = std::chrono::steady_clock::now();
  between_bytes_ = has_sent_ ? device_.memory().peak_since_mark() : 0;
  device_.memory().reset_peak();
  const std::int64_t first_of_step = (step - 1) * config_.train.global_batch;
  if (replay_) {
    optimizer_->set_scalars(lr, step);
    if (drops(local_micro_batches())) return;
    const std::vector<SampleBatch> batches = read_batches(first_of_step, read);
    upload_batches(batches);
    upload_weight(batches);
    for (std::int64_t i = 0; i < local_micro_batches(); ++i) enqueue_fault_point();
    bool is_replayed = true;
    replay_->run(mix64(runtime_.step_key() ^ optimizer_->slots_key()), [&] {
      is_replayed = false;
      enqueue_work([&](std::int64_t i) { return kept_batch(i); });
    });
    if (is_replayed) optimizer_->note_update();
  } else {
    // Read first, since what counts in all of them is known before the first one's backward
    std::vector<SampleBatch> batches;
    if (weighs()) batches = read_batches(first_of_step, read);
    upload_weight(batches);
    if (pairs_)
      pairs_->add_references(runtime_, *model_, batches.size(), [&](std::size_t i) {
        return PairBatch(upload(SampleBatch(batches[i])), config_.train.loss_chunk);
      });
    enqueue_work(
        [&](std::int64_t i) {
          return upload(weighs() ? std::move(batches[static_cast<std::size_t>(i)])
                                 : read_step_batch(first_of_step, i, read));
        },
        [&] { optimizer_->set_scalars(lr, step); });  // the last step's may be needed until here
  }
  if (!is_interrupted_) send_status(stop);
}

void Session::enqueue_work(const std::function<Batch(std::int64_t)>& batch,
                           const std::function<void()>& before_update) {
  std::int64_t local = local_micro_batches();
  const Tensor targets = step_targets(), scale = weight_scale(config_, targets);
  if (config_.shard.pregather) runtime_.pregather();
  if (records_) records_->clear();
  for (std::int64_t i = 0; i < local; ++i) {
    if (!replay_ && drops(1)) return;
    if (is_enough_()) local = i + 1;
    runtime_.begin_micro_batch(Mode::train, i + 1 == local);
    if (activations_) activations_->begin_micro_batch();
    if (!replay_) enqueue_fault_point();  // else it has been
    {
      device_.trace().set_phase("forward");
      if (FiniteCheck* const check = device_.trace().finite_check()) check->place().micro_batch = i;
      Batch own = batch(i);
      own.seed = backward_seed(i);
      const Tensor loss = pairs_ ? pairs_->loss(*model_, {own, config_.train.loss_chunk}, i) : forward_loss(own, scale);
      if (!pairs_) store_loss(context_, loss, loss_slot(i));
      device_.trace().set_phase("backward");
      backward(loss, own.seed);
    }
    runtime_.end_micro_batch();
  }
  device_.trace().set_phase("optimizer");
  before_update();
  if (gradient_facts_ != nullptr) gradient_facts_->take();
  if (is_metered_) lost_updates_->begin();
  optimizer_->update(targets ? targets.buffer() : Buffer{});
  if (is_metered_) lost_updates_->end();
  gather_losses();
  if (records_) records_->sum();
  if (pairs_) pairs_->gather(runtime_.executor());
}

void Session::send_status(std::int64_t stop) {
  const Buffer status = status_.buffer(DType::i64, kStatus);
  const std::int64_t calls =
      device_.memory().allocation_calls() + device_.pinned_memory().counter().allocation_calls() - allocations_seen_;
  allocations_seen_ += calls;
  // As far as this step's work has not run yet, its waits count in the next one's.
  const std::int64_t waited = std::clamp<std::int64_t>(waited_since_last_ns(), 0, kLongestWait_ns - 1);
  std::vector<std::int64_t> values(kStatus);
  values[peak_bytes] = std::max(replay_ ? replay_->peak_bytes() : device_.memory().peak_bytes(), between_bytes_);
  if (config_.offload.uses_host() || save_memory_) values[host_bytes] = device_.pinned_memory().counter().live_bytes();
  values[allocations] = calls;
  values[Status::stop] = stop;
  values[no_data] = lacks_data_();
  values[wants_validation] = wants_validation_();
  values[save_due] = is_save_due_();
  values[writing] = is_writing_();
  values[slowest_step_us] = last_step_us_;
  const std::int64_t waited_for_data = data_waited_ns_();
  values[Status::data_wait_ns] = waited_for_data - std::exchange(data_waited_seen_ns_, waited_for_data);
  values[least_wait] = (kLongestWait_ns - 1 - waited) * kRanks + world_.rank();
  values[most_wait] = waited;
  context_.launch({"status", {}, {status}}, upload_of(context_.kernels(), status, std::move(values)));
  runtime_.executor().compute_comm().all_reduce(context_.stream(), "status", status, ReduceOp::max);
  device_.memory().mark();
  has_sent_ = true;
}

std::int64_t Session::waited_since_last_ns() {
  const Watchdog* const watchdog = world_.watchdog();
  if (watchdog == nullptr) return 0;
  const std::int64_t waited = watchdog->recorder().waited_ns();
  return waited - std::exchange(waited_seen_ns_, waited);
}

StepResult Session::finish_step() {
  device_.synchronize();
  products_.after_step();
  const HostView view(context_, context_.stream(), status_.buffer(DType::i64, kStatus));
  const auto* const status = view.as<std::int64_t>();
  last_step_us_ =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - step_began_).count();
  set_poll_interval(status[slowest_step_us]);
  return {.losses = in_order(all_losses_, global_micro_batches()),
          .grad_norm = *HostView(context_, context_.stream(), optimizer_->grad_norm()).as<float>(),
          .peak_bytes = status[peak_bytes],
          .host_bytes = status[host_bytes],
          .allocations = status[allocations],
          .stop = status[stop],
          .wants_validation = status[wants_validation] != 0,
          .preference = pairs_ ? std::optional(pairs_->numbers(global_micro_batches())) : std::nullopt,
          .is_save_due = status[save_due] != 0,
          .is_writing = status[writing] != 0,
          .lacks_data = status[no_data] != 0,
          .waits = {.slowest = static_cast<int>(status[least_wait] % kRanks),
                    .least_s = static_cast<double>(kLongestWait_ns - 1 - status[least_wait] / kRanks) * 1e-9,
                    .most_s = static_cast<double>(status[most_wait]) * 1e-9},
          .data_wait_ns = status[Status::data_wait_ns],
          .lost_updates = is_metered_ ? lost_updates_->shares() : std::vector<LostShare>{},
          .mixtures = records_ ? records_->loads() : std::vector<MixtureLoad>{}};
}

Tensor Session::enqueue_logits(const std::vector<std::int32_t>& tokens, KvCache* cache) {
  // Causal: what follows the last token cannot change its logits, so lengths are rounded up and few sizes of buffers
  // occur. A token that goes on from a cache is alone as a rule.
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t multiple = cache != nullptr && cache->seen() > 0 ? 1 : 64;
  const std::int64_t most = cache != nullptr ? cache->capacity() - cache->seen() : config_.model.context;
  std::vector<std::int32_t> padded = tokens;
  padded.resize(static_cast<std::size_t>(std::min(most, (count + multiple - 1) / multiple * multiple)), 0);
  runtime_.begin_micro_batch(Mode::eval, true);
  const auto length = static_cast<std::int64_t>(padded.size());
  Tensor logits =
      model_->next_token_logits(Tensor::from_host(context_, {1, length}, std::move(padded)), count - 1, cache);
  runtime_.end_micro_batch();
  return logits;
}

std::vector<float> Session::next_token_logits(const std::vector<std::int32_t>& tokens, KvCache* cache) {
  std::vector<float> values = enqueue_logits(tokens, cache).to_host();
  values.resize(static_cast<std::size_t>(config_.model.vocab));
  return values;
}

}  // namespace zs
