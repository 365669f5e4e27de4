#include "model/train/config/config_resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "model/train/config/config_cuda.h"
#include "model/train/config/config_defaults.h"
#include "model/train/config/config_experts.h"
#include "model/train/config/config_frozen.h"
#include "model/train/config/config_lora.h"
#include "model/train/config/config_model.h"
#include "model/train/config/config_offload.h"
#include "model/train/config/config_optimizer.h"
#include "model/train/config/config_plan.h"
#include "model/train/config/config_preference.h"
#include "model/train/config/config_recompute.h"
#include "model/train/config/config_schema.h"
#include "model/train/config/config_tensor.h"
#include "model/train/config/expand_path.h"
#include "model/train/config/pattern_entries.h"
#include "model/train/config/schedule.h"
#include "model/train/config/toml_text.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostDefaultSequence = 2048;  // beside model.path

std::string default_name(const std::string& source) {
  std::string name = fs::path(source).stem().string();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-' && c != '.') c = '-';
  name.resize(std::min<std::size_t>(name.size(), 100));
  return name.empty() || name.front() == '.' ? "run" : name;
}

void check_name(ConfigDraft& draft) {
  const std::string& name = draft.config.name;
  const bool is_plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c < 0x80 && std::isalnum(c)) || c == '.' || c == '_' || c == '-';
  });
  if (name.empty() || name.size() > 100 || name.front() == '.' || !is_plain)
    draft.report("name", fmt::format("name {} cannot name a folder", toml_string(name)),
                 "use 1 to 100 letters, digits, '.', '_' or '-', not starting with '.'");
}

void resolve_precision(ConfigDraft& draft) {
  Config& c = draft.config;
  for (const auto& [key, value] : {std::pair("precision.output", &c.precision.output),
                                   std::pair("precision.validation", &c.precision.validation)}) {
    if (!draft.is_given(key)) {
      *value = c.precision.param;
    } else if (are_good(draft, {"precision.param", key}) && c.precision.param == "f32" && *value == "bf16") {
      draft.report(key, fmt::format("{} \"bf16\" does not go with precision.param \"f32\"", key),
                   "leave it out, or use param = \"bf16\"");
    }
  }
  if (are_good(draft, {"precision.param", "precision.rounding"}) && c.precision.param == "f32" &&
      c.precision.rounding != "nearest")
    draft.report("precision.rounding", "precision.rounding \"stochastic\" does not go with precision.param \"f32\"",
                 "f32 parameters are not rounded: leave it out, or use param = \"bf16\"");
  if (are_good(draft, {"precision.param", "precision.reduce"}) && c.precision.param == "f32" &&
      c.precision.reduce == "bf16")
    draft.report("precision.reduce", "precision.reduce \"bf16\" does not go with precision.param \"f32\"",
                 "gradients of f32 parameters are f32: use precision.reduce = \"f32\", or param = \"bf16\"");
  for (const auto& [key, value] : {std::pair("shard.compress_gather", c.shard.compress_gather),
                                   {"shard.compress_reduce", c.shard.compress_reduce}}) {
    if (are_good(draft, {key, "train.deterministic"}) && value != "none" && c.train.deterministic)
      draft.report(key, fmt::format("{} = \"{}\" does not go with train.deterministic", key, value),
                   "what is rounded depends on the number of ranks: leave one of them out");
  }
}

