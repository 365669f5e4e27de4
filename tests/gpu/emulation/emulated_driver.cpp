#include "tests/gpu/emulation/emulated_driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "tests/gpu/emulation/emulated_functions.h"
#include "tests/gpu/emulation/emulated_handles.h"

namespace zs::test {
namespace {

constexpr int kLaunchFailed = 719, kFirstSticky = 700, kLastSticky = 720;
constexpr int kEntriesAtATime = 3;
constexpr double kEntryMs = 1.0 / 1024;

std::string next_uuid() {
  static std::atomic<int> drivers{0};
  std::string text = std::to_string(getpid()) + "-" + std::to_string(drivers++);
  text.resize(15, '.');
  return text;
}

}  // namespace

EmulatedDriver::EmulatedDriver(const Options& options)
    : options_(options),
      uuid_(next_uuid()),
      table_(std::make_shared<const CudaDriver>(emulated_functions())),
      random_(options.seed) {
  if (active_driver.exchange(this) != nullptr) throw std::logic_error("two emulated drivers at a time");
}

EmulatedDriver::~EmulatedDriver() {
  current_context = nullptr;
  for (CUstream_st* stream : streams_) delete stream;
  for (CUevent_st* event : events_) delete event;
  for (CUmod_st* module : modules_) delete module;
  for (void* address : host_memory_) std::free(address);
  active_driver = nullptr;
}

int EmulatedDriver::enter(const char* function) {
  const int status = calls_.enter(function);
  if (lost_ != 0) return lost_;
  if (status >= kFirstSticky && status <= kLastSticky) lost_ = status;
  return status != 0 ? status : graphs_.forbid(function);
}

void EmulatedDriver::launch(void* native_stream, std::function<void()> body) {
  const std::lock_guard lock(mutex_);
  auto* const stream = static_cast<CUstream_st*>(native_stream);
  if (streams_.count(stream) == 0) throw std::logic_error("a launch on what is no stream");
  push(*stream, std::move(body));
}

void EmulatedDriver::await(void* native_stream, std::function<bool()> passed) {
  const std::lock_guard lock(mutex_);
  auto* const stream = static_cast<CUstream_st*>(native_stream);
  if (streams_.count(stream) == 0) throw std::logic_error("a wait on what is no stream");
  if (graphs_.captures(*stream))
    return graphs_.add(
        *stream, [] {}, std::move(passed));
  stream->queue.push_back({std::move(passed), [] {}});
}

bool EmulatedDriver::captures(void* native_stream) const {
  const std::lock_guard lock(mutex_);
  return graphs_.captures(*static_cast<CUstream_st*>(native_stream));
}

int EmulatedDriver::current_gpu() { return current_context == nullptr ? -1 : current_context->gpu; }

void EmulatedDriver::push(CUstream_st& stream, std::function<void()> body) {
  if (graphs_.captures(stream)) return graphs_.add(stream, std::move(body));
  if (!options_.is_immediate) {
    stream.queue.push_back({nullptr, std::move(body)});
    return;
  }
  open_memory(true);
  body();
  open_memory(false);
}

void EmulatedDriver::run_kernel(const EmulatedKernel& kernel, const void* args, emulation::Launch launch) {
  launch.backwards = runs_backwards_;
  try {
    kernel.run(args, launch);
  } catch (const std::exception&) {
    lost_ = kLaunchFailed;
  }
}

void EmulatedDriver::fail_on_gpu(void* native_stream, int status) {
  launch(native_stream, [this, status] { lost_ = status; });
}

bool EmulatedDriver::is_free_to_run(const CUstream_st& stream) const {
  return !stream.queue.empty() && held_.count(&stream) == 0 &&
         (!stream.queue.front().may_run || stream.queue.front().may_run());
}

void EmulatedDriver::open_memory(bool opens) {
  if (!options_.is_guarded) return;
  for (const auto& [address, block] : memory_) {
    if (mprotect(block.memory.get(), block.bytes, opens ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
      throw std::system_error(errno, std::generic_category(), "mprotect");
  }
}

void EmulatedDriver::run_some() {
  for (int i = 0; i < kEntriesAtATime && !stands_still_ && lost_ == 0; ++i) {
    std::vector<CUstream_st*> ready;
    std::copy_if(streams_.begin(), streams_.end(), std::back_inserter(ready),
                 [&](const CUstream_st* stream) { return is_free_to_run(*stream); });
    const std::vector<std::function<void()>> nodes = graphs_.ready();
    if (ready.empty() && nodes.empty()) return;
    // The set is ordered by address, which differs from run to run.
    std::sort(ready.begin(), ready.end(),
              [](const CUstream_st* a, const CUstream_st* b) { return a->number < b->number; });
    const std::size_t chosen = random_() % (ready.size() + nodes.size());
    std::function<void()> run;
    if (chosen < ready.size()) {
      run = std::move(ready[chosen]->queue.front().run);
      ready[chosen]->queue.pop_front();
    } else {
      run = nodes[chosen - ready.size()];
    }
    open_memory(true);
    run();
    open_memory(false);
    now_ms_ += kEntryMs;
  }
}

int EmulatedDriver::calls(const std::string& function) const {
  const std::lock_guard lock(mutex_);
  return calls_.count(function);
}

std::set<std::string> EmulatedDriver::functions_called() const {
  const std::lock_guard lock(mutex_);
  return calls_.functions();
}

int EmulatedDriver::priority(void* native_stream) const { return static_cast<CUstream_st*>(native_stream)->priority; }

bool EmulatedDriver::has_current_context() const { return current_context != nullptr; }

std::size_t EmulatedDriver::live_handles() const {
  const std::lock_guard lock(mutex_);
  return streams_.size() + events_.size() + modules_.size() + graphs_.live_handles() + memory_.size() +
         host_memory_.size() + contexts_.size();
}

}  // namespace zs::test
