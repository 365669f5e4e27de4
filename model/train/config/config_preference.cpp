#include "model/train/config/config_preference.h"

#include <fmt/format.h>

namespace zs {

void check_preference(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (!are_good(draft, {"data.format", "preference.loss"})) return;
  const bool is_on = c.data.format == "preference";
  const auto refuse = [&](const char* key, bool is_wrong, const std::string& what, const char* what_to_do) {
    if (is_wrong && are_good(draft, {key})) draft.report(key, what, what_to_do);
  };
  const Config::Preference &given = c.preference, unset;
  const auto needs_pairs = [&](const char* key, bool is_unset) {
    refuse(key, !is_on && !is_unset, fmt::format("{} does not go with data.format = \"{}\"", key, c.data.format),
           "leave it out, or use data.format = \"preference\"");
  };
  needs_pairs("preference.loss", given.loss == unset.loss);
  needs_pairs("preference.beta", given.beta == unset.beta);
  needs_pairs("preference.label_smoothing", given.label_smoothing == unset.label_smoothing);
  needs_pairs("preference.margin", given.margin == unset.margin);
  if (!is_on || draft.use == ConfigFor::model) return;
  const std::string& loss = c.preference.loss;
  const auto is_odd = [](std::int64_t count) { return count % 2 != 0; };
  refuse("train.micro_batch", is_odd(c.train.micro_batch),
         fmt::format("train.micro_batch is {}, and a pair is two sequences", c.train.micro_batch),
         "use an even number");
  refuse("train.loss", c.train.loss != "tokens", "train.loss does not go with data.format = \"preference\"",
         "leave it out: a pair's loss is of its sequences");
  refuse("data.weights", !c.data.weights.empty(), "data.weights does not go with data.format = \"preference\"",
         "leave it out");
  refuse("data.overlong", c.data.overlong == "split", "data.overlong = \"split\" does not go with pairs",
         "use \"truncate\" or \"refuse\"");
  refuse("preference.label_smoothing", loss == "ipo" && c.preference.label_smoothing != 0,
         "preference.label_smoothing does not go with preference.loss = \"ipo\"", "leave it out");
  refuse("preference.margin", loss != "simpo" && given.margin != unset.margin,
         fmt::format("preference.margin does not go with preference.loss = \"{}\"", loss), "leave it out");
  if (loss == "simpo" || !are_good(draft, {"lora.rank", "lora.path"})) return;
  refuse("preference.loss", !c.lora.is_on(),
         fmt::format("preference.loss = \"{}\" without adapters, without which the model is the reference", loss),
         "set lora.rank and lora.targets, or preference.loss = \"simpo\", which needs no reference");
  refuse("lora.modules_to_save", !c.lora.modules_to_save.empty(),
         fmt::format("lora.modules_to_save does not go with preference.loss = \"{}\": the reference has them untrained",
                     loss),
         "leave it out, or use preference.loss = \"simpo\"");
}

}  // namespace zs