/// Keys that a strategy decides: given otherwise, they contradict it.
void resolve_strategy(ConfigDraft& draft) {
  Config::Shard& shard = draft.config.shard;
  if (!are_good(draft, {"shard.strategy"})) return;
  const Strategy strategy = strategy_of(shard.strategy);
  const auto contradicts = [&](const char* key, const std::string& value, const char* instead) {
    draft.report(key, fmt::format("{} = {} does not go with shard.strategy \"{}\"", key, value, shard.strategy),
                 instead);
  };
  const bool shards_parameters =
      strategy == Strategy::zero3 || strategy == Strategy::hsdp || strategy == Strategy::nested;
  const char* const kReshard = "shard.reshard_after_forward";
  if (!shards_parameters) {
    if (draft.is_given(kReshard) && are_good(draft, {kReshard}) && !shard.reshard_after_forward.is_off())
      contradicts(kReshard, shard.reshard_after_forward.str(),
                  "leave it out, or use a strategy that shards parameters: zero3, hsdp, nested");
    shard.reshard_after_forward = false;
  } else if (are_good(draft, {kReshard}) && shard.reshard_after_forward.group() != 0 && strategy == Strategy::nested) {
    contradicts(kReshard, shard.reshard_after_forward.str(),
                "use true or false; a number of ranks goes with zero3 and hsdp");
  }
  const char* const kReduce = "shard.reduce_every_micro_batch";
  const bool is_fixed = strategy == Strategy::zero1 || strategy == Strategy::zero2,
             usual = strategy != Strategy::zero1 && strategy != Strategy::shard_grad_op;
  if (!draft.is_given(kReduce)) {
    shard.reduce_every_micro_batch = usual;
  } else if (is_fixed && are_good(draft, {kReduce}) && shard.reduce_every_micro_batch != usual) {
    contradicts(kReduce, usual ? "false" : "true", usual ? "use zero1" : "use zero2");
  }
  const bool has_replicas = strategy == Strategy::ddp || strategy == Strategy::hsdp;
  if (!has_replicas && shard.all_reduce_every_micro_batch && are_good(draft, {"shard.all_reduce_every_micro_batch"}))
    contradicts("shard.all_reduce_every_micro_batch", "true", "leave it out; only ddp and hsdp have replicas");
  const bool has_groups = strategy == Strategy::hsdp || strategy == Strategy::nested;
  const bool may_have_groups = has_groups || (are_good(draft, {"plan.strategy"}) && has_groups_by_plan(draft.config));
  if (!are_good(draft, {"shard.group_size"})) return;
  if (!may_have_groups && shard.group_size != 0)
    contradicts("shard.group_size", fmt::format("{}", shard.group_size),
                "leave it out; only hsdp and nested have small groups");
}

void check_units(ConfigDraft& draft) {
  const Config::Shard& shard = draft.config.shard;
  if (are_good(draft, {"shard.units", "shard.unit_mib"}) && shard.units != "block" && shard.unit_mib > 0)
    draft.report("shard.unit_mib",
                 fmt::format("shard.unit_mib = {} does not go with shard.units \"{}\"", shard.unit_mib, shard.units),
                 "leave it out, or use shard.units = \"block\"");
}

/// The flat layout has no use for what is said of single parameters.
void check_layout(ConfigDraft& draft) {
  const Config::Shard& shard = draft.config.shard;
  const auto of_parameters = [&](const char* key, bool is_set, const std::string& value) {
    if (is_set && shard.layout == "flat" && are_good(draft, {"shard.layout", key}))
      draft.report(key, fmt::format("{} = {} does not go with shard.layout \"flat\"", key, value),
                   "leave it out, or use shard.layout = \"per_parameter\"");
  };
  of_parameters("shard.min_shard_bytes", shard.min_shard_bytes != 0, fmt::format("{}", shard.min_shard_bytes));
  of_parameters("shard.dims", !shard.dims.empty(), fmt::format("[\"{}\"]", fmt::join(shard.dims, "\", \"")));
  if (!are_good(draft, {"shard.dims"})) return;
  for (const std::string& entry : shard.dims) {
    try {
      DimPattern::parse(entry);
    } catch (const Error& error) {
      draft.report("shard.dims", error.what_happened(), error.what_to_do());
    }
  }
}

bool is_file_or_folder(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path, failed);
}

