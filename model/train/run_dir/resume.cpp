#include "model/train/run_dir/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "model/train/config/config_schema.h"
#include "model/train/config/site_defaults.h"
#include "model/train/run_dir/run_dir.h"
#include "runtime/base/parse_integer.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "checkpoints";
constexpr std::string_view kConfigPrefix = "config.";
constexpr const char* kTrainTokens = "data.train_tokens";
constexpr const char* kTrainDigest = "data.train_digest";
constexpr const char* kValidationDigest = "data.validation_digest";
constexpr const char* kTrainFiles = "data.train_files";
// Keys that decide what is removed.
constexpr const char *kKeep = "checkpoint.keep", *kKeepBest = "checkpoint.keep_best";

constexpr std::array<std::string_view, 2> kTablesOfModel = {"model.", "lora."};

Error none_found(const std::string& where,
                 const std::string& what_to_do = "name the folder of a checkpoint, or of a run that has one") {
  return {ExitCode::checkpoint, "there is no checkpoint to go on from", where, what_to_do};
}

bool is_checkpoint(const fs::path& path) {
  std::error_code failed;
  return fs::exists(path / kManifestFile, failed) || path.filename().string().starts_with("step-");
}

/// Ends without a slash, so that it has a name.
fs::path plain(const std::string& text) {
  fs::path path = fs::path(text).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

std::string root_of(const std::string& run_dir) { return (fs::path(run_dir) / kFolder).string(); }

bool is_run(const std::string& dir) { return RunMark::find(dir).has_value(); }

/// A folder that has checkpoints, and is not a run's to go on in.
Error no_mark(const std::string& dir, std::int64_t last) {
  return {ExitCode::cannot_create,
          fmt::format("the folder has checkpoints, but not the mark of a run of zshard ({})", RunMark::kFile), dir,
          fmt::format("begin a new run in another run.dir with --resume {}", step_folder(root_of(dir), last))};
}

ResumePoint newest(const std::string& run_dir) {
  const auto steps = list_checkpoints(root_of(run_dir));
  if (steps.empty()) throw none_found(root_of(run_dir), how_to_start(run_dir));
  if (!is_run(run_dir)) throw no_mark(run_dir, steps.back());
  return {step_folder(root_of(run_dir), steps.back()), steps.back(), run_dir, {}};
}

ResumePoint newest_valid(const std::string& run_dir) {
  ResumePoint point = newest(run_dir);
  auto steps = list_checkpoints(root_of(run_dir));
  for (; !steps.empty(); steps.pop_back()) {
    point.step = steps.back();
    point.checkpoint = step_folder(root_of(run_dir), point.step);
    try {
      CheckpointReader(point.checkpoint).verify();
      return point;
    } catch (const DamagedCheckpoint&) {  // any other error says nothing of its bytes
      point.damaged.push_back(point.step);
    }
  }
  throw none_found(root_of(run_dir),
                   "every one is damaged: start the run anew with --overwrite, or set another run.dir");
}

/// The run directory that `path`, RUN/checkpoints/NAME, is in; empty when it is in none.
std::string run_of(const fs::path& path) {
  const fs::path root = fs::absolute(path).lexically_normal().parent_path();
  return root.filename() == kFolder && is_run(root.parent_path().string()) ? root.parent_path().string()
                                                                           : std::string();
}

bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code failed;
  return fs::equivalent(a.empty() ? "." : a, b, failed);
}

/// Checks that no save or removal that was killed has left it: that may be whole, but whoever goes on removes it.
void check_no_leftover(const fs::path& path) {
  const std::string name = path.filename().string();
  for (const std::string_view suffix : {kWritingSuffix, kRemovingSuffix}) {
    if (name.ends_with(suffix) && step_of(std::string_view(name).substr(0, name.size() - suffix.size())))
      throw Error(ExitCode::checkpoint, "this is what a save or a removal that was killed has left", path.string(),
                  "name another checkpoint, or give this one another name");
  }
}

