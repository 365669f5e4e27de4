#include "model/train/config/config_defaults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/train/config/schedule.h"

namespace zs {

void check_sizes(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (are_good(draft, {"train.global_batch", "train.micro_batch"}) && c.train.global_batch % c.train.micro_batch != 0)
    draft.report("train.micro_batch",
                 fmt::format("train.global_batch {} is not a multiple of train.micro_batch {}", c.train.global_batch,
                             c.train.micro_batch),
                 "change one of them");
  constexpr double kMostTokens = 4e18;  // counters of tokens are 64-bit
  if (are_good(draft, {"train.steps", "train.global_batch", "train.sequence"})) {
    const double tokens = static_cast<double>(c.train.steps) * static_cast<double>(c.train.global_batch) *
                          static_cast<double>(c.train.sequence);
    if (tokens > kMostTokens)
      draft.report("train.steps", fmt::format("steps x batch x sequence is {:.1e} tokens", tokens), "make it smaller");
  }
  if (are_good(draft, {"train.micro_batch", "train.sequence", "model.vocab"})) {
    const double logits = static_cast<double>(c.train.micro_batch) * static_cast<double>(c.train.sequence) *
                          static_cast<double>(c.model.vocab);
    if (logits > kMostTokens)
      draft.report("train.micro_batch", fmt::format("micro-batch x sequence x vocab is {:.1e} elements", logits),
                   "make it smaller");
  }
}

void check_schedule(ConfigDraft& draft) {
  const Config::Train& train = draft.config.train;
  if (!are_good(draft, {"train.schedule", "train.decay", "train.steps", "train.warmup"}) || train.schedule != "wsd" ||
      train.epochs > 0)  // the steps are not known yet
    return;
  const std::int64_t decay = wsd_decay_steps(train);
  if (train.warmup + decay <= train.steps) return;
  draft.report("train.decay",
               fmt::format("the decay of {} steps (train.decay {} of {}) overlaps the warm-up of {}", decay,
                           train.decay, train.steps, train.warmup),
               fmt::format("together they may have {} steps: lower train.decay or train.warmup", train.steps));
}

void check_steps(ConfigDraft& draft) {
  const Config::Train& train = draft.config.train;
  if (!are_good(draft, {"train.steps", "train.epochs"})) return;
  if (draft.use == ConfigFor::training && train.epochs == 0 && !draft.is_given("train.steps"))
    draft.report("train.steps", "train.steps is missing", "give it (integer), or train.epochs");
  if (train.epochs > 0 && draft.is_given("train.steps"))
    draft.report("train.epochs", fmt::format("train.epochs = {} does not go with train.steps", train.epochs),
                 "give one of them");
}

void resolve_defaults(ConfigDraft& draft) {
  Config& c = draft.config;
  const bool has_folder = !c.model.path.empty(), are_documents = c.data.format != "stream";
  if (!draft.is_given("train.sequence")) {
    c.train.sequence = !has_folder     ? c.model.context
                       : are_documents ? 0  // resolve_by_data
                                       : std::min(c.model.context, kMostDefaultSequence);
    if (draft.bad.count("model.context") != 0) draft.bad.insert("train.sequence");
  }
  if (!c.data.weights.empty() && (!draft.is_given("data.validation_fraction") || !c.data.validation.empty()))
    c.data.validation_fraction = 0;  // no source has a part of its own for it
  if ((has_folder || are_documents) && c.run.validate_every == 0 && !draft.is_given("data.validation_fraction"))
    c.data.validation_fraction = 0;
  if (has_folder && !draft.is_given("train.lr")) c.train.lr = c.lora.is_on() || !c.lora.path.empty() ? 2e-4 : 2e-5;
  if (has_folder && !draft.is_given("train.weight_decay")) c.train.weight_decay = 0;
  if (!draft.is_given("run.sample_tokens") && c.data.kind != "text" && c.data.tokenizer.empty())
    c.run.sample_tokens = 0;
  c.data.has_ignored_targets = are_documents;
}

void resolve_by_data(Config& config, std::int64_t sequence, std::int64_t sequences) {
  if (config.train.sequence == 0) config.train.sequence = sequence;
  if (config.train.epochs == 0) return;
  constexpr double kMostSteps = 1e9, kRounding = 1e-9;
  const double steps =
      std::ceil(config.train.epochs * static_cast<double>(sequences) / static_cast<double>(config.train.global_batch) -
                kRounding);
  if (steps > kMostSteps)
    throw Error(ExitCode::config, fmt::format("train.epochs {} are {:.0f} steps", config.train.epochs, steps),
                "train.epochs", "make it smaller");
  config.train.steps = std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
  ConfigDraft draft;
  std::swap(draft.config, config);
  draft.config.train.epochs = 0;
  check_sizes(draft);
  check_schedule(draft);
  std::swap(draft.config, config);
  if (!draft.problems.empty()) throw Error(draft.problems.front());
}

}  // namespace zs