/// Expands paths, so that config.toml says which folders they were.
void expand_paths(ConfigDraft& draft) {
  Config& c = draft.config;
  const auto expand = [&](const char* key, std::string& path) {
    try {
      path = expand_path(path);
    } catch (const Error& error) {
      draft.report(key, fmt::format("{}: {}", key, error.what_happened()), error.what_to_do());
    }
  };
  for (const auto& [key, name] :
       {std::pair("data.tokenizer", &c.data.tokenizer), std::pair("data.chat_template", &c.data.chat_template)}) {
    expand(key, *name);
    if (const fs::path path = *name, beside = fs::path(draft.source).parent_path() / path;
        path.is_relative() && !path.empty() && !is_file_or_folder(path) && is_file_or_folder(beside))
      *name = beside.string();
  }
  for (std::string& path : c.data.train) expand("data.train", path);
  for (std::string& path : c.data.validation) expand("data.validation", path);
  for (std::string& path : c.run.evaluate) expand("run.evaluate", path);
  expand("run.dir", c.run.dir);
  expand("run.export", c.run.export_to);
  expand("lora.path", c.lora.path);
  expand("lora.export", c.lora.export_to);
  for (const auto& [key, place] :
       {std::pair("offload.weights", &c.offload.weights), std::pair("offload.moments", &c.offload.moments)}) {
    std::string folder = Config::Offload::disk_of(*place);
    if (folder.empty()) continue;
    expand(key, folder);
    *place = "disk:" + folder;
  }
}

void check_data(ConfigDraft& draft) {
  const Config::Data& data = draft.config.data;
  if (!are_good(draft, {"data.token_bytes"})) return;
  if (data.token_bytes == 3) {
    draft.report("data.token_bytes", "data.token_bytes is 3", "use 2 or 4");
  } else if (data.token_bytes != 2 && data.kind == "text" && are_good(draft, {"data.kind"})) {
    draft.report("data.token_bytes",
                 fmt::format("data.token_bytes = {} does not go with data.kind \"text\"", data.token_bytes),
                 "leave it out, or use data.kind = \"tokens\"");
  }
}

/// Documents are of text; and what a field is, JSON alone has.
void check_documents(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (!are_good(draft, {"data.format"})) return;
  const auto needs = [&](const char* key, const std::string& value, bool is_met, const char* what_to_do) {
    if (!is_met && are_good(draft, {key}))
      draft.report(key, fmt::format("{} = \"{}\" does not go with data.format = \"{}\"", key, value, c.data.format),
                   what_to_do);
  };
  const bool is_jsonl = c.data.format == "jsonl", is_stream = c.data.format == "stream";
  const char* const use_jsonl = "leave it out, or use data.format = \"jsonl\"";
  needs("data.field", c.data.field, is_jsonl || c.data.field == Config{}.data.field, use_jsonl);
  needs("data.prompt_field", c.data.prompt_field, is_jsonl || c.data.prompt_field.empty(), use_jsonl);
  needs("data.overlong", c.data.overlong, !is_stream || c.data.overlong == "refuse",
        "leave it out, or use data.format = \"lines\", \"files\", \"jsonl\" or \"chat\"");
  const bool is_preference = c.data.format == "preference", is_chat = c.data.format == "chat";
  const char* const use_chat = "leave it out, or use data.format = \"chat\"";
  needs("data.train_on", c.data.train_on, is_chat || c.data.train_on == Config{}.data.train_on, use_chat);
  needs("data.chat_template", c.data.chat_template, is_chat || is_preference || c.data.chat_template.empty(), use_chat);
  needs("data.special_tokens", c.data.special_tokens, !is_chat || c.data.special_tokens != "always",
        "leave it out: the chat template writes the special tokens itself");
  if (is_jsonl && are_good(draft, {"data.field"}) && c.data.field.empty())
    draft.report("data.field", "data.field is empty", "name the field that has the text");
  if (is_jsonl && are_good(draft, {"data.field", "data.prompt_field"}) && c.data.field == c.data.prompt_field)
    draft.report("data.prompt_field", fmt::format("data.prompt_field and data.field are both \"{}\"", c.data.field),
                 "name the field of the prompt, and that of what follows it");
  if (is_chat && are_good(draft, {"data.tokenizer", "model.path"}) && c.data.tokenizer.empty())
    draft.report("data.format", "data.format = \"chat\" without a tokenizer",
                 "set model.path or data.tokenizer to a folder that has one, and a chat template");
  if (is_stream) return;
  if (are_good(draft, {"data.kind"}) && c.data.kind != "text")
    draft.report("data.format",
                 fmt::format("data.format = \"{}\" does not go with data.kind = \"{}\"", c.data.format, c.data.kind),
                 "leave it out, or use data.kind = \"text\"");
  if (are_good(draft, {"cuda.graph"}) && c.cuda.graph)
    draft.report("cuda.graph", fmt::format("cuda.graph = true does not go with data.format = \"{}\"", c.data.format),
                 "leave it out: a graph replays the same documents in every step");
}

