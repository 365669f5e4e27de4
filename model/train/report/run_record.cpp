#include "model/train/report/run_record.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "model/train/config/config.h"
#include "model/train/run_dir/run_mark.h"
#include "runtime/base/check.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A number, or null: one that is not finite.
template <class Number>
Number number_of(const Json& line, const char* key) {
  const Json& value = line.at(key);
  return value.is_null() ? std::numeric_limits<Number>::quiet_NaN() : value.get<Number>();
}

std::vector<LostShare> lost_updates_of(const Json& groups) {
  std::vector<LostShare> shares;
  for (const auto& [group, of] : groups.items()) {
    shares.push_back({group, of.at("elements").get<double>(), of.at("f32").get<double>(), {}});
    if (of.contains("bf16")) shares.back().copies = of["bf16"].get<double>();
  }
  return shares;
}

/// Metrics of a line; nothing where the text is no line of a log.
std::optional<StepMetrics> metrics_of(const std::string& text) {
  try {
    const Json line = Json::parse(text);
    StepMetrics m{.step = line.at("step").get<std::int64_t>(),
                  .loss = number_of<float>(line, "loss"),
                  .grad_norm = number_of<float>(line, "grad_norm"),
                  .lr = number_of<double>(line, "lr"),
                  .tokens = line.at("tokens").get<std::int64_t>(),
                  .tokens_per_s = number_of<double>(line, "tokens_per_s"),
                  .step_ms = number_of<double>(line, "step_ms"),
                  .peak_bytes = line.at("peak_bytes").get<std::int64_t>()};
    if (line.contains("val_loss")) m.val_loss = number_of<float>(line, "val_loss");
    if (line.contains("skipped_steps")) m.skipped_steps = line["skipped_steps"].get<std::int64_t>();
    if (line.contains("peak_by_kind")) m.peak_by_kind = line["peak_by_kind"].get<std::map<std::string, std::int64_t>>();
    if (line.contains("host_bytes")) m.host_bytes = line["host_bytes"].get<std::int64_t>();
    if (line.contains("data_wait_ms")) m.data_wait_ms = number_of<double>(line, "data_wait_ms");
    if (line.contains("lost_updates")) m.lost_updates = lost_updates_of(line["lost_updates"]);
    return m;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::string whole_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

fs::file_time_type time_of(const std::string& path) {
  std::error_code failed;
  const auto time = fs::last_write_time(path, failed);
  return failed ? fs::file_time_type::min() : time;
}

std::string resumable(const std::string& dir) {
  std::vector<std::int64_t> steps;
  try {
    steps = list_checkpoints(dir + "/checkpoints");
  } catch (const Error&) {  // a folder that cannot be listed offers none
  }
  if (steps.empty()) return "no checkpoint is saved";
  return fmt::format("--resume latest goes on after step {}", *std::max_element(steps.begin(), steps.end()));
}

/// A run that ends in order saves its weights last.
void find_state(const std::string& dir, RunRecord& record) {
  const std::int64_t done = record.last ? record.last->step : 0;
  const std::string metrics = dir + "/metrics.jsonl", weights = dir + "/model.safetensors";
  const bool is_saved = fs::exists(weights) && time_of(weights) >= time_of(metrics);
  if (is_in_use(metrics)) {
    record.state = RunState::running;
  } else if (is_saved && done >= record.planned_steps) {
    record.state = RunState::finished;
  } else if (is_saved) {
    record.state = RunState::stopped;
    record.detail = fmt::format("after step {}; {}", done, resumable(dir));
  } else if (record.last && !(std::isfinite(record.last->loss) && std::isfinite(record.last->grad_norm))) {
    record.state = RunState::failed;
    record.detail = fmt::format("in step {}, where loss or gradient is not finite; {}", done, resumable(dir));
  } else {
    record.state = RunState::broken_off;
    record.detail = fmt::format("after step {}; {}", done, resumable(dir));
  }
}

}  // namespace

const char* name_of(RunState state) {
  switch (state) {
    case RunState::running: return "running";
    case RunState::finished: return "finished";
    case RunState::stopped: return "stopped";
    case RunState::failed: return "failed";
    case RunState::broken_off: return "broken off";
  }
  return "?";
}

void RunRecord::add_lost_updates(std::int64_t step, const std::vector<LostShare>& shares) {
  if (shares.empty()) return;
  double all = 0, of_masters = 0, of_copies = 0;
  bool has_copies = false;
  for (const LostShare& share : shares) {
    all += share.elems;
    of_masters += share.elems * share.masters;
    of_copies += share.elems * share.copies.value_or(share.masters);
    has_copies = has_copies || share.copies;
  }
  lost_updates = shares;
  lost_masters.add(step, of_masters / all);
  if (has_copies) lost_copies.add(step, of_copies / all);
}

void RunRecord::add(const StepMetrics& metrics) {
  loss.add(metrics.step, metrics.loss);
  grad_norm.add(metrics.step, metrics.grad_norm);
  lr.add(metrics.step, metrics.lr);
  tokens_per_s.add(metrics.step, metrics.tokens_per_s);
  peak_bytes.add(metrics.step, static_cast<double>(metrics.peak_bytes));
  if (metrics.host_bytes > 0) host_bytes.add(metrics.step, static_cast<double>(metrics.host_bytes));
  data_wait_ms.add(metrics.step, metrics.data_wait_ms);
  waiting_steps += metrics.data_wait_ms > 0 ? 1 : 0;
  data_wait_s += metrics.data_wait_ms > 0 ? metrics.data_wait_ms * 1e-3 : 0;
  add_lost_updates(metrics.step, metrics.lost_updates);
  train_s += std::isfinite(metrics.step_ms) ? metrics.step_ms * 1e-3 : 0;
  if (!metrics.peak_by_kind.empty()) kinds = metrics.peak_by_kind;
  last = metrics;
  if (metrics.val_loss) add_validation(metrics.step, *metrics.val_loss);
}

void RunRecord::add_validation(std::int64_t step, float val_loss) {
  validation.add(step, val_loss);
  last_validation = val_loss;
  if (std::isfinite(val_loss) && (best_step == 0 || val_loss < best_validation)) {
    best_step = step;
    best_validation = val_loss;
  }
}

void read_metrics(const std::string& path, RunRecord& record) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw Error(ExitCode::dataset, fmt::format("the run's metrics cannot be read: {}", system_reason(errno)), path,
                "check the permissions");
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {  // without its end a line is still being written
    ++number;
    const auto metrics = metrics_of(line);
    if (metrics && metrics->step > (record.last ? record.last->step : 0))
      record.add(*metrics);
    else
      record.damaged_lines.push_back(number);
  }
}

RunRecord read_run(const std::string& dir) {
  std::error_code failed;
  if (!fs::is_directory(dir, failed))
    throw Error(ExitCode::dataset, fs::exists(dir, failed) ? "this is no folder" : "there is no such folder", dir,
                "name the directory of a run: train --report RUN_DIR");
  if (!RunMark::find(dir))
    throw Error(ExitCode::dataset, "this folder is no run's directory: it has no " + std::string(RunMark::kFile), dir,
                "name the directory of a run: train --report RUN_DIR");
  RunRecord record;
  record.config_toml = whole_file(dir + "/config.toml");
  record.name = fs::path(dir).lexically_normal().filename().string();
  try {
    const Config config = parse_config(record.config_toml, dir + "/config.toml");
    record.name = config.name;
    record.planned_steps = config.train.steps;
  } catch (const Error&) {  // changed by hand, or of another version: its text is shown all the same
  }
  read_metrics(dir + "/metrics.jsonl", record);
  find_state(dir, record);
  return record;
}

}  // namespace zs
