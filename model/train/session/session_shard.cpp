// Sharding of a session's model: what its configuration says, and which units it has.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "model/lora/saved_modules.h"
#include "model/nn/tensor_partition.h"
#include "model/train/config/config_experts.h"
#include "model/train/config/config_frozen.h"
#include "model/train/config/config_recompute.h"
#include "model/train/config/config_tensor.h"
#include "model/train/config/pattern_entries.h"
#include "model/train/session/session.h"

namespace zs {
namespace {

constexpr double kMiB = 1 << 20;
/// NCCL moves less than that at a fraction of what its links carry (docs/decisions/0039-units-of-several-blocks.md).
constexpr double kNcclUnitMib = 64;

DType dtype_of(const std::string& name) { return name == "bf16" ? DType::bf16 : DType::f32; }

Omit omit_of(const std::string& name) {
  return name == "gathers"      ? Omit::gathers
         : name == "reductions" ? Omit::reductions
         : name == "both"       ? Omit::both
                                : Omit::nothing;
}

MixedPrecisionPolicy precision_of(const Config& config) {
  const DType param = dtype_of(config.precision.param);
  const auto is_f32 = [](const std::string& name) { return name == "f32"; };
  MixedPrecisionPolicy precision{.param = param, .reduce = dtype_of(config.precision.reduce)};
  if (param == DType::bf16 && is_f32(config.precision.output)) precision.output = DType::f32;
  precision.gather_format = gather_format_named(config.shard.compress_gather);
  precision.reduce_comm_dtype = config.shard.compress_reduce == "int8" ? CommDType::int8 : CommDType::exact;
  precision.rounds_stochastically = config.precision.rounding == "stochastic";
  precision.is_full_in_evaluation = param == DType::bf16 && is_f32(config.precision.validation);
  return precision;
}

Residence residence_of(const Config& config) {
  const Config::Offload& offload = config.offload;
  return {.has_masters_on_host = offload.weights != "device",
          .has_moments_on_host = offload.moments != "device",
          .has_gradients_on_host = offload.gradients != "device",
          .has_accumulators_on_host = offload.accumulator != "device",
          .cpu_link_gbs = offload.cpu_link_gbs,
          .updates_on_host = offload.update == "host",
          .masters_disk = Config::Offload::disk_of(offload.weights),
          .moments_disk = Config::Offload::disk_of(offload.moments)};
}

/// Adapters are f32 beside a model of any precision; what travels between ranks is compressed as the rest is.
UnitPolicy adapter_policy(const Config& config) {
  MixedPrecisionPolicy precision = precision_of(config);
  precision.param = precision.reduce = DType::f32;
  precision.output.reset();
  precision.rounds_stochastically = false;
  UnitPolicy policy{.precision = precision};
  if (!Config::Offload::disk_of(config.offload.weights).empty()) {
    Residence& residence = policy.residence.emplace(residence_of(config));
    residence.has_masters_on_host = false;
    residence.masters_disk.clear();
  }
  return policy;
}

Recompute recompute_of(const std::string& part) {
  if (part == "block") return Recompute::block;
  return part == "attention" ? Recompute::attention : Recompute::none;
}

bool is_adapters(const Module& module) { return dynamic_cast<const LoraAdapters*>(&module) != nullptr; }

/// Options of prefetching. A block's adapters, or what is frozen of it, are a unit beside its own, its matrices are one
/// where they are held in a format, and its experts are one: the whole parameters of all of them exist at once.
PrefetchOptions prefetch_options(const Config& config) {
  const int units = 1 + (has_frozen(config) ? 1 : 0) + (config.precision.quantize != "none" ? 1 : 0) +
                    (config.model.experts > 0 ? 1 : 0);
  const std::int64_t limit = units > 1 && config.shard.limit == 0 ? config.shard.prefetch + 1 : config.shard.limit;
  return {.prefetch = units * static_cast<int>(config.shard.prefetch),
          .limit = units * static_cast<int>(limit),
          .max_reductions_in_flight = static_cast<int>(config.shard.max_reductions_in_flight),
          .keep_root_unsharded = config.shard.keep_root_unsharded};
}

/// Appends the paths of experts below a module, whose tokens go as [experts] says where these are dealt.
void set_dispatcher(Module& module, const Config& config, std::vector<std::string>& paths) {
  if (auto* const experts = dynamic_cast<Experts*>(&module)) {
    experts->dispatch_by(dispatcher_of(config));
    paths.push_back(experts->path());
  }
  for (Module* child : module.children()) set_dispatcher(*child, config, paths);
}

/// Freezes what the patterns name, or a module that they name has in it.
class Freezer {
 public:
  explicit Freezer(const std::vector<std::string>& patterns) : is_used_(patterns.size()) {
    for (const std::string& text : patterns) patterns_.emplace_back(text);
  }

  void freeze(const Module& module, bool is_in_frozen = false) {
    is_in_frozen = matches(module.path()) || is_in_frozen;
    for (const auto& parameter : module.own_parameters()) {
      const bool is_frozen = matches(parameter->name()) || is_in_frozen;
      if (is_frozen) parameter->set_trainable(false);
      has_trained_ = has_trained_ || !is_frozen;
    }
    for (const Module* child : module.children()) freeze(*child, is_in_frozen);
  }
  /// Error(config) where a pattern has named nothing, or all of them everything.
  void check() const {
    const auto unused = static_cast<std::size_t>(std::find(is_used_.begin(), is_used_.end(), false) - is_used_.begin());
    if (unused < is_used_.size())
      throw Error(
          ExitCode::config, fmt::format("train.frozen: \"{}\" matches no parameter", patterns_[unused].text()), {},
          fmt::format("the nearest names are {}", fmt::join(nearest_names(patterns_[unused].text(), names_), ", ")));
    if (!has_trained_)
      throw Error(ExitCode::config, "train.frozen leaves nothing to train", {}, "name fewer parameters");
  }

