#include "model/train/run_dir/metrics.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "model/json/strict_json.h"
#include "runtime/base/check.h"
#include "runtime/base/reader_limits.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

template <class Float>
std::string json_number(Float value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

constexpr std::string_view kBegin = "{\"step\": ", kLossKey = "\"val_loss\": ", kTaskKey = "\"task/";
constexpr std::size_t kLongestLine = ReaderLimits::kMetricsLineBytes, kReadBytes = 64 << 10;

/// Step of a line as to_json writes it; -1 for any other.
std::int64_t step_of_line(std::string_view line) {
  if (!line.starts_with(kBegin) || !line.ends_with('}')) return -1;
  std::int64_t step = -1;
  std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), step);
  return step;
}

/// True if a log may have written the line, or the begin of it.
bool may_be_line(std::string_view line) {
  const std::size_t common = std::min(line.size(), kBegin.size());
  return line.size() <= kLongestLine && line.substr(0, common) == kBegin.substr(0, common);
}

Error not_own(const std::string& path) {
  return Error(ExitCode::cannot_create, "this is in the way, and it is not a log of metrics that a run of zshard wrote",
               path, "move it elsewhere, or set another run.dir");
}

std::string tasks_json(const std::vector<TaskMetric>& tasks) {
  std::string text;
  for (const TaskMetric& task : tasks)
    text += fmt::format(", {}: {}", json_text(fmt::format("task/{}/{}", task.task, task.metric), -1),
                        json_number(task.value));
  return text;
}

std::string validation_json(const StepMetrics& m) {
  return (m.val_loss ? fmt::format(R"(, "val_loss": {})", json_number(*m.val_loss)) : "") + tasks_json(m.tasks);
}

/// {"*.bias": {"elements": 768, "f32": 0.25, "bf16": 0.5}}: a validation that is added later has room too.
std::string lost_updates_json(const std::vector<LostShare>& shares, std::size_t room) {
  std::string text;
  for (const LostShare& share : shares) {
    std::string one = fmt::format(R"({}{}: {{"elements": {}, "f32": {:.6g})", text.empty() ? "" : ", ",
                                  json_text(share.group, -1), share.elems, share.masters);
    if (share.copies) one += fmt::format(R"(, "bf16": {:.6g})", *share.copies);
    if (text.size() + one.size() + 1 > room) break;
    text += one + "}";
  }
  return text;
}

/// {"layers": [0, 1], "load_max": [1.25, 1.5], ...}: an array has an element for each mixture.
std::string experts_json(std::span<const MixtureLoad> mixtures) {
  constexpr std::size_t kMost = 100;  // a line has room for
  mixtures = mixtures.first(std::min(mixtures.size(), kMost));
  const auto list = [&](const char* name, const auto& of_mixture) {
    std::string text;
    for (const MixtureLoad& mixture : mixtures) text += (text.empty() ? "" : ", ") + of_mixture(mixture);
    return fmt::format(R"("{}": [{}])", name, text);
  };
  const auto number = [](float value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : "null"; };
  std::string text = list("layers", [](const MixtureLoad& m) { return fmt::format("{}", m.layer); });
  text += ", " + list("load_max", [&](const MixtureLoad& m) { return number(m.most); });
  text += ", " + list("load_min", [&](const MixtureLoad& m) { return number(m.least); });
  text += ", " + list("load_entropy", [&](const MixtureLoad& m) { return number(m.entropy); });
  if (mixtures.front().balance_loss)
    text += ", " + list("balance_loss", [&](const MixtureLoad& m) { return number(m.balance_loss.value_or(0)); });
  return "{" + text + "}";
}

}  // namespace

std::size_t json_bytes(const std::vector<TaskMetric>& tasks) { return tasks_json(tasks).size(); }

