#include "model/train/rank/time_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "runtime/base/parse_integer.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

/// Rate of a slow disk, until it is known better.
constexpr double kBytesASecond = 100e6;
/// Factor on what was measured: the next may take longer.
constexpr double kSlack = 1.5;
/// Time to leave the devices and MPI.
constexpr double kEnding_s = 1;
/// steady_clock counts nanoseconds in 64 bits; longer than this is for ever.
constexpr double kLongest_s = 1e9;

TimeLimit::Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<TimeLimit::Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kLongest_s)));
}

}  // namespace

TimeLimit::TimeLimit(double limit_s, Clock::time_point started, std::optional<double> job_ends_in_s,
                     Clock::time_point now) {
  if (limit_s > 0) {
    end_ = started + duration_of(limit_s);
    name_ =
        fmt::format("train.time_limit ({})", limit_s < 60 ? fmt::format("{} s", limit_s) : format_duration(limit_s));
  }
  if (!job_ends_in_s) return;
  const Clock::time_point job_end = now + duration_of(*job_ends_in_s);
  if (end_ && *end_ <= job_end) return;
  end_ = job_end;
  name_ = "the Slurm job's end (SLURM_JOB_END_TIME)";
}

double TimeLimit::seconds_left(Clock::time_point now) const {
  return end_ ? std::chrono::duration<double>(*end_ - now).count() : std::numeric_limits<double>::infinity();
}

bool TimeLimit::would_miss(double needed_s, Clock::time_point now) const { return seconds_left(now) < needed_s; }

std::optional<double> slurm_seconds_left() {
  const auto end = number_in_environment<std::int64_t>("SLURM_JOB_END_TIME");
  if (!end) return std::nullopt;
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const double left = static_cast<double>(*end) - now;
  return left > 0 ? std::optional(left) : std::nullopt;  // a shell that has outlived its job
}

StopMargin::StopMargin(std::int64_t checkpoint_bytes, std::int64_t weights_bytes)
    : save_s_(static_cast<double>(checkpoint_bytes) / kBytesASecond),
      weights_s_(static_cast<double>(weights_bytes) / kBytesASecond) {}

double StopMargin::seconds() const { return kSlack * (save_s_ + weights_s_ + gap_s_) + kEnding_s; }

}  // namespace zs
