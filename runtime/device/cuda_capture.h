#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/device/cuda_stream.h"

namespace zs {

/// Graph of the work that the streams of one CUDA device were given while it was captured, to be enqueued again by one
/// call, as often as wanted. Made by CudaDevice::capture; dies before the device. Host thread only.
class CudaGraph {
 public:
  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

 private:
  friend class CudaCapture;
  CudaGraph(const CudaContext& context, CUgraph_st* captured);
  const CudaContext& context_;
  CUgraphExec_st* graph_ = nullptr;
};

/// Captures work of a device's streams as graphs and replays those. Owned by the device, used by its host thread.
class CudaCapture {
 public:
  explicit CudaCapture(CudaStreamGroup& group) : group_(group) {}
  ~CudaCapture();
  CudaCapture(const CudaCapture&) = delete;
  CudaCapture& operator=(const CudaCapture&) = delete;

  std::unique_ptr<CudaGraph> capture(const std::function<void()>& enqueue);
  void replay(const CudaGraph& graph, const std::string& name);

 private:
  CUstream_st* compute() const { return group_.streams.front()->native(); }
  void begin();
  /// Null where it fails; then `failure` says why, unless it did before.
  CUgraph_st* end(std::exception_ptr& failure);
  /// Asks the streams' watches what went wrong without the streams' knowledge, which is the cause of what they say
  /// themselves.
  void ask_watches(std::exception_ptr& failure) const;
  /// All other streams go on after compute, or compute after all of them.
  void part() const;
  void meet() const;
  void check(int status, const char* call) const { group_.context.check(status, call, "a graph of its streams' work"); }

  CudaStreamGroup& group_;
  CUevent_st* border_ = nullptr;
};

}  // namespace zs
