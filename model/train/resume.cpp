#include "model/train/resume.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "model/train/config_schema.h"
#include "model/train/run_dir.h"
#include "runtime/shard/checkpoint_folder.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = "checkpoints";
constexpr std::string_view kConfigPrefix = "config.";
constexpr const char* kTrainTokens = "data.train_tokens";
constexpr const char* kTrainDigest = "data.train_digest";
constexpr const char* kValidationDigest = "data.validation_digest";
constexpr const char* kTrainFiles = "data.train_files";

// What the state was made with and makes no sense without; the order of data, and what its elements mean.
constexpr std::array<std::string_view, 19> kRefused = {
    "model.family",   "model.layers", "model.heads",       "model.width",     "model.context",    "model.vocab",        "model.activation",
    "model.kv_heads", "model.hidden", "model.rotary_base", "model.tied_head", "data.kind",        "train.global_batch", "train.sequence",
    "train.seed",     "train.beta1",  "train.beta2",       "train.eps",       "data.train_tokens"};
// What says where and how fast, not what. Files may move: their names, their length and what they hold are compared instead.
constexpr std::array<std::string_view, 9> kFree = {"name",
                                                   "train.time_limit",
                                                   "device",
                                                   "model.preset",
                                                   "data.train",
                                                   "data.validation",
                                                   "data.token_bytes",
                                                   "train.recompute",
                                                   "data.validation_fraction"};
constexpr std::array<std::string_view, 5> kFreeTables = {"shard.", "comm.", "watchdog.", "run.", "checkpoint."};

Error none_found(const std::string& where) {
  return {ExitCode::checkpoint, "there is no checkpoint to go on from", where, "start without --resume, or name a checkpoint's folder"};
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

ResumePoint newest(const std::string& run_dir) {
  const auto steps = list_checkpoints(root_of(run_dir));
  if (steps.empty()) throw none_found(root_of(run_dir));
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
    } catch (const Error& error) {
      if (error.code() != ExitCode::checkpoint) throw;
      point.damaged.push_back(point.step);
    }
  }
  throw none_found(root_of(run_dir));
}

/// The run directory that `path`, RUN/checkpoints/step-N, is in; empty when it is in none.
std::string run_of(const fs::path& path) {
  const fs::path root = fs::absolute(path).lexically_normal().parent_path();
  return root.filename() == kFolder ? root.parent_path().string() : std::string();
}

bool is_same_folder(const std::string& a, const std::string& b) {
  std::error_code failed;
  return fs::equivalent(a.empty() ? "." : a, b, failed);
}

/// A checkpoint that was named. Only in its own run, where it is the last one or may become it, does the run go on in place.
ResumePoint named(const ResumeRequest& request) {
  const fs::path path = plain(request.what);
  std::error_code failed;
  if (!fs::is_directory(path, failed)) throw none_found(path.string());
  ResumePoint point;
  if (is_checkpoint(path)) {
    point.checkpoint = path.string();
    point.step = CheckpointReader(point.checkpoint).manifest().step;
    point.run_dir = run_of(path);
  } else {
    point = newest(path.string());
  }
  if (!request.run_dir.empty() && !point.run_dir.empty() && !is_same_folder(point.run_dir, request.run_dir)) point.run_dir.clear();
  return point;
}

/// A new run in `run_dir` would remove the checkpoint that it begins from.
void check_apart(const std::string& checkpoint, const std::string& run_dir) {
  std::error_code failed;
  const fs::path inner = fs::canonical(checkpoint, failed), outer = fs::weakly_canonical(run_dir, failed);
  if (failed || std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first != outer.end()) return;
  throw Error(ExitCode::cannot_create, "the checkpoint lies in the run directory that --overwrite would replace", checkpoint,
              "set another run.dir");
}

std::string latest_place(const ResumeRequest& request) {
  if (!request.run_dir.empty()) return request.run_dir;
  std::string dir = latest_run_dir(request.name, kFolder);
  if (dir.empty()) throw none_found(fmt::format("runs/{}-N", request.name));
  return dir;
}

template <class Keys>
bool is_in(std::string_view key, const Keys& keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

}  // namespace

ResumePoint find_checkpoint(const ResumeRequest& request) {
  if (request.what == "latest-valid") return newest_valid(latest_place(request));
  ResumePoint point = request.what == "latest" ? newest(latest_place(request)) : named(request);
  if (point.run_dir.empty()) {
    if (request.overwrite && !request.run_dir.empty()) check_apart(point.checkpoint, request.run_dir);
    return point;
  }
  const std::int64_t last = list_checkpoints(root_of(point.run_dir)).back();
  if (last > point.step && !request.overwrite) {
    throw Error(ExitCode::cannot_create, fmt::format("the run has later checkpoints, up to step {}", last), root_of(point.run_dir),
                "set another run.dir, or add --overwrite to remove them");
  }
  return point;
}

void clear_way(const ResumePoint& point, std::int64_t keep) {
  if (point.run_dir.empty()) return;
  const std::string root = root_of(point.run_dir);
  const FolderIo io(nullptr);
  for (const std::int64_t step : point.damaged) {
    const std::string folder = step_folder(root, step);
    io.remove_folder(folder + kDamagedSuffix);
    io.rename(folder, folder + kDamagedSuffix);
  }
  remove_later_checkpoints(root, point.step);
  prune_checkpoints(root, keep);  // a run that was killed at its end saves no more
}

std::map<std::string, std::string> run_attributes(const Config& config, const DataFacts& data) {
  std::map<std::string, std::string> attributes;
  Config copy = config;
  for (const ConfigKey& key : config_keys()) attributes[std::string(kConfigPrefix) + std::string(key.name)] = toml_value(key.slot(copy));
  attributes[kTrainTokens] = fmt::format("{}", data.train_tokens);
  attributes[kTrainDigest] = data.train_digest;
  attributes[kValidationDigest] = data.validation_digest;
  attributes[kTrainFiles] = data.train_files;
  return attributes;
}

OnResume on_resume(std::string_view key) {
  if (is_in(key, kRefused)) return OnResume::refused;
  const bool is_free =
      is_in(key, kFree) || std::any_of(kFreeTables.begin(), kFreeTables.end(), [&](auto table) { return key.starts_with(table); });
  return is_free ? OnResume::free : OnResume::named;
}

std::vector<std::string> compare_runs(const std::map<std::string, std::string>& saved, const std::map<std::string, std::string>& now,
                                      const std::string& checkpoint) {
  std::vector<std::string> refused, changed;
  for (const auto& [attribute, value] : now) {
    const auto before = saved.find(attribute);
    if (before == saved.end() || before->second == value) continue;  // a key that the program which saved did not know had its default
    const std::string key = attribute.starts_with(kConfigPrefix) ? attribute.substr(kConfigPrefix.size()) : attribute;
    const OnResume rule = on_resume(key);
    if (rule == OnResume::free) continue;
    const char* const note = key == kTrainDigest || key == kValidationDigest ? " (it is other data)" : "";
    (rule == OnResume::refused ? refused : changed).push_back(fmt::format("{} {} -> {}{}", key, before->second, value, note));
  }
  if (refused.empty()) return changed;
  throw Error(ExitCode::config, fmt::format("a run cannot change what its checkpoint rests on: {}", fmt::join(refused, ", ")), checkpoint,
              "go on with the old values, or start a new run");
}

}  // namespace zs
