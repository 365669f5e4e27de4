#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace zs {

/// Reason why a run ends before its last step. Where ranks see different reasons the highest number counts.
enum class StopReason : std::int8_t { none = 0, time_limit = 1, request = 2 };

/// The moment by which a run shall have stopped and saved by itself: train.time_limit after the program's start, or the
/// end of the Slurm job that it runs in, whichever comes first. A value.
class TimeLimit {
 public:
  using Clock = std::chrono::steady_clock;

  /// `limit_s` 0: none of its own. `job_ends_in_s`: what is left of the job; nothing: nobody ends it.
  TimeLimit(double limit_s, Clock::time_point started, std::optional<double> job_ends_in_s,
            Clock::time_point now = Clock::now());

  bool is_set() const { return end_.has_value(); }
  /// True if what takes so long, from `now` on, would end too late.
  bool would_miss(double needed_s, Clock::time_point now = Clock::now()) const;
  /// "train.time_limit (1:00:00)" or "the Slurm job's end (SLURM_JOB_END_TIME)".
  const std::string& name() const { return name_; }
  double seconds_left(Clock::time_point now = Clock::now()) const;

 private:
  std::optional<Clock::time_point> end_;
  std::string name_;
};

/// Seconds until SLURM_JOB_END_TIME, a Unix time, where it is set and still to come.
std::optional<double> slurm_seconds_left();

/// Margin that a run needs to end in order, from what it has measured so far; before it has, from how many bytes it
/// will write. A value.
class StopMargin {
 public:
  /// Margin for a checkpoint and the final weights of these sizes.
  StopMargin(std::int64_t checkpoint_bytes, std::int64_t weights_bytes);
  /// A checkpoint has taken so long.
  void note_save(double seconds) { save_s_ = seconds; }
  /// Notes that for so long nobody could be asked to stop: a micro-batch, a step, a validation batch.
  void note_gap(double seconds) { gap_s_ = seconds > gap_s_ ? seconds : gap_s_; }
  double seconds() const;

 private:
  double save_s_, weights_s_, gap_s_ = 0;
};

}  // namespace zs