/// A checkpoint that was named. Only in its own run, where it is the last one or may become it, does the run go on in
/// place.
ResumePoint named(const ResumeRequest& request) {
  const fs::path path = plain(request.what);
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (failed && status.type() != fs::file_type::not_found)
    throw Error(ExitCode::checkpoint, "the folder cannot be read: " + failed.message(), path.string(),
                advice_for(failed.value()));
  if (!fs::is_directory(status)) throw none_found(path.string());
  check_no_leftover(path);
  ResumePoint point;
  if (is_checkpoint(path)) {
    point.checkpoint = path.string();
    point.step = CheckpointReader(point.checkpoint).manifest().step;
    point.run_dir = run_of(path);
  } else {
    point = newest(path.string());
  }
  if (!request.run_dir.empty() && !point.run_dir.empty() && !is_same_folder(point.run_dir, request.run_dir))
    point.run_dir.clear();
  return point;
}

/// A new run in `run_dir` would remove the checkpoint that it begins from.
void check_apart(const std::string& checkpoint, const std::string& run_dir) {
  std::error_code failed;
  const fs::path inner = fs::canonical(checkpoint, failed), outer = fs::weakly_canonical(run_dir, failed);
  if (failed || std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first != outer.end()) return;
  throw Error(ExitCode::cannot_create, "the checkpoint lies in the run directory that --overwrite would replace",
              checkpoint, "set another run.dir");
}

/// Directory of the run's checkpoints; empty when it has none yet.
std::string latest_place(const ResumeRequest& request) {
  if (!request.run_dir.empty()) return request.run_dir;
  return latest_run_dir(request.name,
                        [](const std::string& dir) { return is_run(dir) && !list_checkpoints(root_of(dir)).empty(); });
}

/// Point in the run's own directory; nothing when it has none and need not.
std::optional<ResumePoint> in_run_dir(const ResumeRequest& request) {
  const std::string dir = latest_place(request);
  const bool is_auto = request.what == "auto";
  if (is_auto && (dir.empty() || list_checkpoints(root_of(dir)).empty())) return std::nullopt;
  if (dir.empty())
    throw none_found(fmt::format("runs/{}-N", request.name), "start without --resume, or with --resume auto");
  return request.what == "latest-valid" ? newest_valid(dir) : newest(dir);
}

bool is_of_model(std::string_view key) {
  return std::any_of(kTablesOfModel.begin(), kTablesOfModel.end(), [&](auto table) { return key.starts_with(table); });
}

/// A key that the program which saved did not know had its default then: of the model's, which must not change, this
/// one. Nothing of others.
std::optional<std::string> saved_value(const std::map<std::string, std::string>& saved, const std::string& attribute,
                                       const std::string& key) {
  const auto found = saved.find(attribute);
  if (found != saved.end()) return found->second;
  Config defaults;
  if (!is_of_model(key)) return std::nullopt;
  const ConfigKey* const known = find_config_key(key);
  return known == nullptr ? std::nullopt : std::optional(toml_value(known->slot(defaults)));
}

}  // namespace

std::string run_dir_asked_for(const Config& config, const std::string& config_path, const std::string& resume) {
  const auto given = config.given.keys.find("run.dir");
  if (given != config.given.keys.end() && given->second.starts_with("--set")) return config.run.dir;
  const bool is_meant = !config.run.dir.empty() || is_in_run_dir(resume);
  const std::string own = is_meant ? run_dir_of_config(config_path) : "";
  return own.empty() ? config.run.dir : own;
}

Config load_resumed_config(const std::string& path, const std::vector<std::string>& overrides,
                           const std::string& resume) {
  const std::vector<SiteDefault> site = site_defaults();
  const auto load = [&](const std::vector<std::string>& keys) {
    return load_config(path, keys, ConfigFor::training, site);
  };
  std::vector<std::string> all = overrides;
  try {
    return load(overrides);
  } catch (const ConfigError& error) {
    if (error.code() != ExitCode::model || resume.empty()) throw;
    // Any model will do to find out where the run is.
    all.insert(all.end(), {"model.path=", "model.preset=tiny", "lora.path=", "lora.rank=0", "lora.alpha=0",
                           "lora.rslora=false", "lora.dora=false", "lora.targets=[]", "lora.rank_pattern=[]",
                           "lora.alpha_pattern=[]", "lora.modules_to_save=[]", "lora.dropout=0", "lora.export="});
    std::optional<ResumePoint> found;
    try {
      const Config config = load(all);
      found = find_checkpoint({resume, run_dir_asked_for(config, path, resume), config.name, true});
    } catch (const Error&) {
      throw error;
    }
    if (!found) throw;
    all = overrides;
    const CheckpointReader reader(found->checkpoint);
    for (const auto& [name, value] : reader.manifest().attributes) {
      const std::string key = name.substr(std::min(kConfigPrefix.size(), name.size()));
      if (name.starts_with(kConfigPrefix) && is_of_model(key) && !key.ends_with(".path") && key != "lora.export" &&
          find_config_key(key) != nullptr)
        all.push_back(fmt::format("{}={}", key, value));
    }
  }
  return load(all);
}