std::string to_json(const StepMetrics& m) {
  std::string line = fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens": {}, "tokens_per_s": {}, "step_ms": {}, "peak_bytes": {}, "allocations": {})",
      m.step, json_number(m.loss), json_number(m.grad_norm), json_number(m.lr), m.tokens, json_number(m.tokens_per_s),
      json_number(m.step_ms), m.peak_bytes, m.allocations);
  if (m.host_bytes > 0) line += fmt::format(R"(, "host_bytes": {})", m.host_bytes);
  line += validation_json(m);
  if (m.rewards)
    line +=
        fmt::format(R"(, "rewards_chosen": {}, "rewards_rejected": {}, "rewards_margin": {}, "rewards_accuracy": {})",
                    json_number(m.rewards->chosen), json_number(m.rewards->rejected),
                    json_number(m.rewards->chosen - m.rewards->rejected), json_number(m.rewards->accuracy));
  if (m.data_wait_ms > 0) line += fmt::format(R"(, "data_wait_ms": {})", json_number(m.data_wait_ms));
  if (m.skipped_steps > 0) line += fmt::format(R"(, "skipped_steps": {})", m.skipped_steps);
  std::string kinds;
  for (const auto& [kind, bytes] : m.peak_by_kind)
    if (bytes > 0) kinds += fmt::format(R"({}"{}": {})", kinds.empty() ? "" : ", ", kind, bytes);
  if (!kinds.empty()) line += fmt::format(R"(, "peak_by_kind": {{{}}})", kinds);
  if (!m.mixtures.empty()) line += fmt::format(R"(, "experts": {})", experts_json(m.mixtures));
  const std::size_t room = 128 + m.bytes_to_come;  // for what is after them
  const std::string lost = lost_updates_json(m.lost_updates, kLongestLine - std::min(kLongestLine, line.size() + room));
  if (!lost.empty()) line += fmt::format(R"(, "lost_updates": {{{}}})", lost);
  return line + "}";
}