void check_weights(ConfigDraft& draft) {
  const Config::Data& data = draft.config.data;
  if (data.weights.empty() || !are_good(draft, {"data.weights", "data.train", "data.validation_fraction"})) return;
  const double all = std::accumulate(data.weights.begin(), data.weights.end(), 0.0);
  const double least = *std::min_element(data.weights.begin(), data.weights.end());
  constexpr double kLeastShare = 1e-4;
  if (data.weights.size() != data.train.size()) {
    draft.report("data.weights",
                 fmt::format("data.weights has {}, and data.train {}", data.weights.size(), data.train.size()),
                 "give each entry of data.train one weight");
  } else if (least < all * kLeastShare) {
    draft.report("data.weights", fmt::format("data.weights has {}, which is less than 1/10000 of all", least),
                 "give it more, or leave this source out");
  } else if (data.validation_fraction != 0 && data.validation.empty()) {
    draft.report("data.validation_fraction",
                 fmt::format("data.validation_fraction = {} does not go with data.weights", data.validation_fraction),
                 "name data.validation, or leave it out");
  }
}

void check_validation(ConfigDraft& draft) {
  const Config& c = draft.config;
  const bool has_data = !c.data.validation.empty() || c.data.validation_fraction > 0;
  const bool knows_data = are_good(draft, {"run.validate_every", "data.validation_fraction", "data.validation"});
  if (knows_data && c.run.validate_every > 0 && !has_data && c.run.evaluate.empty())
    draft.report("run.validate_every", "run.validate_every is set, but there is no validation data",
                 "set data.validation or data.validation_fraction, or run.validate_every = 0");
  const auto needs_validation = [&](const char* key, bool is_set, const std::string& value, bool needs_data) {
    if (!is_set || !are_good(draft, {key, "run.validate_every"})) return;
    if (c.run.validate_every == 0)
      draft.report(key, fmt::format("{} = {} without a validation", key, value),
                   "set run.validate_every above 0, or leave it out");
    else if (needs_data && knows_data && !has_data && !c.run.evaluate.empty())
      draft.report(key, fmt::format("{} = {} without validation data", key, value),
                   "set data.validation or data.validation_fraction, or leave it out");
  };
  needs_validation("train.patience", c.train.patience > 0, fmt::format("{}", c.train.patience), true);
  needs_validation("checkpoint.keep_best", c.checkpoint.keep_best, "true", true);
  needs_validation("run.validate_first", c.run.validate_first, "true", false);
  needs_validation("run.evaluate", !c.run.evaluate.empty(), fmt::format("[{}]", fmt::join(c.run.evaluate, ", ")),
                   false);
}

void check_rest(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (are_good(draft, {"checkpoint.background", "checkpoint.every", "checkpoint.every_minutes"}) &&
      c.checkpoint.background && !c.checkpoint.is_regular())
    draft.report("checkpoint.background", "checkpoint.background = true without regular checkpoints",
                 "set checkpoint.every or checkpoint.every_minutes, or leave it out");
  check_validation(draft);
  if (are_good(draft, {"run.validate_average", "train.average"}) && c.run.validate_average && c.train.average == 0)
    draft.report("run.validate_average", "run.validate_average = true without an average of the weights",
                 "set train.average, such as 0.999, or leave it out");
  if (are_good(draft, {"comm.transport", "comm.ranks"}) && c.comm.transport != "auto" && c.comm.transport != "local" &&
      c.comm.ranks != 1)
    draft.report("comm.ranks",
                 fmt::format("comm.ranks {} does not go with comm.transport = \"{}\"", c.comm.ranks, c.comm.transport),
                 "use mpirun -np, or comm.transport = \"local\"");
}

/// Fills in what is required of steps that nobody will take.
void fill_required(ConfigDraft& draft) {
  Config& c = draft.config;
  const auto is_missing = [&](const char* key) { return !draft.is_given(key) && are_good(draft, {key}); };
  if (is_missing("data.train")) c.data.train = {"none"};
  if (is_missing("train.steps")) c.train.steps = 1;
  if (is_missing("train.global_batch")) c.train.global_batch = c.train.micro_batch;
}

}  // namespace