 private:
  bool matches(const std::string& name) {
    bool is_one = false;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!patterns_[i].matches(name)) continue;
      is_used_[i] = is_one = true;
    }
    names_.push_back(name);
    return is_one;
  }

  std::vector<NamePattern> patterns_;
  std::vector<bool> is_used_;
  std::vector<std::string> names_;
  bool has_trained_ = false;
};

}  // namespace

ShardOptions shard_options(const Config& config, int ranks) {
  return {.scheme = scheme_options(config),
          .schedule = prefetch_options(config),
          .precision = precision_of(config),
          .layout = {.layout = config.shard.layout == "flat" ? Layout::flat : Layout::per_parameter,
                     .min_shard_bytes = config.shard.min_shard_bytes,
                     .dim = choose_dim(config.shard.dims)},
          .seed = static_cast<std::uint64_t>(config.train.seed),
          .division = {Division::Rule::none},  // backward_seed() has it
          .zero_copy = config.shard.zero_copy == "auto",
          .omit = omit_of(config.comm.omit),
          .residence = residence_of(config),
          // "auto" is a number in every session that trains by a plan.
          .resident_units = static_cast<int>(config.offload.resident_units.value),
          .frozen_dtype = config.precision.frozen == "bf16" ? std::optional(DType::bf16) : std::nullopt,
          .frozen_format = frozen_format_named(config.precision.quantize),
          .splits_frozen = !config.train.frozen.empty(),
          .grid = config.tensor.parallel > 1 ? tensor_grid(config, ranks) : expert_grid(config, ranks)};
}

std::size_t set_recompute(LanguageModel& model, const Config& config) {
  const std::vector<RecomputeEntry> entries = recompute_entries(config.train.recompute);
  std::vector<std::string> blocks;
  std::size_t whole = 0;
  model.set_recompute([&](const std::string& block) {
    blocks.push_back(block);
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const RecomputeEntry& entry) { return entry.pattern.matches(block); });
    const Recompute part = found == entries.end() ? Recompute::none : recompute_of(found->part);
    whole += part == Recompute::block ? 1 : 0;
    return part;
  });
  for (const RecomputeEntry& entry : entries)
    if (std::none_of(blocks.begin(), blocks.end(), [&](const auto& block) { return entry.pattern.matches(block); }))
      throw Error(
          ExitCode::config, fmt::format("train.recompute: \"{}\" matches no block", entry.pattern.text()), {},
          fmt::format("the nearest blocks are {}", fmt::join(nearest_names(entry.pattern.text(), blocks), ", ")));
  return whole;
}

double unit_mib(const Config& config, Transport transport, int ranks) {
  if (config.shard.unit_mib >= 0) return config.shard.unit_mib;
  return transport == Transport::nccl && ranks > 1 ? kNcclUnitMib : 0;
}

void shard_model(LanguageModel& model, ShardedRuntime& runtime, const Config& config, double unit_mib) {
  if (!config.train.frozen.empty()) {
    Freezer freezer(config.train.frozen);
    freezer.freeze(model);
    freezer.check();
  }
  std::set<std::string> trained;  // modules that are trained whole beside adapters
  if (config.lora.is_on()) {
    attach_adapters(model, lora_targets(config.model, config.lora), static_cast<float>(config.lora.dropout));
    for (const SavedModule& saved : saved_modules(config.model, config.lora)) trained.insert(saved.path);
  }
  const bool has_blocks = config.shard.units == "block";
  std::vector<std::string> experts;
  set_dispatcher(model, config, experts);
  check_expert_paths(config, experts);
  const auto is_placed = [&config](const Module& unit) {
    return dynamic_cast<const Experts*>(&unit) != nullptr && places_experts(config, unit.path());
  };
  const IsUnit is_unit = [&](const Module& module) {
    return is_adapters(module) || trained.contains(module.path()) || is_placed(module) ||
           (has_blocks && module.is_block());
  };
  const ChoosePolicy policy = [&](const Module& unit) {
    UnitPolicy own;
    if (config.lora.is_on())
      own = is_adapters(unit) ? adapter_policy(config) : UnitPolicy{.is_frozen = !trained.contains(unit.path())};
    if (config.tensor.parallel > 1) own.partition = tensor_partition(unit, is_unit, kTensorAxis);
    return is_placed(unit) ? expert_policy(own, config, runtime.executor().ranks()) : own;
  };
  shard_module(model, runtime, is_unit, {}, policy, std::llround(unit_mib * kMiB));
  const auto& units = runtime.executor().units();
  if (config.precision.quantize != "none" &&
      std::none_of(units.begin(), units.end(), [](const FlatParameter& unit) { return unit.is_encoded(); }))
    throw Error(ExitCode::config,
                fmt::format("precision.quantize = \"{}\" has no effect: no matrix of a block is frozen",
                            config.precision.quantize),
                {}, "leave it out, or freeze matrices of blocks by train.frozen");
}

void begin_adapters(Session& session) {
  const LoraConfig& lora = session.config().lora;
  if (lora.dora && lora.path.empty()) begin_magnitudes(session.model(), session.runtime());
}

}  // namespace zs
