#include "model/train/profile/step_trace.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/base/file.h"

namespace zs {
namespace {

/// Names come from parameters' and ops': anything but a control character, a quote or a backslash may be in them.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + "\"";
}

class TraceEvents {
 public:
  TraceEvents(std::int64_t origin_ns, int rank) : origin_ns_(origin_ns), rank_(rank) {
    metadata("process_name", 0, fmt::format("\"name\": \"rank {}\"", rank));
    name_thread(kHostThread, "host");
    for (int role = 0; role < kStreamRoles; ++role)
      name_thread(thread_of(role), fmt::format("stream {}", name_of(static_cast<StreamRole>(role))));
  }

  void add(const StepTimes& step) {
    slice(kHostThread, fmt::format("step {}", step.step), "step", step.span);
    for (const Interval& read : step.reads) slice(kHostThread, "reading samples", "data", read);
    for (int role = 0; role < kStreamRoles; ++role) add_stream(step, role);
  }

  std::string take() {
    std::stable_sort(events_.begin(), events_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::string text = begin();
    for (const auto& [ns, event] : events_) text += ",\n" + event;
    return text.append(kEnd);
  }
  std::string begin() const { return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + header_; }
  static constexpr std::string_view kEnd = "\n]}\n";

 private:
  static constexpr int kHostThread = 0;
  static int thread_of(int role) { return role + 1; }
  static constexpr std::int64_t kShortestGapNs = 1000;

  /// Microseconds, to the nanosecond.
  std::string time(std::int64_t ns) const {
    return fmt::format("{}.{:03}", (ns - origin_ns_) / 1000, (ns - origin_ns_) % 1000);
  }

  void metadata(const char* name, int thread, const std::string& argument) {
    header_ += fmt::format(R"({}{{"ph": "M", "pid": {}, "tid": {}, "name": "{}", "args": {{{}}}}})",
                           header_.empty() ? "" : ",\n", rank_, thread, name, argument);
  }
  void name_thread(int thread, const std::string& name) {
    metadata("thread_name", thread, fmt::format("\"name\": \"{}\"", name));
    metadata("thread_sort_index", thread, fmt::format("\"sort_index\": {}", thread));
  }

  void slice(int thread, const std::string& name, const char* category, const Interval& span) {
    const std::int64_t length_ns = std::max<std::int64_t>(0, span.end_ns - span.begin_ns);
    events_.emplace_back(
        span.begin_ns,
        fmt::format(R"({{"ph": "X", "pid": {}, "tid": {}, "name": {}, "cat": "{}", "ts": {}, "dur": {}.{:03}}})", rank_,
                    thread, quoted(name), category, time(span.begin_ns), length_ns / 1000, length_ns % 1000));
  }

  void flow(char end, std::int64_t id, int thread, std::int64_t ns) {
    events_.emplace_back(ns, fmt::format(R"({{"ph": "{}", {}"pid": {}, "tid": {}, "name": "event", "cat": "event", )"
                                         R"("id": {}, "ts": {}}})",
                                         end, end == 'f' ? R"("bp": "e", )" : "", rank_, thread, id, time(ns)));
  }

  void add_stream(const StepTimes& step, int role) {
    const int thread = thread_of(role);
    std::int64_t at = step.span.begin_ns;
    const auto idle_until = [&](std::int64_t end_ns) {
      if (end_ns - at >= kShortestGapNs) slice(thread, "nothing to do", "idle", {at, end_ns});
    };
    for (const OpTime& op : step.times[static_cast<std::size_t>(role)]) {
      idle_until(op.start_ns);
      at = op.end_ns;
      const Interval span{op.start_ns, op.end_ns};
      op.is_wait ? slice(thread, "waits for " + op.name, "wait", span) : slice(thread, op.name, "op", span);
      if (op.is_wait && op.record_id >= 0) arrow(step, op, thread);
    }
    idle_until(step.span.end_ns);
  }

  /// Draws an arrow from the slice that the record comes after to the wait; where the record was before the step, there
  /// is none.
  void arrow(const StepTimes& step, const OpTime& wait, int thread) {
    for (int role = 0; role < kStreamRoles; ++role) {
      const auto& records = step.records[static_cast<std::size_t>(role)];
      const auto record = std::find_if(records.begin(), records.end(),
                                       [&](const RecordTime& known) { return known.id == wait.record_id; });
      if (record == records.end()) continue;
      const auto& ops = step.times[static_cast<std::size_t>(role)];
      const auto after =
          std::find_if(ops.rbegin(), ops.rend(), [&](const OpTime& op) { return op.end_ns <= record->ns; });
      const std::int64_t from_ns = after == ops.rend() ? record->ns : std::max(after->start_ns, after->end_ns - 1);
      flow('s', ++flows_, thread_of(role), from_ns);
      flow('f', flows_, thread, std::max(wait.start_ns, wait.end_ns - 1));
      return;
    }
  }

  std::int64_t origin_ns_;
  int rank_;
  std::string header_;
  std::vector<std::pair<std::int64_t, std::string>> events_;
  std::int64_t flows_ = 0;
};

}  // namespace

std::string trace_events(const std::vector<StepTimes>& steps, int rank) {
  TraceEvents events(steps.empty() ? 0 : steps.front().span.begin_ns, rank);
  for (const StepTimes& step : steps) events.add(step);
  return events.take();
}

bool is_trace(const std::string& path) {
  const std::string begin = TraceEvents(0, 0).begin();
  const File file = File::open(path, O_RDONLY | O_NOFOLLOW);
  std::string found(begin.size(), '\0'), end(TraceEvents::kEnd.size(), '\0');
  file.read_at(0, found.data(), found.size());
  file.read_at(std::max<std::int64_t>(0, file.bytes() - std::ssize(end)), end.data(), end.size());
  return found == begin && end == TraceEvents::kEnd;
}

}  // namespace zs
