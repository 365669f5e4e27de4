#include "runtime/device/cpu_stream.h"

#include <omp.h>
#include <pthread.h>

#include <cstdio>

#include "runtime/base/deadline.h"
#include "runtime/base/random.h"
#include "runtime/device/cpu_topology.h"
#include "runtime/device/finite_check.h"
#include "runtime/device/futex.h"
#include "runtime/device/short_time_slice.h"
#include "runtime/device/stream_report.h"
#include "runtime/device/tsan_touch.h"

namespace zs {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

/// A function of (seed, stream, number of the op) only: in turns of 16 ops a stream is slow (up to 400 us an op), a
/// little late (up to 50 us) or not delayed at all, so that each stream is sometimes far behind the others and
/// sometimes far ahead.
void perturb(std::uint64_t seed, StreamRole role, std::uint64_t op) {
  const CounterRng rng(seed, static_cast<std::uint64_t>(role)), turns(seed + 1, static_cast<std::uint64_t>(role));
  const std::uint64_t turn = turns.bits(op / 16) % 4;
  if (turn >= 2) return;
  std::this_thread::sleep_for(std::chrono::microseconds(rng.bits(op) % (turn == 0 ? 401 : 51)));
}

}  // namespace

CpuStream::CpuStream(StreamRole role, CpuStreamGroup& group)
    : role_(role), group_(group), tail_(new Node), head_(tail_) {
  activity_.set("idle");
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    delete head_;
    throw Error(ExitCode::out_of_memory,
                fmt::format("cannot start the thread of stream '{}': {}", name_of(role), e.what()), {},
                "raise the limit on processes (ulimit -u), or run fewer ranks");
  }
}

CpuStream::~CpuStream() {
  if (thread_.joinable()) stop(0);
}

void CpuStream::append(std::unique_ptr<Node> node) {
  Node* const added = node.release();
  // An exchange is a full barrier on x86, so that the flag is read after the node is visible.
  tail_->next.exchange(added, std::memory_order_release);
  tail_ = added;
  ++appended_;
  if (thread_sleeps_.load(std::memory_order_relaxed) != 0 && thread_sleeps_.exchange(0, std::memory_order_relaxed) != 0)
    futex::wake_all(thread_sleeps_);
}

OpMemory CpuStream::reserve(const OpInfo& info) {
  return {group_.scratch.reserve(*this, info.scratch_bytes), group_.pinned.staging().reserve(*this, info.pinned_bytes)};
}

void CpuStream::do_enqueue(OpInfo info, Work work, const OpMemory& memory) {
  auto node = std::make_unique<Node>();
  node->memory = memory;
  if (group_.trace.is_recording()) group_.trace.add({TraceEntry::Kind::op, role_, info, -1});
  node->kind = Node::Kind::op;
  node->is_timed = group_.profile.is_recording();
  node->phase = group_.trace.phase();
  if (FiniteCheck* const check = group_.trace.finite_check())
    work = check->watched(info, role_, node->phase, std::move(work));
  node->info = std::move(info);
  node->work = std::move(work);
  append(std::move(node));
}

EventRecord* CpuStream::do_record() {
  auto node = std::make_unique<Node>();
  const std::int64_t id = group_.next_record_id++;
  if (group_.trace.is_recording()) group_.trace.add({TraceEntry::Kind::record, role_, {}, id});
  CpuEventRecord& record = group_.events->take();
  record.start(id, *this, appended_ + 1);
  node->kind = Node::Kind::record;
  node->is_timed = group_.profile.is_recording();
  node->record_id = id;
  node->record = &record;
  append(std::move(node));
  return &record;
}

void CpuStream::do_wait(EventRecord& base) {
  auto& record = dynamic_cast<CpuEventRecord&>(base);
  const CpuStream& from = record.stream();
  ZS_CHECK(&from.group_ == &group_, "stream '{}' waits for an event of another device", name_of(role_));
  if (group_.trace.is_recording()) group_.trace.add({TraceEntry::Kind::wait, role_, {}, record.id()});
  // A stream is in order with itself. What the host has synchronised with is done, and its errors have been thrown:
  // they must not come back through an old event.
  if (&from == this || record.position() <= from.synchronized_) return;
  auto node = std::make_unique<Node>();
  node->kind = Node::Kind::wait;
  node->is_timed = group_.profile.is_recording();
  node->awaited = from.role();
  node->record_id = record.id();
  node->record = &record;
  record.add_user();
  append(std::move(node));
}

bool CpuStream::await_completion(std::uint64_t target, double limit_s) {
  Deadline deadline(limit_s);
  futex::Backoff backoff;
  host_target_.exchange(target, std::memory_order_relaxed);
  while (completed_.load(std::memory_order_relaxed) < target) {
    if (!backoff.should_sleep()) continue;
    if (limit_s > 0 && deadline.has_passed()) {
      host_target_.store(kNobodyWaits, std::memory_order_relaxed);
      return false;
    }
    host_sleeps_.exchange(1, std::memory_order_relaxed);
    if (completed_.load(std::memory_order_relaxed) >= target) break;
    futex::wait(host_sleeps_, 1, backoff.sleep_ns());
  }
  host_target_.store(kNobodyWaits, std::memory_order_relaxed);
  return completed_.load(std::memory_order_acquire) >= target;
}

