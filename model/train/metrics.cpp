#include "model/train/metrics.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "runtime/base/check.h"

namespace zs {
namespace {

template <class Float>
std::string json_number(Float value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

/// Of a line as to_json writes it; -1 for any other.
std::int64_t step_of(std::string_view line) {
  constexpr std::string_view kBegin = "{\"step\": ";
  if (!line.starts_with(kBegin) || !line.ends_with('}')) return -1;
  std::int64_t step = -1;
  std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), step);
  return step;
}

}  // namespace

std::string to_json(const StepMetrics& m) {
  std::string line = fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens": {}, "tokens_per_s": {}, "step_ms": {}, "peak_bytes": {}, "allocations": {})",
      m.step, json_number(m.loss), json_number(m.grad_norm), json_number(m.lr), m.tokens, json_number(m.tokens_per_s),
      json_number(m.step_ms), m.peak_bytes, m.allocations);
  if (m.val_loss) line += fmt::format(R"(, "val_loss": {})", json_number(*m.val_loss));
  if (m.skipped_steps > 0) line += fmt::format(R"(, "skipped_steps": {})", m.skipped_steps);
  return line + "}";
}

MetricsLog::MetricsLog(std::string path)
    : path_(std::move(path)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0)
    throw Error(ExitCode::cannot_create, fmt::format("cannot write metrics: {}", system_reason(errno)), path_,
                "check the folder's permissions");
  // A file system without locks has none to lose.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(descriptor_);
    throw Error(ExitCode::cannot_create, "another run is writing here", path_, "wait for it, or set another run.dir");
  }
}

MetricsLog::~MetricsLog() { ::close(descriptor_); }

void MetricsLog::append(const StepMetrics& metrics) { write(to_json(metrics) + "\n"); }

void MetricsLog::write(const std::string& line) {
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("writing", errno);
    done += static_cast<std::size_t>(count);
  }
}

void MetricsLog::fail(const char* operation, int error) const {
  throw Error(ExitCode::io, fmt::format("{} metrics failed: {}", operation, system_reason(error)), path_, "free some space and run again");
}

/// With its end; empty where the file ends otherwise.
std::string MetricsLog::last_line() const {
  constexpr std::streamoff kLongest = 4096;  // many times a line of to_json
  std::ifstream file(path_, std::ios::binary | std::ios::ate);
  const std::streamoff size = file.tellg(), from = std::max<std::streamoff>(0, size - kLongest);
  std::string tail(static_cast<std::size_t>(std::max<std::streamoff>(0, size - from)), '\0');
  file.seekg(from);
  if (tail.size() < 2 || !file.read(tail.data(), std::ssize(tail)) || tail.back() != '\n') return {};
  const auto begin = tail.rfind('\n', tail.size() - 2);
  return begin == tail.npos ? (from == 0 ? tail : std::string()) : tail.substr(begin + 1);
}

bool MetricsLog::lacks_validation(std::int64_t step) const {
  const std::string line = last_line();
  return !line.empty() && step_of(std::string_view(line).substr(0, line.size() - 1)) == step && line.find("\"val_loss\"") == line.npos;
}

void MetricsLog::add_validation(std::int64_t step, float val_loss) {
  ZS_CHECK(lacks_validation(step), "metrics of step {} have a validation", step);
  const std::string line = last_line();
  std::error_code failed;
  const auto size = std::filesystem::file_size(path_, failed);
  if (failed || ::ftruncate(descriptor_, static_cast<off_t>(size - line.size())) != 0) fail("changing", errno);
  write(fmt::format("{}, \"val_loss\": {}}}\n", line.substr(0, line.size() - 2), json_number(val_loss)));
}

std::int64_t MetricsLog::cut_after(std::int64_t step) {
  std::ifstream file(path_, std::ios::binary);
  std::int64_t last = 0;
  off_t end = 0;
  for (std::string line; std::getline(file, line) && !file.eof(); end += static_cast<off_t>(line.size() + 1)) {
    const std::int64_t number = step_of(line);
    if (number <= last || number > step) break;
    last = number;
  }
  if (::ftruncate(descriptor_, end) != 0) fail("cutting", errno);
  return last;
}

void MetricsLog::sync() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL) fail("syncing", errno);
}

bool is_in_use(const std::string& metrics_path) {
  const int descriptor = ::open(metrics_path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool is_locked = ::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return is_locked;
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  return value < 99.95 ? fmt::format("{:.1f} {}", value, kUnits[unit]) : fmt::format("{:.0f} {}", value, kUnits[unit]);
}

std::string format_count(double count) {
  static constexpr std::array kUnits = {"k", "M", "G", "T", "P"};
  if (!std::isfinite(count)) return "?";
  if (count < 999.5) return fmt::format("{:.0f}", count);
  count /= 1000;
  std::size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) count /= 1000, ++unit;
  return count < 99.95 ? fmt::format("{:.1f}{}", count, kUnits[unit]) : fmt::format("{:.0f}{}", count, kUnits[unit]);
}

std::string format_number(std::int64_t count, const char* noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e9;
  if (!(seconds >= 0) || seconds > kLongest) return "?";
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60, rest = total % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest) : fmt::format("{}:{:02}", minutes, rest);
}

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

std::string live_line(const Progress& progress, int columns) {
  // The last column stays free: a character there makes some terminals wrap, and the next line would not replace this one.
  const std::string line = progress_line(progress).substr(0, static_cast<std::size_t>(std::max(columns - 1, 0)));
  return "\r" + line + "\x1b[K";
}

}  // namespace zs
