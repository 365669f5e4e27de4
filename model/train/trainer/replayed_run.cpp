#include "model/train/trainer/replayed_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/train/rank/print.h"
#include "model/train/report/run_record.h"
#include "runtime/base/standard_streams.h"

namespace zs {
namespace {

constexpr std::size_t kMostRows = 10;

/// "steps 4 to 6", "step 4"
std::string range(const char* what, std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("{} {}", what, first) : fmt::format("{}s {} to {}", what, first, last);
}

/// Without the sign of NaN.
double shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

std::string text_of(std::optional<float> value) { return value ? fmt::format("{}", *value) : "not finite"; }

std::optional<float> finite(float value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; }

/// Words about an op that wrote what is not finite.
std::string describe(const FiniteCheck::Finding& found, std::int64_t first_sample, std::int64_t samples) {
  std::string where = fmt::format("{} of micro-batch {}", found.place.phase, found.place.micro_batch);
  if (std::string_view(found.place.phase) == "optimizer") where = "the update";
  if (!found.place.unit.empty()) where += ", behind the gather of unit " + found.place.unit;
  std::string text =
      fmt::format("op {} on stream {} in {}: element {} of {} is {}, and {} of them are not finite", found.op,
                  name_of(found.stream), where, found.element, found.elems, shown(found.value), found.count);
  if (std::string_view(found.place.phase) == "forward" && found.elems % samples == 0)
    text += fmt::format(" (sample {}, if rows are samples)",
                        first_sample + found.place.micro_batch * samples + found.element / (found.elems / samples));
  if (found.read_some) text += "; what it read has some, too: it came from outside, as weights or as data";
  return text;
}

}  // namespace

void ReplayedRun::begin_step(std::int64_t step, Session& session) {
  if (first_ == 0) first_ = step;
  if (step != request_.step) return;
  if (session.device().kind() == DeviceKind::cpu) device_ = &session.device();
  if (device_ != nullptr) device_->trace().check_finite(&finite_check_);
  Executor& executor = session.runtime().executor();
  no_gradients_ = GradientFacts::refusal(executor);
  if (!no_gradients_.empty()) return;
  gradients_ = std::make_unique<GradientFacts>(executor);
}

void ReplayedRun::look_no_more() {
  if (device_ != nullptr) device_->trace().check_finite(nullptr);
  device_ = nullptr;
}

bool ReplayedRun::ends(const StepMetrics& metrics, const StepResult& result, const Config& config) {
  last_ = metrics;
  losses_ = result.losses;
  samples_ = config.train.micro_batch;
  first_sample_ = (metrics.step - 1) * config.train.global_batch;
  const auto found = request_.recorded.find(metrics.step);
  if (found == request_.recorded.end()) {
    ++unknown_;
    return metrics.step == request_.step;
  }
  const auto [loss, norm] = found->second;
  if (loss == finite(metrics.loss) && norm == finite(metrics.grad_norm)) {
    ++same_;
  } else if (difference_.empty()) {
    difference_ =
        fmt::format("step {} differs: loss {} here, {} in the run; gradient norm {} here, {} in the run", metrics.step,
                    text_of(finite(metrics.loss)), text_of(loss), text_of(finite(metrics.grad_norm)), text_of(norm));
  }
  return metrics.step == request_.step;
}

std::string ReplayedRun::comparison() const {
  if (!difference_.empty()) return difference_;
  std::string text = range("step", first_, last_.step) + ": loss and gradient norm have the run's bits";
  if (unknown_ > 0)
    text = fmt::format("{} of {} steps are in the run's metrics, with the same bits", same_, same_ + unknown_);
  return text;
}

void ReplayedRun::print_losses() const {
  std::vector<std::size_t> order(losses_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto is_above = [this](std::size_t a, std::size_t b) {  // infinity and NaN first
    const bool left = std::isfinite(losses_[a]), right = std::isfinite(losses_[b]);
    return left != right ? !left : left && losses_[a] > losses_[b];
  };
  std::stable_sort(order.begin(), order.end(), is_above);
  print_to_stdout("losses of {} micro-batch{}, the largest first:\n", losses_.size(), losses_.size() == 1 ? "" : "es");
  for (std::size_t i = 0; i < std::min(order.size(), kMostRows); ++i) {
    const std::int64_t first = first_sample_ + static_cast<std::int64_t>(order[i]) * samples_;
    print_to_stdout("  {:>12.6g}  {}\n", shown(losses_[order[i]]), range("sample", first, first + samples_ - 1));
  }
}

void ReplayedRun::print_gradients() const {
  if (!gradients_) return print_to_stdout("gradients are not looked at: {}\n", no_gradients_);
  std::vector<GradientFact> facts = gradients_->facts();
  const auto is_above = [](const GradientFact& a, const GradientFact& b) {
    return std::pair(a.not_finite, a.norm) > std::pair(b.not_finite, b.norm);
  };
  std::stable_sort(facts.begin(), facts.end(), is_above);
  double squares = 0, bad = 0;
  for (const GradientFact& fact : facts) squares += fact.norm * fact.norm, bad += fact.not_finite;
  print_to_stdout("gradients of {} parameters, norm {:.6g}{}, the largest first:\n", facts.size(), std::sqrt(squares),
                  bad > 0 ? fmt::format(" without {} elements that are not finite", bad) : "");
  for (std::size_t i = 0; i < std::min(facts.size(), kMostRows); ++i) {
    const GradientFact& fact = facts[i];
    print_to_stdout("  {:>12.6g}  largest element {:.6g}{}  {}\n", fact.norm, fact.largest,
                    fact.not_finite > 0 ? fmt::format(", {} not finite", fact.not_finite) : "", fact.parameter);
  }
}

int ReplayedRun::finish() const {
  if (says_) {
    print_to_stdout("replayed {}\n", comparison());
    print_to_stdout("step {}: loss {}, gradient norm {}\n", last_.step, text_of(finite(last_.loss)),
                    text_of(finite(last_.grad_norm)));
    print_losses();
    print_gradients();
    const std::optional<FiniteCheck::Finding>& found = finite_check_.first();
    if (found) print_to_stdout("the first value that is not finite: {}\n", describe(*found, first_sample_, samples_));
  }
  return difference_.empty() ? 0 : static_cast<int>(ExitCode::ranks_disagree);
}

std::map<std::int64_t, ReplayRequest::Recorded> recorded_steps(const std::string& run) {
  std::map<std::int64_t, ReplayRequest::Recorded> steps;
  std::vector<std::int64_t> damaged_lines;
  const auto add = [&](const StepMetrics& metrics) {
    steps[metrics.step] = {finite(metrics.loss), finite(metrics.grad_norm)};
  };
  read_metrics(run + "/metrics.jsonl", add, damaged_lines);
  return steps;
}

}  // namespace zs
