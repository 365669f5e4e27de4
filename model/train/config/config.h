#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/families/model_config.h"
#include "model/lora/lora_config.h"
#include "runtime/base/check.h"
#include "runtime/shard/placement/scheme.h"
#include "runtime/shard/placement/unit_layout.h"

namespace zs {

/// Largest train.sequence that is chosen beside model.path where none is given.
inline constexpr std::int64_t kMostDefaultSequence = 2048;

/// Configuration of a run. Plain data: the members' initial values are the defaults that the schema documents
/// (config_schema.h), and after load_config every value is resolved (a preset's sizes, the sequence length ... are
/// filled in).
struct Config {
  using Model = ModelConfig;
  struct Data {
    std::string kind = "text";
    std::vector<std::string> train, validation;  ///< as written: files, globs, folders
    std::vector<double> weights;                 ///< weight of each of `train`; empty: they are one source
    double validation_fraction = 0.1;
    std::int64_t token_bytes = 2;
    std::string tokenizer;
    std::string format = "stream", field = "text", prompt_field, overlong = "refuse", special_tokens = "auto";
    std::string chat_template, train_on = "assistant";  ///< keys of chats
    /// Some targets may be kIgnoredTarget, and count for nothing. Not a key: it follows from those that say what data
    /// is.
    bool has_ignored_targets = false;
    bool operator==(const Data&) const = default;
  };
  /// Loss of pairs, where data.format is "preference".
  struct Preference {
    std::string loss = "dpo";
    double beta = 0.1, label_smoothing = 0, margin = 0.5;
    bool operator==(const Preference&) const = default;
  };
  /// A time, given in seconds or as "H:MM:SS".
  struct Duration {
    double value = 0;
    bool operator==(const Duration&) const = default;
  };
  /// An integer, or "auto": the plan chooses it.
  struct Count {
    std::int64_t value = 0;
    bool is_auto = false;
    bool operator==(const Count&) const = default;
  };
  struct Train {
    std::int64_t steps = 0, global_batch = 0, micro_batch = 1, sequence = 0;  ///< batches count sequences
    double epochs = 0;  ///< instead of steps, until the data is known; 0: none
    double lr = 6e-4, min_lr_ratio = 0.1;
    std::int64_t warmup = 0;
    std::string schedule = "cosine";
    double decay = 0.2, clip = 1.0;
    std::string optimizer = "adamw";
    double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, momentum = 0;
    bool nesterov = false;
    std::vector<std::string> muon;  ///< patterns of the matrices that Muon updates
    double average = 0;
    std::vector<std::string> groups;  ///< "PATTERN: lr=FACTOR, decay=VALUE"
    std::vector<std::string> frozen;  ///< patterns of parameters, or of modules
    std::int64_t seed = 1337;
    bool deterministic = false;
    std::vector<std::string> recompute = {"none"};  ///< one word, or "PATTERN=PART"
    std::string loss = "tokens";
    std::int64_t loss_chunk = 0;
    Duration time_limit;
    std::int64_t patience = 0;  ///< validations
    bool operator==(const Train&) const = default;
  };
  struct Shard {
    std::string units = "block", strategy = "zero3";
    double unit_mib = -1;
    std::int64_t group_size = 0;
    Reshard reshard_after_forward = true;
    bool keep_root_unsharded = true;
    std::int64_t prefetch = 1, limit = 0;
    bool reduce_every_micro_batch = true, all_reduce_every_micro_batch = false;
    std::int64_t max_reductions_in_flight = 2;
    std::string layout = "flat";
    std::int64_t min_shard_bytes = 0;
    std::string compress_gather = "none", compress_reduce = "none";
    std::vector<std::string> dims;  ///< "PATTERN=DIM"
    std::string zero_copy = "auto";
    bool pregather = false;
    bool operator==(const Shard&) const = default;
  };
  /// Experts of mixtures over ranks.
  struct Experts {
    std::vector<std::string> apply;  ///< patterns of modules; empty: all experts
    std::int64_t parallel = 1, group_size = 0;
    std::string dispatcher = "all_to_all";
    double divide = 0;
    bool operator==(const Experts&) const = default;
  };
  /// Products of the model over ranks.
  struct TensorAxis {
    std::int64_t parallel = 1;
    bool operator==(const TensorAxis&) const = default;
  };
  /// Plan of which modules are units, where shard.units is "plan". The rules are "PATTERN=VALUE".
  struct Plan {
    std::vector<std::string> apply, hooks, reshard, strategy, param, reduce, output, gather;
    std::int64_t forward = 0, backward = 0;
    bool operator==(const Plan&) const = default;
  };
  struct Precision {
    std::string param = "f32", reduce = "f32";
    std::string output, validation;  ///< empty: as param
    std::string rounding = "nearest", frozen = "auto", quantize = "none";
    bool operator==(const Precision&) const = default;
  };
  struct Offload {
    std::string weights = "device", gradients = "device", accumulator = "device", moments = "device",
                activations = "device";
    std::string update = "device";
    Count resident_units;
    double cpu_link_gbs = 0;
    std::int64_t device_mib = 0, host_mib = 0;
    /// Folder of a role that the host keeps, where a disk does; else empty.
    static std::string disk_of(const std::string& place) {
      return place.starts_with("disk:") ? place.substr(sizeof("disk:") - 1) : "";
    }
    /// Folders of all roles, once each.
    std::set<std::string> disk_folders() const {
      std::set<std::string> folders{disk_of(weights), disk_of(moments)};
      folders.erase("");
      return folders;
    }
    bool has_disk() const { return !disk_folders().empty(); }
    /// True if the host keeps anything of the optimizer's.
    bool has_any() const { return weights != "device" || gradients != "device" || moments != "device"; }
    /// True if the host keeps anything of units, of which some may stay resident.
    bool has_any_of_units() const { return has_any() || accumulator != "device"; }
    bool uses_host() const { return has_any_of_units() || activations != "device"; }
    bool operator==(const Offload&) const = default;
  };
  struct Comm {
    std::string transport = "auto";
    std::int64_t ranks = 1;
    double timeout_s = 300, race_check_ms = 0;
    std::string omit = "none", interface = {};
    bool operator==(const Comm&) const = default;
  };
  struct Cuda {
    bool tf32 = false, share_gpu = false;
    std::string transport = "auto", registration = "auto";
    bool graph = false, fused_gelu = true, tune_products = false;
    std::string attention = "auto", libraries;
    bool operator==(const Cuda&) const = default;
  };
  struct Watch {
    double init_s = 300, first_step_s = 300, step_s = 120, checkpoint_s = 300;
    bool hosts = true;
    bool operator==(const Watch&) const = default;
  };
  struct Checkpoint {
    std::int64_t every = 0, keep = 3;
    double every_minutes = 0;
    bool background = false;
    std::string on_full = "stop";
    bool keep_best = false;
    std::string frozen;  ///< "exclude" or "include"
    bool is_regular() const { return every > 0 || every_minutes > 0; }
    bool leaves_out_frozen() const { return frozen == "exclude"; }
    bool operator==(const Checkpoint&) const = default;
  };
  struct Run {
    std::string dir;
    std::int64_t validate_every = 0, validate_batches = 8, lost_updates_every = 0, sample_tokens = 200;
    bool validate_first = false, validate_average = false;
    std::vector<std::string> evaluate;  ///< files of tasks
    std::string sample_prompt;
    std::string export_to, export_dtype = "f32";
    std::int64_t export_shard_mib = 5120;
    bool tensorboard = true;
    bool operator==(const Run&) const = default;
  };

