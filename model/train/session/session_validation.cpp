#include <algorithm>
#include <cmath>

#include "model/train/session/session.h"
#include "runtime/shard/execute/sum_over_ranks.h"
#include "runtime/tensor/host_view.h"

namespace zs {

void Session::upload_weight(const std::vector<SampleBatch>& batches) {
  if (!weighs()) return;
  double all = 0;
  for (const SampleBatch& batch : batches) all += weigh_targets(config_, batch).all;
  const Buffer out = step_weight_.buffer(DType::f32, 1);
  context_.launch({"step_weight", {}, {out}}, upload_of(context_.kernels(), out, std::vector{static_cast<float>(all)}));
}

Tensor Session::step_targets() {
  if (!weighs()) return {};
  const Tensor own = Tensor::empty(context_, {1}, DType::f32);
  const Buffer in = step_weight_.buffer(DType::f32, 1), out = own.buffer();
  context_.launch({"step_weight", {in}, {out}},
                  [&kernels = context_.kernels(), out, in](ExecContext& exec) { kernels.copy(exec, out, in); });
  return sum_over_ranks(runtime_.executor(), own);
}

std::int64_t Session::validation_samples(std::int64_t windows) const {
  return std::min(windows, config_.run.validate_batches * config_.train.global_batch);
}

std::int64_t Session::validation_rows(std::int64_t samples, std::int64_t i) const {
  return std::clamp<std::int64_t>(samples - i * config_.train.micro_batch, 0, config_.train.micro_batch);
}

void Session::enqueue_validation(const ReadSamples& read, std::int64_t windows) {
  const NoGradGuard no_grad(context_);
  is_interrupted_ = false;
  if (pairs_) pairs_->clear_references();
  const std::int64_t samples = validation_samples(windows), all = config_.train.micro_batch, round = all * share_.count;
  std::int64_t local = (samples + round - 1) / round;
  ZS_CHECK(local <= loss_slots_, "{} validation micro-batches on this rank, {} slots", local, loss_slots_);
  std::vector<float> weights;
  for (std::int64_t i = 0; i < local; ++i) {
    if (drops(1)) return;
    if (is_enough_()) samples % round == 0 ? local = i + 1 : i = local - 1;  // the last one may be smaller
    // A rank that has none left takes part with a sample that does not count.
    const std::int64_t rows = validation_rows(samples, share_.item(i));
    SampleBatch batch = read_batch(first_sample(0, i), std::max<std::int64_t>(rows, pairs_ ? 2 : 1), read);
    weights.push_back(static_cast<float>(weigh_targets(config_, batch).all));
    if (pairs_ && pairs_->has_reference()) {
      runtime_.begin_micro_batch(Mode::eval, false);
      pairs_->add_reference(*model_, {upload(SampleBatch(batch)), config_.train.loss_chunk});
      runtime_.end_micro_batch();
    }
    runtime_.begin_micro_batch(Mode::eval, i + 1 == local);
    const Batch own = upload(std::move(batch));
    if (pairs_)
      pairs_->loss(*model_, {own, config_.train.loss_chunk}, i);
    else
      store_loss(context_, forward_loss(own), loss_slot(i));
    runtime_.end_micro_batch();
  }
  gather_losses();
  gather_weights(std::move(weights));
}

void swap_validated_weights(Session& session) {
  Optimizer& optimizer = session.optimizer();
  if (session.config().run.validate_average || optimizer.definition().evaluation) optimizer.swap_average();
}

double Session::validate(const ReadSamples& read, std::int64_t windows) {
  swap_validated_weights(*this);
  enqueue_validation(read, windows);
  if (!is_interrupted_) device_.synchronize();
  swap_validated_weights(*this);
  if (is_interrupted_) return std::nan("");
  const std::int64_t samples = validation_samples(windows);
  const auto all = static_cast<double>(config_.train.micro_batch);
  const std::vector<float> losses =
      in_order(all_losses_, (samples + config_.train.micro_batch - 1) / config_.train.micro_batch);
  if (weighs() && !pairs_) return weighted_mean(losses, samples);
  double sum = 0;
  for (std::size_t i = 0; i < losses.size(); ++i)
    sum += losses[i] * (static_cast<double>(validation_rows(samples, static_cast<std::int64_t>(i))) / all);
  return sum / (static_cast<double>(samples) / all);
}

void Session::gather_weights(std::vector<float> weights) {
  if (!weighs()) return;
  weights.resize(static_cast<std::size_t>(loss_slots_));
  const Buffer own = local_weights_.buffer(DType::f32, loss_slots_);
  context_.launch({"weights_of_losses", {}, {own}}, upload_of(context_.kernels(), own, std::move(weights)));
  runtime_.executor().loss_comm().all_gather(context_.stream(), "weights_of_losses", own,
                                             all_weights_.buffer(DType::f32, loss_slots_ * share_.count));
}

double Session::weighted_mean(const std::vector<float>& losses, std::int64_t samples) const {
  const std::vector<float> weights = in_order(all_weights_, std::ssize(losses));
  double sum = 0, all = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const std::int64_t targets = validation_rows(samples, static_cast<std::int64_t>(i)) * config_.train.sequence;
    sum += static_cast<double>(losses[i]) * static_cast<double>(targets);
    all += static_cast<double>(weights[i]);
  }
  return sum / std::max(all, 1.0);
}

}  // namespace zs
