#include "model/train/report/run_views.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "model/data/output_file.h"
#include "model/train/report/report_page.h"
#include "model/train/run_dir/run_dir.h"
#include "runtime/base/check.h"

namespace zs {

RunViews::RunViews(std::string dir, RunMark& mark, RunRecord record, bool writes_events)
    : dir_(std::move(dir)), mark_(mark), record_(std::move(record)), has_events_(writes_events) {
  attempt(kReportFile, has_report_, [&] {
    has_report_ = may_write(kReportFile);
    if (has_report_) mark_.begin(kReportFile);
  });
  attempt(kEventsFile, has_events_, [&] {
    has_events_ = may_write(kEventsFile);
    if (!has_events_) return;
    if (!mark_.has(kEventsFile)) mark_.begin(kEventsFile);
    events_.emplace(dir_ + "/" + kEventsFile, record_.last ? record_.last->step : 0);
  });
}

bool RunViews::may_write(const char* name) {
  std::error_code failed;
  const bool is_there = std::filesystem::exists(std::filesystem::symlink_status(dir_ + "/" + name, failed));
  if (!is_there || mark_.is_own_file(name)) return true;
  warnings_.push_back(fmt::format("{}/{} is not as this run wrote it, and stays: no other is written", dir_, name));
  return false;
}

template <class Write>
void RunViews::attempt(const char* view, bool& is_on, const Write& write) {
  if (!is_on) return;
  try {
    write();
  } catch (const Error& error) {
    is_on = false;
    warnings_.push_back(fmt::format("the run goes on without {}: {}", view, error.what_happened()));
  }
}

void RunViews::add(const StepMetrics& metrics) {
  record_.add(metrics);
  attempt(kEventsFile, has_events_, [&] { events_->add(metrics); });
}

void RunViews::add_validation(const StepMetrics& metrics) {
  record_.add_validation(metrics);
  attempt(kEventsFile, has_events_, [&] { events_->add_validation(metrics); });
}

void RunViews::refresh() {
  constexpr int kShare = 100;
  const bool is_first_of_steps = record_.last && !has_shown_steps_;
  if (is_first_of_steps || Clock::now() - written_ > kShare * cost_)
    attempt(kReportFile, has_report_, [&] { write_report(); });
}

void RunViews::end(RunState state, const std::string& detail) {
  record_.state = state;
  record_.detail = detail;
  attempt(kReportFile, has_report_, [&] {
    write_report();
    mark_.wrote(kReportFile);
  });
}

/// Writes the report, without syncing it to the disk: what a loss of power takes, --report makes again.
void RunViews::write_report() {
  const auto start = Clock::now();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  OutputFile file(dir_ + "/" + kReportFile);
  const std::string page = report_page(record_, std::chrono::duration_cast<std::chrono::seconds>(now).count());
  file.write(page.data(), page.size());
  file.publish();
  has_shown_steps_ = record_.last.has_value();
  written_ = Clock::now();
  cost_ = written_ - start;
}

}  // namespace zs