bool is_in_run_dir(const std::string& what) { return what == "latest" || what == "latest-valid" || what == "auto"; }

std::optional<ResumePoint> find_checkpoint(const ResumeRequest& request) {
  std::optional<ResumePoint> found = is_in_run_dir(request.what) ? in_run_dir(request) : named(request);
  if (!found) return found;
  if (found->run_dir.empty()) {
    if (request.overwrite && !request.run_dir.empty()) check_apart(found->checkpoint, request.run_dir);
    return found;
  }
  check_reopen(found->run_dir, RunMark::find(found->run_dir).value());
  const auto steps = list_checkpoints(root_of(found->run_dir));
  if (request.what != "latest-valid" && !request.overwrite && !steps.empty() && steps.back() > found->step) {
    throw Error(ExitCode::cannot_create, fmt::format("the run has later checkpoints, up to step {}", steps.back()),
                root_of(found->run_dir), "set another run.dir, or add --overwrite to remove them");
  }
  return found;
}

void clear_way(const ResumePoint& point, const RunMark& mark, std::int64_t keep, std::optional<std::int64_t> best) {
  const Folder root = mark.checkpoints();
  const FolderIo io(nullptr);
  for (const std::int64_t step : point.damaged) {
    const std::string name = step_name(step);
    std::string aside = name + kDamagedSuffix;
    for (int number = 2; root.type_of(aside) != 0; ++number)
      aside = fmt::format("{}{}-{}", name, kDamagedSuffix, number);
    io.rename(root, name, aside);
  }
  remove_later_checkpoints(root, point.step, nullptr, mark.owner());
  prune_checkpoints(root, keep, nullptr, mark.owner(), best);  // a run that was killed at its end saves no more
}

void keep_as_saved(Config& config, const std::map<std::string, std::string>& saved) {
  const auto value = [&](const char* key) {
    const auto before = saved.find(std::string(kConfigPrefix) + key);
    return before == saved.end() || config.given.contains(key) ? std::string() : before->second;
  };
  if (const auto keep = parse_integer<std::int64_t>(value(kKeep)); keep && *keep >= 0) config.checkpoint.keep = *keep;
  if (const std::string best = value(kKeepBest); !best.empty()) config.checkpoint.keep_best = best == "true";
}

std::map<std::string, std::string> run_attributes(const Config& config, const DataFacts& data) {
  std::map<std::string, std::string> attributes;
  Config copy = config;
  for (const ConfigKey& key : config_keys())
    attributes[std::string(kConfigPrefix) + std::string(key.name)] = toml_value(key.slot(copy));
  attributes[kTrainTokens] = fmt::format("{}", data.train_tokens);
  attributes[kTrainDigest] = data.train_digest;
  attributes[kValidationDigest] = data.validation_digest;
  attributes[kTrainFiles] = data.train_files;
  return attributes;
}

OnResume on_resume(std::string_view key) {
  if (const ConfigKey* const row = find_config_key(key)) return row->on_resume;
  return key == kTrainTokens ? OnResume::refused : OnResume::named;
}

std::vector<std::string> compare_runs(const std::map<std::string, std::string>& saved,
                                      const std::map<std::string, std::string>& now, const std::string& checkpoint) {
  std::vector<std::string> refused, changed;
  for (const auto& [attribute, value] : now) {
    const std::string key = attribute.starts_with(kConfigPrefix) ? attribute.substr(kConfigPrefix.size()) : attribute;
    const auto before = saved_value(saved, attribute, key);
    if (!before || *before == value) continue;
    const OnResume rule = on_resume(key);
    if (rule == OnResume::free) continue;
    const char* const note = key == kTrainDigest || key == kValidationDigest ? " (it is other data)" : "";
    (rule == OnResume::refused ? refused : changed).push_back(fmt::format("{} {} -> {}{}", key, *before, value, note));
  }
  if (refused.empty()) return changed;
  throw Error(ExitCode::config,
              fmt::format("a run cannot change what its checkpoint rests on: {}", fmt::join(refused, ", ")), checkpoint,
              "go on with the old values, or start a new run in another run.dir");
}

}  // namespace zs
