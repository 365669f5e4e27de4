#include "runtime/device/cuda_stream.h"

#include <chrono>
#include <thread>

#include "runtime/base/deadline.h"
#include "runtime/device/stream_report.h"

namespace zs {
namespace {

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING: no order with the driver's own default stream
/// While the host waits for the GPU: looks without a pause, which catch a stream that is all but done, then so long a
/// pause between two.
constexpr int kPolls = 200;
constexpr std::chrono::microseconds kPause{20};

/// Compute waits for gathers, the end of a step for reductions, and nobody for what is moved to the host. Smaller is
/// more urgent.
int priority_of(StreamRole role, int least, int greatest) {
  switch (role) {
    case StreamRole::unshard: return greatest;
    case StreamRole::reduce:
    case StreamRole::finish: return std::min(greatest + 1, least);
    case StreamRole::compute:
    case StreamRole::offload: break;
  }
  return least;
}

bool is_loss(const std::exception_ptr& error) noexcept {
  try {
    std::rethrow_exception(error);
  } catch (const CudaError& e) {
    return loses_context(e.status());
  } catch (...) {
    return false;
  }
}

}  // namespace

std::string CudaStreamGroup::activity() const {
  std::vector<std::pair<StreamRole, std::string>> activities;
  for (CudaStream* stream : streams) activities.emplace_back(stream->role(), stream->activity());
  return describe_activity(activities);
}

CudaStream::CudaStream(StreamRole role, CudaStreamGroup& group)
    : role_(role), group_(group), progress_(group.context), times_(group.profile, group.clock, role) {
  const CudaContext& context = group_.context;
  context.make_current();
  int least = 0, greatest = 0;
  context.check(context.driver().priority_range(&least, &greatest), "cuCtxGetStreamPriorityRange");
  context.check(context.driver().stream_create(&stream_, kNonBlocking, priority_of(role, least, greatest)),
                "cuStreamCreateWithPriority");
  exec_ = std::make_unique<ExecContext>(1, stream_, &context, &group.uploads);
  if (context.profiler() != nullptr) context.profiler()->name(stream_, name_of(role_));
}

CudaStream::~CudaStream() {
  exec_.reset();
  log_cuda(group_.context.driver(), group_.context.driver().stream_destroy(stream_), "cuStreamDestroy");
}

void CudaStream::note(TraceEntry::Kind kind, std::int64_t record_id) const {
  if (group_.trace.is_recording()) group_.trace.add({kind, role_, {}, record_id});
}

void CudaStream::check(int status, const char* call) {
  if (status == cuda_status::kSuccess) return;
  check_cuda(group_.context.driver(), status, call, where_now());
}

std::string CudaStream::where_now() {
  const std::string label = progress_.last_label();
  return fmt::format("{}, stream '{}', last enqueued: {}; {}", group_.context.gpu().describe(), name_of(role_),
                     label.empty() ? "nothing" : label, group_.activity());
}

template <class Body>
void CudaStream::guarded(const Body& body) noexcept {
  if (error_) return;
  try {
    check(group_.context.try_make_current(), "cuCtxSetCurrent");
    body();
  } catch (...) {
    error_ = std::current_exception();
  }
}

OpMemory CudaStream::reserve(const OpInfo& info) {
  return {group_.scratch.reserve(*this, scratch_block_bytes(DeviceKind::cuda, role_, info.scratch_bytes)),
          group_.pinned.staging().reserve(*this, info.pinned_bytes)};
}

void CudaStream::do_enqueue(OpInfo info, Work work, const OpMemory& memory) {
  if (group_.trace.is_recording()) group_.trace.add({TraceEntry::Kind::op, role_, info, -1});
  ++appended_;
  if (error_) return;
  const NvtxRange range(group_.context.profiler(), info.name.c_str());
  progress_.enqueued(info.name);
  guarded([&] {
    const std::int64_t own_bytes = memory.scratch.elems - workspace_bytes();
    exec_->set_memory({memory.scratch.slice(0, own_bytes), memory.pinned},
                      memory.scratch.slice(own_bytes, workspace_bytes()));
    try {
      const auto describe = [&] {
        return OpTime{.name = info.name, .phase = group_.trace.phase(), .reads = info.reads, .writes = info.writes};
      };
      times_.time(stream_, describe, [&] { work(*exec_); });
    } catch (const CudaError& error) {  // thrown by a call of the work itself, which knows no label
      throw CudaError(error.code(), error.status(), error.what_happened(), where_now(), error.what_to_do());
    } catch (const Error& error) {
      if (group_.capture == 0) std::rethrow_exception(current_error_of(info.name));
      throw Error(error.code(), error.what_happened(), where_now(), error.what_to_do());
    }
  });
}

EventRecord* CudaStream::do_record() {
  const std::int64_t id = group_.next_record_id++;
  note(TraceEntry::Kind::record, id);
  CudaEventRecord& record = group_.events->take();
  ++appended_;
  guarded([&] {
    check(group_.context.driver().event_record(record.event(group_.context), stream_), "cuEventRecord");
    if (group_.capture == 0) times_.recorded(stream_, id);
  });
  record.start(id, *this, appended_, error_, group_.capture);
  if (error_ || group_.capture != 0)
    record.end_use();  // not recorded, or only noted: nobody may ask for the event
  else
    progress_.recorded(record);
  return &record;
}

void CudaStream::do_wait(EventRecord& base) {
  auto& record = dynamic_cast<CudaEventRecord&>(base);
  const CudaStream& from = record.stream();
  ZS_CHECK(&from.group_ == &group_, "stream '{}' waits for an event of another device", name_of(role_));
  note(TraceEntry::Kind::wait, record.id());
  // A stream is in order with itself. What the host has synchronised with is done, and its errors have been thrown.
  if (&from == this || record.position() <= from.synchronized_) return;
  if (!error_) error_ = record.error();
  // All streams meet where a capture begins and ends, and around each replay: nobody waits across that, nor would the
  // driver let them.
  if (record.capture() != group_.capture) return;
  guarded([&] {
    const auto describe = [&] {
      return OpTime{.name = name_of(from.role_), .is_wait = true, .record_id = record.id()};
    };
    times_.time(stream_, describe, [&] {
      check(group_.context.driver().stream_wait_event(stream_, record.event(group_.context), 0), "cuStreamWaitEvent");
    });
  });
}

std::exception_ptr CudaStream::take_error() noexcept {
  if (error_) told(error_);
  return std::exchange(error_, nullptr);
}

void CudaStream::told(const std::exception_ptr& error) noexcept {
  group_.last_thrown = error;
  group_.is_loss_told = group_.is_loss_told || is_loss(error);
}

bool CudaStream::is_told(const std::exception_ptr& error) const noexcept {
  return error == group_.last_thrown || (group_.is_loss_told && is_loss(error));
}

void CudaStream::ask_watches(void (StreamWatch::*question)(), std::exception_ptr& failure) const {
  if (failure) return;
  try {
    for (const auto& known : exec_->state<StreamWatches>().all()) {
      if (const auto watch = known.lock()) ((*watch).*question)();
    }
  } catch (...) {
    failure = std::current_exception();
  }
}

void CudaStream::throw_of_watches(void (StreamWatch::*question)()) const {
  std::exception_ptr failure;
  ask_watches(question, failure);
  if (failure) std::rethrow_exception(failure);
}

bool CudaStream::await_end(double limit_s) {
  Deadline deadline(limit_s);
  std::exception_ptr failure;  // thrown once the GPU has left the stream's memory alone
  check(group_.context.try_make_current(), "cuCtxSetCurrent");
  for (int looks = 0;; ++looks) {
    const int status = group_.context.driver().stream_query(stream_);
    if (status == cuda_status::kSuccess) break;
    if (status != cuda_status::kNotReady) check(status, "cuStreamQuery");
    if (looks < kPolls) continue;
    // This stream may wait for what fails on another.
    for (const CudaStream* stream : group_.streams) stream->ask_watches(&StreamWatch::check, failure);
    if (limit_s > 0 && deadline.has_passed()) return false;
    std::this_thread::sleep_for(kPause);
  }
  progress_.finished();
  ask_watches(&StreamWatch::finish, failure);
  if (failure) std::rethrow_exception(failure);
  return true;
}

void CudaStream::do_synchronize() {
  if (group_.capture != 0)
    throw Error(ExitCode::usage,
                fmt::format("the host waits for stream '{}' while its work is captured", name_of(role_)), where_now(),
                "read what the work leaves after it, not within");
  note(TraceEntry::Kind::sync, -1);
  bool has_ended = true;
  try {
    has_ended = await_end(group_.options.sync_timeout_s);
    if (has_ended) times_.collect();
  } catch (...) {
    times_.forget();
    if (!error_) error_ = std::current_exception();
  }
  if (!has_ended) {
    group_.timed_out = true;
    throw sync_timeout(role_, group_.options.sync_timeout_s, group_.activity());
  }
  synchronized_ = appended_;
  if (!error_) return;
  told(error_);
  std::rethrow_exception(std::exchange(error_, nullptr));
}

bool CudaStream::stop(double limit_s) noexcept {
  try {
    if (!await_end(limit_s)) {
      log_left_behind(role_, activity());
      return false;
    }
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }
  progress_.finished();
  if (error_ && !is_told(error_)) log_unseen_error(role_, error_);
  if (error_) told(error_);
  return true;
}

}  // namespace zs
