#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace zs {

/// Times that the ranks have waited for each other in one step: the slowest waits least.
struct StepWaits {
  int slowest = 0;                 ///< the rank that has waited least
  double least_s = 0, most_s = 0;  ///< waits over all ranks
};

/// Tells of a rank that keeps the others waiting, step after step. The same on every rank, as what it is fed with is. A
/// value; one host thread uses it.
class StragglerWatch {
 public:
  static constexpr int kSteps = 16;  ///< looked at
  /// Number of them, at least, in which one rank is the slowest, for it to be slow
  static constexpr int kSameRank = 15;
  static constexpr double kShare = 0.15;  ///< share of the time that the others lose by it, at least
  /// Seconds of each step, at least: less is the operating system's time slices
  static constexpr double kLeast_s = 0.01;
  static constexpr int kQuietSteps = 100;  ///< between two lines

  /// `says_once`: where ranks share their CPUs some is always slow, and one line says all there is to say.
  explicit StragglerWatch(bool says_once = false) : says_once_(says_once) {}

  /// Warning for the user after this step; mostly nothing.
  std::string after_step(const StepWaits& waits, double step_s);

 private:
  struct Step {
    int slowest;
    double lost_s, step_s;
  };
  std::deque<Step> steps_;
  int quiet_ = 0;
  bool says_once_, has_said_ = false;
};

}  // namespace zs