void CpuStream::do_synchronize() {
  if (group_.trace.is_recording()) group_.trace.add({TraceEntry::Kind::sync, role_, {}, -1});
  if (!await_completion(appended_, group_.options.sync_timeout_s)) throw_timeout();
  synchronized_ = appended_;
  if (!error_) return;
  group_.last_thrown = std::exchange(error_, nullptr);
  std::rethrow_exception(group_.last_thrown);
}

std::string CpuStreamGroup::activity() const {
  std::vector<std::pair<StreamRole, std::string>> activities;
  for (const CpuStream* stream : streams) activities.emplace_back(stream->role(), stream->activity());
  return describe_activity(activities);
}

void CpuStream::throw_timeout() {
  group_.timed_out = true;
  throw sync_timeout(role_, group_.options.sync_timeout_s, group_.activity());
}

bool CpuStream::stop(double limit_s) noexcept {
  try {
    append(std::make_unique<Node>());
    if (!await_completion(appended_, limit_s)) {
      log_left_behind(role_, activity());
      thread_.detach();
      return false;
    }
    thread_.join();
    if (error_ && error_ != group_.last_thrown) log_unseen_error(role_, error_);
    group_.last_thrown = error_ ? error_ : group_.last_thrown;
    return true;
  } catch (const std::exception& e) {
    std::fputs("zshard: a stream could not be stopped\n", stderr);
    if (thread_.joinable()) thread_.detach();
    return false;
  }
}

void CpuStream::run() noexcept {
  // Lives here so that what libraries keep in it dies on the thread that made it.
  ExecContext context(role_ == StreamRole::compute ? group_.options.threads : 1, nullptr);
  try {
    prepare_thread();
  } catch (...) {
    error_ = std::current_exception();
  }
  announce(1);
  Node* node = head_;
  for (std::uint64_t completed = 1;;) {
    Node* const next = &await_next(*node);
    delete node;
    node = next;
    const bool is_last = node->kind == Node::Kind::stop;
    execute(*node, context);
    if (is_last) break;
    announce(++completed);
  }
  delete node;
  announce(kNobodyWaits - 1);
}

void CpuStream::prepare_thread() {
  const std::string name = fmt::format("zs-{}", name_of(role_));
  ZS_CHECK(pthread_setname_np(pthread_self(), name.c_str()) == 0, "thread name '{}'", name);
  if (!group_.options.cpus.empty()) bind_this_thread(group_.options.cpus);
  take_short_time_slices();
  // Libraries that ask OpenMP for its default must not open a second team; our kernels pass num_threads(ctx.threads()).
  omp_set_num_threads(1);
}

CpuStream::Node& CpuStream::await_next(Node& node) {
  futex::Backoff backoff;
  while (node.next.load(std::memory_order_relaxed) == nullptr) {
    if (!backoff.should_sleep()) continue;
    thread_sleeps_.exchange(1, std::memory_order_relaxed);
    if (node.next.load(std::memory_order_relaxed) == nullptr) futex::wait(thread_sleeps_, 1, backoff.sleep_ns());
    thread_sleeps_.store(0, std::memory_order_relaxed);
  }
  return *node.next.load(std::memory_order_acquire);
}

void CpuStream::execute(Node& node, ExecContext& context) noexcept {
  switch (node.kind) {
    case Node::Kind::op:
      if (!error_) run_op(node, context);
      node.work = nullptr;  // before completion is announced: what it captured is gone after synchronize
      break;
    case Node::Kind::record:
      if (node.is_timed) group_.profile.add(role_, RecordTime{node.record_id, now_ns()});
      node.record->complete(error_);
      break;
    case Node::Kind::wait: {
      activity_.set(fmt::format("waits for stream '{}'", name_of(node.awaited)));
      const std::int64_t start_ns = node.is_timed ? now_ns() : 0;
      const std::exception_ptr error = node.record->await();
      if (node.is_timed)
        group_.profile.add(role_, OpTime{name_of(node.awaited), true, start_ns, now_ns(), node.record_id});
      if (!error_) error_ = error;
      break;
    }
    case Node::Kind::stop: break;
  }
  activity_.set("idle");
}

void CpuStream::run_op(Node& node, ExecContext& context) {
  activity_.set(node.info.name);
  try {
    if (group_.options.perturb_seed != 0) perturb(group_.options.perturb_seed, role_, ops_++);
#ifdef ZSHARD_TSAN
    touch_declared(node.info);
#endif
    const std::int64_t start_ns = node.is_timed ? now_ns() : 0;
    context.set_memory(node.memory);
    node.work(context);
    if (!node.is_timed) return;
    const std::int64_t end_ns = now_ns();
    group_.profile.add(role_, OpTime{std::move(node.info.name), false, start_ns, end_ns, -1, node.phase,
                                     std::move(node.info.reads), std::move(node.info.writes)});
  } catch (...) {
    error_ = current_error_of(node.info.name);
  }
}

void CpuStream::announce(std::uint64_t completed) noexcept {
  completed_.exchange(completed, std::memory_order_release);
  if (completed < host_target_.load(std::memory_order_relaxed)) return;
  if (host_sleeps_.exchange(0, std::memory_order_relaxed) != 0) futex::wake_all(host_sleeps_);
}

}  // namespace zs
