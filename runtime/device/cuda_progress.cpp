#include "runtime/device/cuda_progress.h"

namespace zs {

void CudaProgress::enqueued(std::string label) {
  const std::lock_guard lock(mutex_);
  ++enqueued_;
  last_label_ = std::move(label);
}

void CudaProgress::recorded(CudaEventRecord& record) {
  const std::lock_guard lock(mutex_);
  look();  // so that marks do not pile up where nobody asks
  marks_.push_back({&record, ++enqueued_, last_label_});
}

void CudaProgress::finished() {
  const std::lock_guard lock(mutex_);
  for (const Mark& mark : marks_) mark.record->end_use();
  marks_.clear();
  completed_ = enqueued_;
  done_label_ = last_label_;
}

std::uint64_t CudaProgress::completed() {
  const std::lock_guard lock(mutex_);
  look();
  return completed_;
}

std::string CudaProgress::activity() {
  const std::lock_guard lock(mutex_);
  look();
  if (completed_ == enqueued_) return "idle";
  const std::string& next = marks_.empty() ? last_label_ : marks_.front().label;
  return done_label_.empty() ? fmt::format("up to {}", next) : fmt::format("after {}, up to {}", done_label_, next);
}

std::string CudaProgress::last_label() {
  const std::lock_guard lock(mutex_);
  return last_label_;
}

void CudaProgress::look() {
  if (marks_.empty() || context_.try_make_current() != cuda_status::kSuccess) return;
  while (!marks_.empty() && marks_.front().record->is_passed(context_)) {
    completed_ = marks_.front().position;
    done_label_ = std::move(marks_.front().label);
    marks_.front().record->end_use();
    marks_.pop_front();
  }
}

}  // namespace zs
