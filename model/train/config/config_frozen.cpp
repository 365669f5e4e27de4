#include "model/train/config/config_frozen.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/families/family.h"
#include "model/train/config/folder_model.h"
#include "runtime/base/name_pattern.h"

namespace zs {
namespace {

constexpr const char *kFrozenKey = "train.frozen", *kFrozenDtypeKey = "precision.frozen",
                     *kFrozenSavedKey = "checkpoint.frozen", *kQuantizeKey = "precision.quantize";

void check_frozen_patterns(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (c.train.frozen.empty() || !are_good(draft, {kFrozenKey})) return;
  try {
    for (const std::string& pattern : c.train.frozen) static_cast<void>(NamePattern(pattern));
  } catch (const Error& error) {
    return draft.report(kFrozenKey, fmt::format("{}: {}", kFrozenKey, error.what_happened()), error.what_to_do());
  }
  if (c.lora.is_on())
    draft.report(kFrozenKey, "train.frozen does not go with adapters, beside which the whole model is frozen",
                 "leave it out; lora.modules_to_save names what is trained whole");
  else if (c.shard.units == "plan")
    draft.report(kFrozenKey, "train.frozen does not go with plan.apply: frozen parameters are units of their own",
                 "leave one of them out");
}

void resolve_frozen_dtype(ConfigDraft& draft) {
  Config& c = draft.config;
  if (!are_good(draft, {kFrozenDtypeKey})) return;
  if (!has_frozen(c)) {
    if (c.precision.frozen != "auto" && c.precision.frozen != "f32")
      draft.report(kFrozenDtypeKey,
                   fmt::format("{} = \"{}\" has no effect: nothing is frozen", kFrozenDtypeKey, c.precision.frozen),
                   "leave it out, or freeze parameters by lora.rank or train.frozen");
    return;
  }
  const auto is_of_model = [](const std::string& key) { return key.starts_with("model."); };
  if (c.precision.frozen != "auto" || std::any_of(draft.bad.begin(), draft.bad.end(), is_of_model)) return;
  const bool is_bf16 =
      !c.model.path.empty() && is_stored_in_bf16(c.model.path, family_named(c.model.family).tensor_map(c.model));
  c.precision.frozen = is_bf16 ? "bf16" : "f32";
}

void resolve_frozen_saved(ConfigDraft& draft) {
  Config& c = draft.config;
  if (!are_good(draft, {kFrozenSavedKey})) return;
  const bool has_folder = has_frozen(c) && !c.model.path.empty();
  if (!draft.is_given(kFrozenSavedKey)) {
    c.checkpoint.frozen = has_folder ? "exclude" : "include";
  } else if (c.checkpoint.frozen == "exclude" && !has_folder && are_good(draft, {"model.path"})) {
    draft.report(kFrozenSavedKey,
                 fmt::format("{} = \"exclude\", and {}", kFrozenSavedKey,
                             has_frozen(c) ? "the frozen weights are in no model's folder" : "nothing is frozen"),
                 "leave it out");
  }
}

void check_quantize(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (c.precision.quantize == "none" || !are_good(draft, {kQuantizeKey, kFrozenSavedKey, "model.path"})) return;
  const auto report = [&](const char* what, const char* what_to_do) {
    draft.report(kQuantizeKey, fmt::format("{} = \"{}\" {}", kQuantizeKey, c.precision.quantize, what), what_to_do);
  };
  if (!has_frozen(c))
    report("has no effect: nothing is frozen", "leave it out, or freeze parameters by lora.rank or train.frozen");
  else if (c.model.path.empty())
    report("needs model.path: what is quantized is read from a folder, which checkpoints name",
           "give model.path, or leave it out");
  else if (c.checkpoint.frozen == "include")
    report("does not go with checkpoint.frozen = \"include\": a checkpoint has numbers", "leave one of them out");
}

}  // namespace

bool has_frozen(const Config& config) { return config.lora.is_on() || !config.train.frozen.empty(); }

void resolve_frozen(ConfigDraft& draft) {
  check_frozen_patterns(draft);
  resolve_frozen_dtype(draft);
  resolve_frozen_saved(draft);
  check_quantize(draft);
}

}  // namespace zs