bool are_good(const ConfigDraft& draft, std::initializer_list<const char*> keys) {
  return std::none_of(keys.begin(), keys.end(), [&](const char* key) { return draft.bad.count(key) != 0; });
}

std::string ConfigDraft::where(const std::string& key) const {
  if (const auto found = given.find(key); found != given.end()) return found->second;
  const auto found = site.find(key);
  return found == site.end() ? source : found->second;
}

void ConfigDraft::report(const std::string& key, std::string what, std::string what_to_do) {
  bad.insert(key);
  problems.emplace_back(ExitCode::config, std::move(what), where(key), std::move(what_to_do));
}

void resolve_config(ConfigDraft& draft) {
  Config& c = draft.config;
  if (draft.use == ConfigFor::model) fill_required(draft);
  for (const ConfigKey& key : config_keys()) {
    const std::string name(key.name);
    if (draft.use == ConfigFor::training && key.is_required() && !draft.is_given(name) && draft.bad.count(name) == 0)
      draft.report(name, name + " is missing", fmt::format("give it ({})", key.type()));
  }
  if (!draft.is_given("name")) c.name = default_name(draft.source);
  expand_paths(draft);
  resolve_model(draft);
  check_steps(draft);
  resolve_defaults(draft);
  check_name(draft);
  check_model(draft);
  resolve_plan(draft);  // before whatever asks which units there are
  resolve_lora(draft);
  resolve_frozen(draft);
  check_sizes(draft);
  check_schedule(draft);
  check_recompute(draft);
  resolve_optimizer(draft);
  resolve_precision(draft);
  resolve_strategy(draft);
  check_units(draft);
  check_experts_over_ranks(draft);
  check_tensor_over_ranks(draft);
  check_layout(draft);
  check_data(draft);
  check_offload(draft);
  check_cuda(draft);
  check_documents(draft);
  check_preference(draft);
  check_weights(draft);
  check_rest(draft);
}

SchemeOptions scheme_options(const Config& config) {
  const Strategy strategy = strategy_of(config.shard.strategy);
  const bool has_groups = strategy == Strategy::hsdp || strategy == Strategy::nested;  // else they are a plan's
  return {.strategy = strategy,
          .group_size = has_groups ? static_cast<int>(config.shard.group_size / config.tensor.parallel) : 0,
          .reshard_after_forward = config.shard.reshard_after_forward,
          .reduce_every_micro_batch = config.shard.reduce_every_micro_batch,
          .all_reduce_every_micro_batch = config.shard.all_reduce_every_micro_batch,
          .deterministic = config.train.deterministic};
}

std::int64_t micro_batches_a_rank(const Config& config, int shares) {
  const std::int64_t all = config.train.global_batch / config.train.micro_batch;
  return (all + shares - 1) / shares;
}

void check_ranks(const Config& config, int ranks, std::vector<int> hosts) {
  ZS_CHECK(ranks >= 1, "{} ranks", ranks);
  hosts.resize(static_cast<std::size_t>(ranks));
  check_tensor_ranks(config, ranks);
  const int shares = data_shares(config, ranks);
  const RankGrid grid(tensor_grid(config, ranks), 0, ranks);
  const ShardScheme scheme(with_host_groups(scheme_options(config), hosts, grid), grid.sub_grid());  // for its checks
  check_plan_ranks(config, ranks);
  check_expert_ranks(config, ranks);
  const std::int64_t batch = config.train.global_batch, micro = config.train.micro_batch;
  if (batch >= micro * shares) return;
  const std::int64_t most = batch / micro * config.tensor.parallel;
  throw Error(
      ExitCode::config,
      fmt::format("train.global_batch {} in micro-batches of {} is too small for {} ranks{}", batch, micro, ranks,
                  shares == ranks ? "" : fmt::format(", {} of which read the same samples", config.tensor.parallel)),
      {},
      fmt::format("use {} or more, at most {} rank{}{}", micro * shares, most, most == 1 ? "" : "s",
                  batch >= shares ? ", or a smaller train.micro_batch" : ""));
}

}  // namespace zs