  std::string name, device = "auto";
  Model model;
  LoraConfig lora;
  Data data;
  Preference preference;
  Train train;
  Shard shard;
  Experts experts;
  TensorAxis tensor;
  Plan plan;
  Precision precision;
  Offload offload;
  Comm comm;
  Cuda cuda;
  Watch watchdog;
  Checkpoint checkpoint;
  Run run;
  /// The keys that were given, and where: "file:line" or "--set ...". No part of what a run is, so they compare equal.
  struct Given {
    std::map<std::string, std::string> keys;
    std::map<std::string, std::string> site;  ///< and those that only a file of the machine or the user gave
    bool contains(const std::string& key) const { return keys.contains(key); }
    bool operator==(const Given&) const { return true; }
  };
  Given given;
  bool operator==(const Config&) const = default;
};

/// Every problem of a configuration at once (at most kMaxProblems). As an Error it reads as the first of them.
class ConfigError : public Error {
 public:
  static constexpr std::size_t kMaxProblems = 20;
  /// `problems` is not empty; the rest beyond kMaxProblems is dropped.
  explicit ConfigError(std::vector<Error> problems);
  const std::vector<Error>& problems() const { return problems_; }

 private:
  std::vector<Error> problems_;
};

/// The use that a configuration is read for: steps, or only the model that it names, for which no key of data and steps
/// is required.
enum class ConfigFor : std::uint8_t { training, model };

/// A key that a file gives for all runs of a machine or a user.
struct SiteDefault {
  std::string key, value;  ///< as TOML
  std::string where;       ///< "file:line"
};

/// Reads the TOML file `path`, applies `overrides` ("key=value", the later wins; the value is TOML, or bare text where
/// the key is a string), checks every key and their combinations, and resolves what is derived. Throws ConfigError;
/// creates nothing. Whatever neither gives is as `site` says, the later before the earlier.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {},
                   ConfigFor use = ConfigFor::training, const std::vector<SiteDefault>& site = {});
/// Parses the configuration from TOML text; `source` names it in messages, and its stem is the default name.
Config parse_config(std::string_view text, const std::string& source, const std::vector<std::string>& overrides = {},
                    ConfigFor use = ConfigFor::training, const std::vector<SiteDefault>& site = {});
/// ConfigError where an override names no key, or gives it no value that it can have.
void check_overrides(const std::vector<std::string>& overrides);
/// "train.lr" of " train.lr = 1".
std::string overridden_key(const std::string& text);

/// The resolved configuration as TOML with every key; reading it back gives the same Config.
std::string to_toml(const Config& config);

/// Scheme by which the run is sharded.
SchemeOptions scheme_options(const Config& config);

/// Shares of the data of so many ranks: those of a group of tensor.parallel read the same.
int data_shares(const Config& config, int ranks);
/// Micro-batches that each rank computes in a step, of so many shares. Where these do not divide them, the last is
/// empty on some.
std::int64_t micro_batches_a_rank(const Config& config, int shares);

/// Sets what the training data decides, of sequences of `sequence` tokens: train.sequence where it is 0, and the steps
/// that train.epochs are. Throws Error(config) where these do not go with other keys.
void resolve_by_data(Config& config, std::int64_t sequence, std::int64_t sequences);

/// Checks what only the number of ranks decides: each must have a micro-batch, and groups of ranks must divide them.
/// Throws Error(config) that says which values would work. `hosts`: host of each rank; empty: they are on one.
void check_ranks(const Config& config, int ranks, std::vector<int> hosts = {});

}  // namespace zs
