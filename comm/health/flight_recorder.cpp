#include "comm/health/flight_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace zs {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

/// Milliseconds before `now_ns`; "-" for what has not been.
std::string ms_before(std::int64_t now_ns, std::int64_t ns) {
  return ns == 0 ? "-" : fmt::format("{:.3f}", static_cast<double>(now_ns - ns) * 1e-6);
}

}  // namespace

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::idle: return "idle";
    case Phase::init: return "init";
    case Phase::first_step: return "first step";
    case Phase::step: return "step";
    case Phase::checkpoint: return "checkpoint";
    case Phase::ending: return "end";
  }
  return "?";
}

std::int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void FlightRecorder::begin_wait(std::int64_t now) noexcept {
  if (under_way_.fetch_add(1, kRelaxed) == 0) since_ns_.store(now, kRelaxed);
}

void FlightRecorder::end_wait(std::int64_t now) noexcept {
  const std::int64_t since = since_ns_.load(kRelaxed);  // before: once none is under way the next to start sets it anew
  if (under_way_.fetch_sub(1, std::memory_order_acq_rel) == 1) waited_ns_.fetch_add(now - since, kRelaxed);
}

std::uint64_t FlightRecorder::start(const Operation& operation) noexcept {
  const std::int64_t now = monotonic_ns();
  begin_wait(now);
  const std::uint64_t number = page_.started.fetch_add(1, kRelaxed) + 1;
  FlightEntry& entry = page_.entries[number % StatusPage::kEntries];
  entry.number.store(0, kRelaxed);
  entry.group.store(operation.group, kRelaxed);
  entry.sequence.store(operation.sequence, kRelaxed);
  entry.enqueued_ns.store(operation.enqueued_ns, kRelaxed);
  entry.started_ns.store(now, kRelaxed);
  entry.done_ns.store(0, kRelaxed);
  entry.elems.store(operation.elems, kRelaxed);
  entry.rank.store(operation.rank, kRelaxed);
  entry.size.store(operation.size, kRelaxed);
  entry.dtype.store(static_cast<std::int32_t>(operation.dtype), kRelaxed);
  entry.text.set(operation.text);
  entry.number.store(number, kRelaxed);
  return number;
}

void FlightRecorder::done(std::uint64_t number) noexcept {
  const std::int64_t now = monotonic_ns();
  FlightEntry& entry = page_.entries[number % StatusPage::kEntries];
  if (entry.number.load(kRelaxed) == number)
    entry.done_ns.store(now, kRelaxed);  // else 1024 others have started meanwhile
  end_wait(now);
  page_.done.fetch_add(1, kRelaxed);
}

std::string flight_text(const StatusPage& page, std::string_view host, std::string_view reason) {
  const std::int64_t now = monotonic_ns();
  std::string text = fmt::format(
      "zshard flight record 1\nreason {}\nrank {} of {}\nhost {}\npid {}\nphase {}\nstep {}\nmoved_ms {}\nheartbeat_ms "
      "{}\nhost_thread {}\n"
      "streams {}\noperations {} started, {} done\n"
      "number\tgroup\trank\tsize\tsequence\toperation\tdtype\telems\tenqueued_ms\tstarted_ms\tdone_ms\n",
      reason, page.rank.load(), page.size.load(), host, page.pid.load(), name_of(page.phase.load()), page.step.load(),
      ms_before(now, page.moved_ns.load()), ms_before(now, page.heartbeat_ns.load()), page.host.get(),
      page.streams.get(), page.started.load(), page.done.load());
  std::vector<const FlightEntry*> order;
  for (const FlightEntry& entry : page.entries) {
    if (entry.number.load() != 0) order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->number.load() < b->number.load(); });
  for (const FlightEntry* entry : order) {
    text += fmt::format("{}\t{:08x}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", entry->number.load(),
                        entry->group.load() & 0xffffffff, entry->rank.load(), entry->size.load(),
                        entry->sequence.load(), entry->text.get(), name_of(static_cast<DType>(entry->dtype.load())),
                        entry->elems.load(), ms_before(now, entry->enqueued_ns.load()),
                        ms_before(now, entry->started_ns.load()), ms_before(now, entry->done_ns.load()));
  }
  return text;
}

}  // namespace zs
