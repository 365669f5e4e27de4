#include "model/train/config/optimizer_kind.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/train/config/config_optimizer.h"
#include "runtime/shard/optimizers/adamw8bit.h"
#include "runtime/shard/optimizers/lion.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/optimizers/schedule_free.h"
#include "runtime/shard/optimizers/sgd.h"

namespace zs {
namespace {

float f32(double value) { return static_cast<float>(value); }

/// Options with those filled in that all optimizers take.
template <class Options>
Options with_shared(Options options, const Config& config) {
  options.weight_decay = f32(config.train.weight_decay);
  options.clip = f32(config.train.clip);
  options.order_free = config.train.deterministic;
  for (const std::string& entry : config.train.groups) options.groups.push_back(parse_group(entry));
  options.average = f32(config.train.average);
  return options;
}

template <class Kind>
std::unique_ptr<Optimizer> make_adamw(Executor& executor, const Config& config) {
  const Config::Train& train = config.train;
  const AdamWConfig own{.beta1 = f32(train.beta1), .beta2 = f32(train.beta2), .eps = f32(train.eps)};
  return std::make_unique<Kind>(executor, with_shared(own, config));
}

std::unique_ptr<Optimizer> make_sgd(Executor& executor, const Config& config) {
  const SgdConfig own{.momentum = f32(config.train.momentum), .nesterov = config.train.nesterov};
  return std::make_unique<Sgd>(executor, with_shared(own, config));
}

std::unique_ptr<Optimizer> make_lion(Executor& executor, const Config& config) {
  const LionConfig own{.beta1 = f32(config.train.beta1), .beta2 = f32(config.train.beta2)};
  return std::make_unique<Lion>(executor, with_shared(own, config));
}

std::unique_ptr<Optimizer> make_muon(Executor& executor, const Config& config) {
  const Config::Train& train = config.train;
  const MuonConfig own{.momentum = f32(train.momentum),
                       .nesterov = train.nesterov,
                       .matrices = train.muon,
                       .beta1 = f32(train.beta1),
                       .beta2 = f32(train.beta2),
                       .eps = f32(train.eps)};
  return std::make_unique<Muon>(executor, with_shared(own, config));
}

std::unique_ptr<Optimizer> make_schedule_free(Executor& executor, const Config& config) {
  const Config::Train& train = config.train;
  const ScheduleFreeConfig own{.beta1 = f32(train.beta1), .beta2 = f32(train.beta2), .eps = f32(train.eps)};
  return std::make_unique<ScheduleFreeAdamW>(executor, with_shared(own, config));
}

int two_moments(const Config&) { return 2; }
int one_moment(const Config&) { return 1; }
int momentum_if_any(const Config& config) { return config.train.momentum > 0 ? 1 : 0; }

template <class Value>
void fill_in(ConfigDraft& draft, const char* key, Value& value, Value usual) {
  if (!draft.is_given(key)) value = std::move(usual);
}

void fill_sgd(ConfigDraft& draft) { fill_in(draft, "train.weight_decay", draft.config.train.weight_decay, 0.0); }

void fill_lion(ConfigDraft& draft) { fill_in(draft, "train.beta2", draft.config.train.beta2, 0.99); }

void fill_muon(ConfigDraft& draft) {
  Config::Train& train = draft.config.train;
  fill_in(draft, "train.momentum", train.momentum, 0.95);
  fill_in(draft, "train.nesterov", train.nesterov, !(draft.is_given("train.momentum") && train.momentum == 0));
  fill_in(draft, "train.muon", train.muon, {"blocks.*"});
}

void fill_schedule_free(ConfigDraft& draft) {
  fill_in(draft, "train.schedule", draft.config.train.schedule, std::string("constant"));
}

void check_momentum(ConfigDraft& draft) {
  const Config::Train& train = draft.config.train;
  if (train.nesterov && train.momentum == 0 && are_good(draft, {"train.nesterov", "train.momentum"}))
    draft.report("train.nesterov", "train.nesterov = true without a momentum",
                 "set train.momentum above 0, or leave train.nesterov out");
}

void check_muon(ConfigDraft& draft) {
  check_momentum(draft);
  if (draft.config.train.muon.empty() && are_good(draft, {"train.muon"}))
    draft.report("train.muon", "train.muon names no matrix",
                 "name some, such as [\"blocks.*\"], or use train.optimizer = \"adamw\"");
}

void check_schedule_free(ConfigDraft& draft) {
  if (draft.config.train.beta1 == 0 && are_good(draft, {"train.beta1"}))
    draft.report("train.beta1", "train.beta1 = 0 does not go with train.optimizer \"schedule_free_adamw\"",
                 "set it above 0: gradients would say nothing of the average");
}

/// The table. Its order decides which optimizer a message names for a key; documentation sorts by name.
const std::vector<OptimizerKind>& kinds() {
  static const std::vector<OptimizerKind> all = {
      {.name = "adamw",
       .summary = "Loshchilov and Hutter 2019",
       .keys = {"train.beta1", "train.beta2", "train.eps"},
       .moments = two_moments,
       .updates_on_host = true,
       .make = make_adamw<AdamW>},
      {.name = "sgd",
       .summary = "stochastic gradient descent with a momentum",
       .keys = {"train.momentum", "train.nesterov"},
       .moments = momentum_if_any,
       .updates_on_host = true,
       .make = make_sgd,
       .fill = fill_sgd,
       .check = check_momentum},
      {.name = "lion",
       .summary = "Chen et al. 2023",
       .keys = {"train.beta1", "train.beta2"},
       .moments = one_moment,
       .updates_on_host = true,
       .make = make_lion,
       .fill = fill_lion},
      {.name = "adamw8bit",
       .summary = "AdamW with moments of 8 bits (Dettmers et al. 2022)",
       .keys = {"train.beta1", "train.beta2", "train.eps"},
       .moments = two_moments,
       .takes_whole = true,
       .make = make_adamw<AdamW8bit>},
      {.name = "muon",
       .summary = "Jordan et al. 2024, for the matrices that `train.muon` names, and AdamW for the rest",
       .keys = {"train.beta1", "train.beta2", "train.eps", "train.momentum", "train.nesterov", "train.muon"},
       .moments = two_moments,
       .takes_whole = true,
       .make = make_muon,
       .fill = fill_muon,
       .check = check_muon},
      {.name = "schedule_free_adamw",
       .summary = "Defazio et al. 2024: AdamW whose weights are an average, without a schedule",
       .keys = {"train.beta1", "train.beta2", "train.eps"},
       .moments = two_moments,
       .trains_average = true,
       .make = make_schedule_free,
       .fill = fill_schedule_free,
       .check = check_schedule_free}};
  return all;
}

}  // namespace

bool OptimizerKind::has(std::string_view key) const { return std::find(keys.begin(), keys.end(), key) != keys.end(); }

std::span<const OptimizerKind> optimizer_kinds() { return kinds(); }

const OptimizerKind* find_optimizer_kind(std::string_view name) {
  const auto found =
      std::find_if(kinds().begin(), kinds().end(), [&](const OptimizerKind& kind) { return kind.name == name; });
  return found == kinds().end() ? nullptr : &*found;
}

const OptimizerKind& optimizer_kind(const Config& config) {
  const OptimizerKind* const kind = find_optimizer_kind(config.train.optimizer);
  ZS_CHECK(kind != nullptr, "no optimizer {}", config.train.optimizer);
  return *kind;
}

std::string optimizer_choices() {
  std::vector<std::string_view> names;
  for (const OptimizerKind& kind : kinds()) names.push_back(kind.name);
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, "|"));
}

}  // namespace zs
