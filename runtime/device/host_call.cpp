#include "runtime/device/host_call.h"

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/device/cuda_context.h"
#include "runtime/device/stream_watch.h"

namespace zs {
namespace {

/// Calls of one stream of a GPU. The host thread adds them, the driver's thread makes them.
class HostCalls final : public StreamWatch {
 public:
  void add(ExecContext& exec, std::function<void()> work) {
    Call* call = nullptr;
    {
      const std::lock_guard lock(mutex_);
      while (!calls_.empty() && calls_.front()->is_done) calls_.pop_front();
      call = calls_.emplace_back(std::make_unique<Call>(*this, std::move(work))).get();
    }
    const CudaContext& context = exec.gpu();
    context.check(context.driver().stream_call(static_cast<CUstream_st*>(exec.native_stream()), run, call),
                  "cuLaunchHostFunc");
  }

  void check() override {
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    calls_.clear();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  struct Call {
    Call(HostCalls& calls, std::function<void()> what) : owner(calls), work(std::move(what)) {}
    HostCalls& owner;
    std::function<void()> work;
    bool is_done = false;
  };

  static void run(void* data) {
    Call& call = *static_cast<Call*>(data);
    HostCalls& owner = call.owner;
    const auto has_failed = [&] {
      const std::lock_guard lock(owner.mutex_);
      return owner.error_ != nullptr;
    };
    std::exception_ptr error;
    try {
      if (!has_failed()) call.work();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(owner.mutex_);
    if (error) owner.error_ = error;
    call.is_done = true;
  }

  std::mutex mutex_;
  std::deque<std::unique_ptr<Call>> calls_;  // in the order of the stream
  std::exception_ptr error_;                 // the first
};

}  // namespace

void call_on_host(ExecContext& exec, std::function<void()> work) {
  if (exec.native_stream() == nullptr) return work();
  StreamWatches& watches = exec.state<StreamWatches>();
  ZS_CHECK(!watches.are_captured(), "a call on the host within captured work");
  auto& calls = exec.state<std::shared_ptr<HostCalls>>();
  if (!calls) calls = std::make_shared<HostCalls>();
  watches.add(calls);
  calls->add(exec, std::move(work));
}

}  // namespace zs
