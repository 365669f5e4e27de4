#include "model/train/session/pair_training.h"

#include <memory>

#include "runtime/tensor/autograd.h"
#include "runtime/tensor/host_view.h"

namespace zs {

void store_loss(Context& context, const Tensor& value, const Buffer& slot) {
  const Buffer in = value.buffer();
  context.launch({"store_loss", {in}, {slot}},
                 [&kernels = context.kernels(), slot, in](ExecContext& exec) { kernels.copy(exec, slot, in); });
}

PairTraining::PairTraining(Context& context, const Config& config, const Buffer& losses, std::int64_t slots,
                           std::int64_t shares)
    : context_(context), options_(config.preference), losses_(losses), slots_(slots), shares_(shares) {
  const std::int64_t bytes = kNumbers * slots * size_of(DType::f32);
  local_ = context.device().pool().acquire(bytes, context.stream(), "scalars");
  all_ = context.device().pool().acquire(bytes * shares, context.stream(), "scalars");
}

void PairTraining::add_reference(LanguageModel& model, const PairBatch& batch) {
  model.use_adapters(false);
  const std::unique_ptr<LanguageModel, void (*)(LanguageModel*)> guard(
      &model, [](LanguageModel* own) { own->use_adapters(true); });
  references_.push_back(model.row_losses(batch.inputs, batch.targets, batch.counted, batch.options, batch.documents));
}

void PairTraining::add_references(ShardedRuntime& runtime, LanguageModel& model, std::size_t micro_batches,
                                  const std::function<PairBatch(std::size_t)>& batch) {
  references_.clear();
  const NoGradGuard no_grad(context_);
  for (std::size_t i = 0; has_reference() && i < micro_batches; ++i) {
    runtime.begin_micro_batch(Mode::eval, i + 1 == micro_batches);
    add_reference(model, batch(i));
    runtime.end_micro_batch();
  }
}

Tensor PairTraining::loss(LanguageModel& model, const PairBatch& batch, std::int64_t slot) {
  PreferenceTerms terms;
  const auto weigh = [&](const std::vector<Tensor>& sums) {
    terms = preference_terms(options_, sums,
                             has_reference() ? references_[static_cast<std::size_t>(slot)] : std::vector<Tensor>(),
                             batch.counted);
    return terms.weights;
  };
  const Tensor loss =
      model.loss_by_rows(batch.inputs, batch.targets, batch.counted, weigh, batch.options, batch.documents);
  store_loss(context_, terms.loss, losses_.slice(slot, 1));
  const Buffer numbers = local_.buffer(DType::f32, kNumbers * slots_);
  store_loss(context_, terms.chosen, numbers.slice(slot, 1));
  store_loss(context_, terms.rejected, numbers.slice(slots_ + slot, 1));
  store_loss(context_, terms.accuracy, numbers.slice(2 * slots_ + slot, 1));
  return loss;
}

void PairTraining::gather(Executor& executor) {
  const std::int64_t count = kNumbers * slots_;
  executor.loss_comm().all_gather(context_.stream(), "rewards", local_.buffer(DType::f32, count),
                                  all_.buffer(DType::f32, count * shares_));
}

PreferenceNumbers PairTraining::numbers(std::int64_t micro_batches) const {
  const std::int64_t count = kNumbers * slots_;
  const HostView view(context_, context_.stream(), all_.buffer(DType::f32, count * shares_));
  const auto* const values = view.as<float>();
  const auto mean = [&](std::int64_t number) {
    double sum = 0;
    for (std::int64_t i = 0; i < micro_batches; ++i)
      sum += values[(i % shares_) * count + number * slots_ + i / shares_];
    return static_cast<float>(sum / static_cast<double>(micro_batches));
  };
  return {mean(0), mean(1), mean(2)};
}

}  // namespace zs