MetricsLog::MetricsLog(std::string path)
    : path_(std::move(path)), file_(File::open(path_, O_RDWR | O_APPEND | O_NOFOLLOW)) {
  if (file_.error() == ENOENT) file_ = File::open(path_, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (file_.error() == ELOOP || (file_.is_open() && !file_.is_regular())) throw not_own(path_);
  if (!file_.is_open())
    throw Error(ExitCode::cannot_create, fmt::format("cannot write metrics: {}", system_reason(file_.error())), path_,
                "check the folder's permissions");
  if (file_.lock() == File::Lock::others)
    throw Error(ExitCode::cannot_create, "another run is writing here", path_, "wait for it, or set another run.dir");
}

void MetricsLog::append(const StepMetrics& metrics) { write(to_json(metrics) + "\n"); }

void MetricsLog::write(const std::string& line) { check("writing", file_.write(line)); }

void MetricsLog::check(const char* operation, int error) const {
  if (error != 0) throw file_error(ExitCode::io, fmt::format("{} metrics", operation), error, path_);
}

/// Last line, with its end; empty where the file ends otherwise.
std::string MetricsLog::last_line() const {
  const std::int64_t size = file_.bytes(),
                     from = std::max<std::int64_t>(0, size - static_cast<std::int64_t>(kLongestLine) - 2);
  std::string tail(static_cast<std::size_t>(size - from), '\0');
  const File::Count count = file_.read_at(from, tail.data(), tail.size());
  check("reading", count.error);
  if (tail.size() < 2 || count.bytes != tail.size() || tail.back() != '\n') return {};
  const auto begin = tail.rfind('\n', tail.size() - 2);
  return begin == tail.npos ? (from == 0 ? tail : std::string()) : tail.substr(begin + 1);
}

bool MetricsLog::lacks_validation(std::int64_t step) const {
  const std::string line = last_line();
  return !line.empty() && step_of_line(std::string_view(line).substr(0, line.size() - 1)) == step &&
         line.find(kLossKey) == line.npos && line.find(kTaskKey) == line.npos;
}

void MetricsLog::add_validation(const StepMetrics& metrics) {
  ZS_CHECK(lacks_validation(metrics.step), "metrics of step {} have a validation", metrics.step);
  const std::string line = last_line();
  check("changing", file_.truncate(file_.bytes() - std::ssize(line)));
  write(fmt::format("{}{}}}\n", line.substr(0, line.size() - 2), validation_json(metrics)));
}

/// True if a loss of power explains what is there: zeros in place of the last lines.
bool MetricsLog::is_lost(std::int64_t from) const {
  constexpr std::int64_t kMost = std::int64_t{64} << 20;
  return file_.bytes() - from <= kMost;
}

MetricsLog::Found MetricsLog::find(std::int64_t step, const UseLine& each) const {
  Found found{-1, 0};  // a validation before the first step has the step 0
  bool is_cut = false;
  std::string text(kReadBytes, '\0');
  for (std::int64_t at = 0;;) {
    const File::Count count = file_.read_at(at, text.data(), text.size());
    check("reading", count.error);
    std::string_view rest(text.data(), count.bytes);
    std::size_t end = 0;
    while (!rest.starts_with('\0') && (end = rest.find('\n')) != rest.npos) {
      const std::string_view line = rest.substr(0, end);
      if (!may_be_line(line) || line.size() < kBegin.size()) throw not_own(path_);
      const std::int64_t number = step_of_line(line);
      is_cut = is_cut || number <= found.step || number > step;
      at += static_cast<std::int64_t>(end) + 1;
      if (!is_cut) found = {number, at};
      if (!is_cut && each) each(number, line);
      rest.remove_prefix(end + 1);
    }
    if (rest.starts_with('\0') && is_lost(at)) return found;
    if (!may_be_line(rest)) throw not_own(path_);
    if (count.bytes < text.size()) return found;
  }
}

void MetricsLog::check_own() const { static_cast<void>(find(std::numeric_limits<std::int64_t>::max())); }

std::int64_t MetricsLog::cut_after(std::int64_t step) {
  const Found found = find(step);
  check("cutting", file_.truncate(found.end));
  return std::max<std::int64_t>(found.step, 0);
}

std::vector<MetricsLog::Validation> MetricsLog::validations(std::int64_t last) const {
  std::vector<Validation> all;
  static_cast<void>(find(last, [&](std::int64_t step, std::string_view line) {
    const std::size_t at = line.find(kLossKey);
    if (at == line.npos) return;
    float loss = std::numeric_limits<float>::quiet_NaN();  // as null leaves it
    std::from_chars(line.data() + at + kLossKey.size(), line.data() + line.size(), loss);
    all.push_back({step, loss});
  }));
  return all;
}

void MetricsLog::sync() { check("syncing", file_.sync()); }

bool begins_as_metrics(const std::string& path) {
  const File file = File::open(path, O_RDONLY | O_NOFOLLOW);
  if (!file.is_open() || !file.is_regular()) return false;
  std::array<char, kBegin.size()> text{};
  const File::Count count = file.read_at(0, text.data(), text.size());
  return count.error == 0 && may_be_line({text.data(), count.bytes});
}

bool is_in_use(const std::string& metrics_path) { return File::open(metrics_path, O_RDONLY | O_NOFOLLOW).is_locked(); }

std::string progress_line(const Progress& progress) {
  const StepMetrics& m = progress.metrics;
  std::string line = fmt::format("step {}/{}  loss {:.4f}", m.step, progress.steps, m.loss);
  if (m.val_loss) line += fmt::format("  val {:.4f}", *m.val_loss);
  line += fmt::format("  {} tok/s", format_count(m.tokens_per_s));
  if (progress.ceiling_percent) line += fmt::format("  {:.0f}% of ceiling", *progress.ceiling_percent);
  line += fmt::format("  peak {}", format_bytes(m.peak_bytes));
  if (progress.seconds_left >= 0) line += fmt::format("  {} left", format_duration(progress.seconds_left));
  return line;
}

std::string tasks_line(const StepMetrics& metrics, std::int64_t steps) {
  std::string line = fmt::format("step {}/{}", metrics.step, steps), task;
  for (const TaskMetric& m : metrics.tasks) {
    line += m.task == task ? fmt::format(", {} {:.4f}", m.metric, m.value)
                           : fmt::format("{}{} {} {:.4f}", task.empty() ? "  " : "; ", m.task, m.metric, m.value);
    task = m.task;
  }
  return line;
}

std::string live_line(const Progress& progress, int columns) {
  // The last column stays free: a character there makes some terminals wrap, and the next line would not replace this
  // one.
  const std::string line = progress_line(progress).substr(0, static_cast<std::size_t>(std::max(columns - 1, 0)));
  return "\r" + line + "\x1b[K";
}

}  // namespace zs
