#include "model/train/report/run_record.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "model/json/strict_json.h"
#include "model/train/config/config.h"
#include "model/train/run_dir/run_mark.h"
#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/reader_limits.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A line says something else than a log does.
struct NoMetrics {};

std::int64_t integer_of(const Json& value) {
  const bool is_wide = value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT64_MAX};
  if (!value.is_number_integer() || is_wide) throw NoMetrics();
  return value.get<std::int64_t>();
}

/// A number, or null: one that is not finite.
template <class Number>
Number number_of(const Json& line, const char* key) {
  const Json& value = line.at(key);
  if (value.is_null()) return std::numeric_limits<Number>::quiet_NaN();
  const auto number = value.get<double>();
  return std::abs(number) > double{std::numeric_limits<Number>::max()}
             ? std::copysign(std::numeric_limits<Number>::infinity(), static_cast<Number>(number < 0 ? -1 : 1))
             : static_cast<Number>(number);
}

std::vector<LostShare> lost_updates_of(const Json& groups) {
  std::vector<LostShare> shares;
  for (const auto& [group, of] : groups.items()) {
    shares.push_back({group, of.at("elements").get<double>(), of.at("f32").get<double>(), {}});
    if (of.contains("bf16")) shares.back().copies = of.at("bf16").get<double>();
  }
  return shares;
}

std::vector<MixtureLoad> mixtures_of(const Json& experts) {
  std::vector<MixtureLoad> mixtures;
  for (std::size_t i = 0; i < experts.at("layers").size(); ++i) {
    const auto number = [&](const char* key) {
      const Json& value = experts.at(key).at(i);
      return value.is_null() ? std::numeric_limits<float>::quiet_NaN() : value.get<float>();
    };
    MixtureLoad& mixture = mixtures.emplace_back();
    mixture.layer = integer_of(experts.at("layers").at(i));
    mixture.most = number("load_max"), mixture.least = number("load_min"), mixture.entropy = number("load_entropy");
    if (experts.contains("balance_loss")) mixture.balance_loss = number("balance_loss");
  }
  return mixtures;
}

/// "task/NAME/METRIC", where the name may have more of these.
std::vector<TaskMetric> tasks_of(const Json& line) {
  constexpr std::string_view kBegin = "task/";
  std::vector<TaskMetric> tasks;
  for (const auto& [key, value] : line.items()) {
    const std::size_t last = key.rfind('/');
    if (!key.starts_with(kBegin) || last < kBegin.size()) continue;
    tasks.push_back(
        {key.substr(kBegin.size(), last - kBegin.size()), key.substr(last + 1), number_of<double>(line, key.c_str())});
  }
  return tasks;
}

