#include "model/train/profile/step_explainer.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "model/data/utf8.h"
#include "model/train/profile/step_trace.h"

namespace zs {
namespace {

std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

StepExplainer::StepExplainer(ExplainRequest request, std::vector<std::string> reads) : request_(std::move(request)) {
  if (!request_.trace.empty())
    trace_.emplace(request_.trace, OutputRule{.is_own = is_trace, .reads = std::move(reads)});
}

void StepExplainer::start(Device& device, const StepCeilings& ceilings, std::int64_t sequence) {
  device_ = &device;
  ceilings_ = ceilings;
  parts_ = StepParts(sequence);
}

void StepExplainer::begin_step(std::int64_t step) {
  is_timing_ = seen_ > 0 && !has_all();
  if (!is_timing_) return;
  now_ = {.step = step};
  device_->profile().clear();
  device_->profile().start();
  now_.span.begin_ns = steady_ns();
}

void StepExplainer::end_step() {
  ++seen_;
  if (!is_timing_) return;
  now_.span.end_ns = steady_ns();
  is_timing_ = false;
  Profile& profile = device_->profile();
  profile.stop();
  for (int i = 0; i < kStreamRoles; ++i) {
    now_.times[static_cast<std::size_t>(i)] = profile.times(static_cast<StreamRole>(i));
    now_.records[static_cast<std::size_t>(i)] = profile.records(static_cast<StreamRole>(i));
  }
  profile.clear();
  if (parts_.steps() == 0) first_ = now_.step;
  last_ = now_.step;
  parts_.add(now_);
  if (trace_) steps_.push_back(std::exchange(now_, {}));
}

void StepExplainer::drop_step() {
  if (!std::exchange(is_timing_, false)) return;
  device_->profile().stop();
  device_->profile().clear();
}

void StepExplainer::timed_read(const std::function<void()>& read) {
  const std::int64_t begin_ns = steady_ns();
  read();
  if (is_timing_) now_.reads.push_back({begin_ns, steady_ns()});
}

std::string StepExplainer::finish(int rank) {
  if (std::exchange(is_done_, true)) return "";
  std::string text;
  if (request_.prints)
    text = parts_.steps() == 0 ? "where the time went: unknown, since no step followed the first\n"
                               : fmt::format("where the time went, steps {} to {} of rank {}, {:.2f} ms each:\n{}",
                                             first_, last_, rank, parts_.step_ms(), parts_.describe(ceilings_));
  if (!trace_) return text;
  const std::string events = trace_events(steps_, rank);
  steps_.clear();
  trace_->write(events.data(), events.size());
  trace_->commit();
  return text + fmt::format("trace of steps {} to {}: {}\n", first_, last_, escaped(request_.trace));
}

}  // namespace zs
