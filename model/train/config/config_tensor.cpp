#include "model/train/config/config_tensor.h"

#include <algorithm>

#include "model/nn/language_model.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/optimizer_kind.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

/// Reports what tensor.parallel does not go with.
class Refusals {
 public:
  explicit Refusals(ConfigDraft& draft) : draft_(draft) {}

  void refuse(const char* key, bool is_wrong, const std::string& with, const char* what_to_do) {
    if (is_wrong && are_good(draft_, {key}))
      draft_.report("tensor.parallel", fmt::format("tensor.parallel = {} {}", draft_.config.tensor.parallel, with),
                    what_to_do);
  }
  void refuse_key(const char* key, bool is_wrong, const char* why, const char* what_to_do) {
    refuse(key, is_wrong, fmt::format("does not go with {}{}", key, why), what_to_do);
  }
  void require_divisor(const char* key, std::int64_t size) {
    refuse(key, size % draft_.config.tensor.parallel != 0, fmt::format("does not divide {} = {}", key, size),
           "use a number of ranks that divides it");
  }

 private:
  ConfigDraft& draft_;
};

}  // namespace

void check_tensor_over_ranks(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (!are_good(draft, {"tensor.parallel"}) || c.tensor.parallel == 1) return;
  Refusals refusals(draft);
  refusals.refuse_key("model.experts", c.model.experts > 0, ": experts are not cut",
                      "deal them over ranks by experts.parallel, or leave tensor.parallel out");
  refusals.require_divisor("model.heads", c.model.heads);
  refusals.require_divisor("model.kv_heads", c.model.kv_heads);
  refusals.require_divisor("model.hidden", c.model.hidden);
  const std::int64_t rows = padded_vocab(c.model.vocab);
  refusals.refuse("model.vocab", rows % c.tensor.parallel != 0,
                  fmt::format("does not divide model.vocab = {}, which is stored as {}", c.model.vocab, rows),
                  "use a number of ranks that divides it");
  refusals.refuse_key("model.attention_dropout", c.model.dropout_of(&ModelConfig::attention_dropout) > 0,
                      ", whose draws are not those of one rank", "set model.attention_dropout = 0");
  refusals.refuse_key("train.deterministic", c.train.deterministic, "",
                      "leave one of them out: sums of parts follow from how many ranks have them");
  if (const OptimizerKind* const kind = find_optimizer_kind(c.train.optimizer))
    refusals.refuse(
        "train.optimizer", kind->takes_whole,
        fmt::format("does not go with train.optimizer \"{}\", which takes parameters as a whole", kind->name),
        "use adamw, sgd, lion or schedule_free_adamw, or leave tensor.parallel out");
  refusals.refuse_key("lora.rank", c.lora.is_on(), ": adapters are not cut", "leave one of them out");
  refusals.refuse_key("precision.quantize", c.precision.quantize != "none", ", whose blocks parts would cross",
                      "leave one of them out");
  refusals.refuse_key("shard.compress_gather", c.shard.compress_gather != "none",
                      ", which rounds what ranks have alike otherwise on each", "leave one of them out");
  refusals.refuse_key("shard.compress_reduce", c.shard.compress_reduce != "none",
                      ", which rounds what ranks have alike otherwise on each", "leave one of them out");
  refusals.refuse_key("plan.apply", c.shard.units == "plan", ": a plan's units are whole", "leave one of them out");
  refusals.refuse("device", c.device == "cuda", "does not go with device = \"cuda\"",
                  "use device = \"cpu\": on GPUs it has not been run");
}

void check_tensor_ranks(const Config& config, int ranks) {
  check_divides("tensor.parallel", config.tensor.parallel, ranks);
  if (config.shard.group_size % config.tensor.parallel != 0)
    throw Error(ExitCode::config,
                fmt::format("tensor.parallel {} does not divide shard.group_size {}", config.tensor.parallel,
                            config.shard.group_size),
                {}, "use groups of a multiple of it");
}

int data_shares(const Config& config, int ranks) { return ranks / static_cast<int>(config.tensor.parallel); }

std::vector<GridAxis> tensor_grid(const Config& config, int ranks) {
  const auto parallel = static_cast<int>(config.tensor.parallel);
  if (parallel == 1) return {};
  return {{.name = "data", .size = ranks / parallel}, {.name = kTensorAxis, .size = parallel, .reads_data = false}};
}

DataShare data_share_of(const Config& config, int rank, int ranks) {
  return {rank / static_cast<int>(config.tensor.parallel), std::max(1, data_shares(config, ranks))};
}

std::string describe_tensor(const Config& config, int ranks, std::int64_t sent_bytes) {
  const std::int64_t parallel = config.tensor.parallel;
  if (parallel == 1) return "";
  const auto share = [parallel](std::int64_t all) { return fmt::format("{} of {}", all / parallel, all); };
  return fmt::format(
      "products cut over {} (tensor), which read the same samples: {} heads, {} of keys and {} hidden elements on "
      "each; "
      "{} of the data; a rank sends {} bytes ({}) to the others of its group in a micro-batch\n",
      format_number(parallel, "rank"), share(config.model.heads), share(config.model.kv_heads),
      share(config.model.hidden), format_number(data_shares(config, ranks), "share"), sent_bytes,
      format_bytes(sent_bytes));
}

}  // namespace zs
