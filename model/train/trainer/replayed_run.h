#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "model/train/run_dir/metrics.h"
#include "model/train/session/session.h"
#include "runtime/device/finite_check.h"

namespace zs {

/// Request to repeat steps of a run, up to one that is looked at.
struct ReplayRequest {
  std::int64_t step = 0;
  /// Metrics of the run by step, to be compared with.
  struct Recorded {
    std::optional<float> loss, grad_norm;  ///< none: not finite
  };
  std::map<std::int64_t, Recorded> recorded = {};
};

/// Repeated steps of a run: whether they are the same, and what is in the last one. One host thread of each rank
/// uses it.
class ReplayedRun {
 public:
  /// `says`: this rank prints.
  ReplayedRun(const ReplayRequest& request, bool says) : request_(request), says_(says) {}
  ~ReplayedRun() { look_no_more(); }
  ReplayedRun(const ReplayedRun&) = delete;
  ReplayedRun& operator=(const ReplayedRun&) = delete;

  std::int64_t last_step() const { return request_.step; }
  void begin_step(std::int64_t step, Session& session);
  /// Gradients that the step shall look at; null: none.
  GradientFacts* gradients() { return gradients_.get(); }
  /// Takes in a step that is done; whether it is the last.
  bool ends(const StepMetrics& metrics, const StepResult& result, const Config& config);
  /// Prints what was found. The exit code: that of ranks that disagree where a step differs from the run's.
  int finish() const;

 private:
  /// The device outlives this, and its last work may come later.
  void look_no_more();
  std::string comparison() const;
  void print_losses() const;
  void print_gradients() const;

  ReplayRequest request_;
  bool says_;
  std::int64_t first_ = 0, same_ = 0, unknown_ = 0;  // steps: the first one, those that are alike, those not recorded
  std::string difference_;                           // the first
  StepMetrics last_;
  std::vector<float> losses_;
  std::int64_t first_sample_ = 0, samples_ = 0;  // the step's first one; samples of a micro-batch
  Device* device_ = nullptr;                     // one that finite_check_ looks at
  FiniteCheck finite_check_;
  std::unique_ptr<GradientFacts> gradients_;
  std::string no_gradients_;  // the reason why there are none
};

/// Steps that the run in this folder has written metrics of. Throws Error.
std::map<std::int64_t, ReplayRequest::Recorded> recorded_steps(const std::string& run);

}  // namespace zs
