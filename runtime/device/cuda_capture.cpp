#include "runtime/device/cuda_capture.h"

#include <utility>

namespace zs {

CudaGraph::CudaGraph(const CudaContext& context, CUgraph_st* captured) : context_(context) {
  const int status = context.driver().graph_instantiate(&graph_, captured, 0);
  log_cuda(context.driver(), context.driver().graph_destroy(captured), "cuGraphDestroy");
  context.check(status, "cuGraphInstantiate");
}

CudaGraph::~CudaGraph() {
  if (graph_ != nullptr)
    log_cuda(context_.driver(), context_.driver().graph_exec_destroy(graph_), "cuGraphExecDestroy");
}

CudaCapture::~CudaCapture() {
  if (border_ != nullptr)
    log_cuda(group_.context.driver(), group_.context.driver().event_destroy(border_), "cuEventDestroy");
}

std::unique_ptr<CudaGraph> CudaCapture::capture(const std::function<void()>& enqueue) {
  ZS_CHECK(group_.capture == 0, "a capture within capture {}", group_.capture);
  ZS_CHECK(!group_.profile.is_recording(), "work is captured while it is timed: a replay has no operations to time");
  for (CudaStream* stream : group_.streams) stream->synchronize();
  begin();
  std::exception_ptr failure;
  try {
    enqueue();
  } catch (...) {
    failure = std::current_exception();
  }
  for (CudaStream* stream : group_.streams) {
    const std::exception_ptr error = stream->take_error();
    if (!failure) failure = error;
  }
  CUgraph_st* const captured = end(failure);
  ask_watches(failure);
  if (!failure) return std::unique_ptr<CudaGraph>(new CudaGraph(group_.context, captured));
  if (captured != nullptr)
    log_cuda(group_.context.driver(), group_.context.driver().graph_destroy(captured), "cuGraphDestroy");
  std::rethrow_exception(failure);
}

void CudaCapture::begin() {
  const CudaDriver& driver = group_.context.driver();
  group_.context.make_current();
  if (border_ == nullptr) check(driver.event_create(&border_, CudaDriver::kWithoutTime), "cuEventCreate");
  check(driver.capture_begin(compute(), CudaDriver::kThreadLocalCapture), "cuStreamBeginCapture");
  group_.capture = ++group_.captures;
  for (CudaStream* stream : group_.streams) stream->set_captured(true);
  group_.uploads.refuse(true);
  std::exception_ptr failure;
  try {
    part();
  } catch (...) {
    failure = std::current_exception();
  }
  if (!failure) return;
  end(failure);
  std::rethrow_exception(failure);
}

CUgraph_st* CudaCapture::end(std::exception_ptr& failure) {
  CUgraph_st* captured = nullptr;
  try {
    group_.context.make_current();
    // An earlier failure may have ended the capture: then the streams do not meet any more, and the end says no more
    // than that.
    if (!failure) meet();
  } catch (...) {
    failure = std::current_exception();
  }
  group_.capture = 0;
  for (CudaStream* stream : group_.streams) stream->set_captured(false);
  group_.uploads.refuse(false);
  const int status = group_.context.driver().capture_end(compute(), &captured);
  try {
    if (!failure) check(status, "cuStreamEndCapture");
  } catch (...) {
    failure = std::current_exception();
  }
  return captured;
}

void CudaCapture::ask_watches(std::exception_ptr& failure) const {
  const bool has_failed = failure != nullptr;
  for (CudaStream* stream : group_.streams) {
    try {
      has_failed ? stream->check_watches() : stream->finish_watches();
    } catch (...) {
      failure = std::current_exception();
      return;
    }
  }
}

void CudaCapture::part() const {
  const CudaDriver& driver = group_.context.driver();
  check(driver.event_record(border_, compute()), "cuEventRecord");
  for (CudaStream* stream : group_.streams) {
    if (stream->native() != compute())
      check(driver.stream_wait_event(stream->native(), border_, 0), "cuStreamWaitEvent");
  }
}

void CudaCapture::meet() const {
  const CudaDriver& driver = group_.context.driver();
  for (CudaStream* stream : group_.streams) {
    if (stream->native() == compute()) continue;
    check(driver.event_record(border_, stream->native()), "cuEventRecord");
    check(driver.stream_wait_event(compute(), border_, 0), "cuStreamWaitEvent");
  }
}

void CudaCapture::replay(const CudaGraph& graph, const std::string& name) {
  CudaStream& first = *group_.streams.front();
  first.enqueue({name}, [&](ExecContext&) {
    meet();
    check(group_.context.driver().graph_launch(graph.graph_, compute()), "cuGraphLaunch");
    part();
  });
  Event end;  // nobody waits for it: it is by events that others are told how far the GPU is
  first.record(end);
}

}  // namespace zs