/// Nothing where the text is no line of a log.
std::optional<StepMetrics> metrics_of(std::string_view text) {
  Json line;
  if (read_json_tree(text, line)) return std::nullopt;
  try {
    StepMetrics m{.step = integer_of(line.at("step")),
                  .loss = number_of<float>(line, "loss"),
                  .grad_norm = number_of<float>(line, "grad_norm"),
                  .lr = number_of<double>(line, "lr"),
                  .tokens = integer_of(line.at("tokens")),
                  .tokens_per_s = number_of<double>(line, "tokens_per_s"),
                  .step_ms = number_of<double>(line, "step_ms"),
                  .peak_bytes = integer_of(line.at("peak_bytes"))};
    if (line.contains("val_loss")) m.val_loss = number_of<float>(line, "val_loss");
    if (line.contains("skipped_steps")) m.skipped_steps = integer_of(line.at("skipped_steps"));
    if (line.contains("peak_by_kind"))
      for (const auto& [kind, bytes] : line.at("peak_by_kind").items()) m.peak_by_kind[kind] = integer_of(bytes);
    if (line.contains("host_bytes")) m.host_bytes = integer_of(line.at("host_bytes"));
    if (line.contains("data_wait_ms")) m.data_wait_ms = number_of<double>(line, "data_wait_ms");
    if (line.contains("lost_updates")) m.lost_updates = lost_updates_of(line.at("lost_updates"));
    if (line.contains("experts")) m.mixtures = mixtures_of(line.at("experts"));
    m.tasks = tasks_of(line);
    return m;
  } catch (const NoMetrics&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

Error unreadable(const std::string& path, const std::string& why) {
  return Error(ExitCode::dataset, "a run's file cannot be read: " + why, path, "restore the file that the run wrote");
}

/// A file of a run that others may have changed: no link, no pipe, no device, and never waited for. Error(dataset).
class RunFile {
 public:
  explicit RunFile(const std::string& path) : path_(path), file_(File::open(path, O_RDONLY | O_NOFOLLOW)) {
    if (!file_.is_open() && file_.error() != ELOOP) throw unreadable(path_, system_reason(file_.error()));
    if (!file_.is_regular()) throw unreadable(path_, "it is no regular file");
  }

  /// At most `most` bytes, from where the last ended; less at the file's end.
  std::string read(std::size_t most) {
    std::string text(most, '\0');
    const auto [bytes, error] = file_.read_at(offset_, text.data(), most);
    if (error != 0) throw unreadable(path_, system_reason(error));
    offset_ += static_cast<std::int64_t>(bytes);
    text.resize(bytes);
    return text;
  }

 private:
  std::string path_;
  File file_;
  std::int64_t offset_ = 0;
};

/// Calls `each` with every line that has an end; null: one that is longer than a log's.
void for_each_line(const std::string& path, const std::function<void(const std::string* line)>& each) {
  constexpr std::size_t kReadBytes = 64 << 10;
  RunFile file(path);
  std::string line;
  std::int64_t passed_over = 0;  // bytes of this line
  for (std::string bytes = file.read(kReadBytes); !bytes.empty(); bytes = file.read(kReadBytes)) {
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      if (line.size() + part.size() <= ReaderLimits::kMetricsLineBytes) {
        line += part;
      } else if ((passed_over += std::ssize(part)) > ReaderLimits::kDamagedLineBytes) {
        throw unreadable(path, "this is no log of metrics: a line has no end");
      }
      if (end == rest.npos) break;
      each(passed_over == 0 ? &line : nullptr);
      line.clear(), passed_over = 0;
      rest.remove_prefix(end + 1);
    }
  }
}

/// Empty where there is none.
std::string config_text(const std::string& path) {
  std::error_code failed;
  if (!fs::exists(fs::symlink_status(path, failed))) return {};
  std::string text = RunFile(path).read(ReaderLimits::kTomlBytes + 1);
  if (text.size() > ReaderLimits::kTomlBytes) throw unreadable(path, "it is larger than 1 MiB");
  return text;
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
  std::error_code failed;
  const bool is_saved = fs::exists(weights, failed) && time_of(weights) >= time_of(metrics);
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
  if (metrics.step == 0) {  // a validation before the first step: all else is nothing
    add_validation(metrics);
    return;
  }
  loss.add(metrics.step, metrics.loss);
  grad_norm.add(metrics.step, metrics.grad_norm);
  if (std::isfinite(largest_norm) && !(metrics.grad_norm <= largest_norm)) {
    largest_norm_step = metrics.step;
    largest_norm = metrics.grad_norm;
  }
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
  add_mixtures(metrics.step, metrics.mixtures);
  add_validation(metrics);
}

void RunRecord::add_mixtures(std::int64_t step, const std::vector<MixtureLoad>& mixtures) {
  if (mixtures.empty()) return;
  const auto worst = [&](auto of, auto is_worse) {
    return std::invoke(of, *std::max_element(mixtures.begin(), mixtures.end(), [&](const auto& a, const auto& b) {
                         return is_worse(std::invoke(of, b), std::invoke(of, a));
                       }));
  };
  load_max.add(step, worst(&MixtureLoad::most, std::greater<>()));
  load_min.add(step, worst(&MixtureLoad::least, std::less<>()));
  load_entropy.add(step, worst(&MixtureLoad::entropy, std::less<>()));
  double sum = 0;
  for (const MixtureLoad& mixture : mixtures) sum += mixture.balance_loss.value_or(0);
  if (mixtures.front().balance_loss) balance_loss.add(step, sum / static_cast<double>(mixtures.size()));
}

void RunRecord::add_validation(const StepMetrics& metrics) {
  for (const TaskMetric& task : metrics.tasks) tasks[task.task][task.metric].add(metrics.step, task.value);
  if (!metrics.val_loss) return;
  validation.add(metrics.step, *metrics.val_loss);
  last_validation = *metrics.val_loss;
  if (std::isfinite(last_validation) && (best_step < 0 || last_validation < best_validation)) {
    best_step = metrics.step;
    best_validation = last_validation;
  }
}

void read_metrics(const std::string& path, const std::function<void(const StepMetrics&)>& visit,
                  std::vector<std::int64_t>& damaged_lines) {
  std::int64_t number = 0, previous = -1;
  for_each_line(path, [&](const std::string* line) {
    ++number;
    const auto metrics = line == nullptr ? std::nullopt : metrics_of(*line);
    if (metrics && metrics->step > previous) {
      previous = metrics->step;
      return visit(*metrics);
    }
    damaged_lines.push_back(number);
    if (damaged_lines.size() > ReaderLimits::kDamagedLines) throw unreadable(path, "this is no log of metrics");
  });
}

void read_metrics(const std::string& path, RunRecord& record) {
  read_metrics(
      path, [&](const StepMetrics& metrics) { record.add(metrics); }, record.damaged_lines);
}

RunRecord read_run(const std::string& dir) {
  std::error_code failed;
  if (!fs::is_directory(dir, failed))
    throw Error(ExitCode::dataset, fs::exists(dir, failed) ? "this is no folder" : "there is no such folder", dir,
                "name the directory of a run: train report RUN_DIR");
  if (!RunMark::find(dir))
    throw Error(ExitCode::dataset, "this folder is no run's directory: it has no " + std::string(RunMark::kFile), dir,
                "name the directory of a run: train report RUN_DIR");
  RunRecord record;
  record.config_toml = config_text(dir + "/config.toml");
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
