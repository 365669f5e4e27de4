#include "tests/gpu/emulation/emulated_functions.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/emulation/emulated_handles.h"

namespace zs::test {
namespace {

constexpr int kInvalidValue = 1, kInvalidHandle = 400, kInvalidContext = 201, kNotFound = 500;
constexpr int kL2Attribute = 38, kMajorAttribute = 75, kL2Bytes = 1 << 14;

}  // namespace

std::atomic<EmulatedDriver*> active_driver{nullptr};
thread_local const CUctx_st* current_context = nullptr;

struct EmulatedFunctions {
  static EmulatedDriver& driver() { return *active_driver.load(); }

  /// Every function: lock, count, fail if asked to, else `body`. `needs_context`: one must be current, as for the real
  /// one.
  template <class Body>
  static int call(const char* name, bool needs_context, const Body& body) {
    const std::lock_guard lock(driver().mutex_);
    if (const int status = driver().enter(name); status != 0) return status;
    if (needs_context && current_context == nullptr) return kInvalidContext;
    return body(driver());
  }

  static int init(unsigned) {
    return call("cuInit", false, [](auto&) { return 0; });
  }
  static int error_text(int error, const char** text) {
    *text = error == 700                         ? "an illegal memory access was encountered"
            : error == cuda_status::kOutOfMemory ? "out of memory"
                                                 : "a made-up error";
    return 0;
  }
  static int device_count(int* count) {
    return call("cuDeviceGetCount", false, [&](auto& self) { return *count = self.options_.gpus, 0; });
  }
  static int device(int* device, int ordinal) {
    return call("cuDeviceGet", false, [&](auto& self) {
      *device = ordinal;
      return ordinal >= 0 && ordinal < self.options_.gpus ? 0 : kInvalidValue;
    });
  }
  static int device_name(char* name, int size, int) {
    return call("cuDeviceGetName", false,
                [&](auto&) { return std::strncpy(name, "Emulated", static_cast<std::size_t>(size)), 0; });
  }
  static int device_uuid(void* uuid, int device) {
    return call("cuDeviceGetUuid", false, [&](auto& self) {
      const std::string text = self.uuid_ + static_cast<char>('0' + device);
      return std::memcpy(uuid, text.data(), 16), 0;
    });
  }
  static int device_attribute(int* value, int attribute, int) {
    return call("cuDeviceGetAttribute", false, [&](auto& self) {
      *value = attribute == kL2Attribute ? kL2Bytes : attribute == kMajorAttribute ? self.options_.major : 9;
      return 0;
    });
  }
  static int device_memory(std::size_t* bytes, int) {
    return call("cuDeviceTotalMem", false,
                [&](auto& self) { return *bytes = static_cast<std::size_t>(self.options_.memory_bytes), 0; });
  }
  static int context_retain(CUctx_st** context, int device) {
    return call("cuDevicePrimaryCtxRetain", false, [&](auto& self) {
      self.contexts_.push_back(device);
      static CUctx_st contexts[16];
      contexts[device].gpu = device;
      return *context = &contexts[device], 0;
    });
  }
  static int context_release(int device) {
    return call("cuDevicePrimaryCtxRelease", false, [&](auto& self) {
      const auto held = std::find(self.contexts_.begin(), self.contexts_.end(), device);
      if (held == self.contexts_.end()) return kInvalidContext;
      self.contexts_.erase(held);
      current_context = nullptr;
      return 0;
    });
  }
  static int context_make_current(CUctx_st* context) {
    return call("cuCtxSetCurrent", false, [&](auto&) { return current_context = context, 0; });
  }
  static int priority_range(int* least, int* greatest) {
    return call("cuCtxGetStreamPriorityRange", true, [&](auto&) { return *least = 0, *greatest = -5, 0; });
  }
  static int stream_create(CUstream_st** stream, unsigned flags, int priority) {
    return call("cuStreamCreateWithPriority", true, [&](auto& self) {
      if (flags != 1 || priority > 0 || priority < -5) return kInvalidValue;
      *stream = *self.streams_.insert(new CUstream_st{priority, self.streams_made_++, {}}).first;
      return 0;
    });
  }
  static int stream_destroy(CUstream_st* stream) {
    return call("cuStreamDestroy", false, [&](auto& self) {
      if (self.streams_.erase(stream) == 0) return kInvalidHandle;
      delete stream;
      return 0;
    });
  }
  static int stream_query(CUstream_st* stream) {
    return call("cuStreamQuery", true, [&](auto& self) {
      if (self.streams_.count(stream) == 0) return kInvalidHandle;
      if (self.graphs_.captures(*stream)) return self.graphs_.refuse(*stream);
      self.run_some();
      return self.lost_ != 0 ? self.lost_ : stream->queue.empty() ? 0 : cuda_status::kNotReady;
    });
  }
  static int stream_wait_event(CUstream_st* stream, CUevent_st* event, unsigned) {
    return call("cuStreamWaitEvent", true, [&](auto& self) {
      if (self.streams_.count(stream) == 0 || self.events_.count(event) == 0) return kInvalidHandle;
      if (self.graphs_.concerns(*stream, *event)) return self.graphs_.wait(*stream, *event);
      if (event->latest) stream->queue.push_back({when(event->latest), [] {}});
      return 0;
    });
  }
  static int stream_call(CUstream_st* stream, void (*function)(void*), void* data) {
    return call("cuLaunchHostFunc", true, [&](auto& self) {
      if (self.streams_.count(stream) == 0) return kInvalidHandle;
      self.push(*stream, [=] { function(data); });
      return self.lost_;
    });
  }
  static int event_create(CUevent_st** event, unsigned flags) {
    return call("cuEventCreate", true, [&](auto& self) {
      if (flags != CudaDriver::kWithTime && flags != CudaDriver::kWithoutTime) return kInvalidValue;
      return *event = *self.events_.insert(new CUevent_st{flags == CudaDriver::kWithTime, {}, {}}).first, 0;
    });
  }
  static int event_destroy(CUevent_st* event) {
    return call("cuEventDestroy", true, [&](auto& self) {
      if (self.events_.erase(event) == 0) return kInvalidHandle;
      delete event;
      return 0;
    });
  }
  static int event_record(CUevent_st* event, CUstream_st* stream) {
    return call("cuEventRecord", true, [&](auto& self) {
      if (self.streams_.count(stream) == 0 || self.events_.count(event) == 0) return kInvalidHandle;
      if (self.graphs_.captures(*stream)) return self.graphs_.record(*stream, *event);
      event->captured_in = 0;
      event->latest = std::make_shared<bool>(false);
      event->at_ms = std::make_shared<double>();
      self.push(*stream, [&self, passed = event->latest, at_ms = event->at_ms] {
        *passed = true;
        *at_ms = self.now_ms_;
      });
      return 0;
    });
  }
  static int event_elapsed(float* ms, CUevent_st* start, CUevent_st* end) {
    return call("cuEventElapsedTime", true, [&](auto& self) {
      for (const CUevent_st* event : {start, end}) {
        if (self.events_.count(const_cast<CUevent_st*>(event)) == 0 || !event->has_time || !event->latest)
          return kInvalidHandle;
        if (!*event->latest) return cuda_status::kNotReady;
      }
      return *ms = static_cast<float>(*end->at_ms - *start->at_ms), self.lost_;
    });
  }
  static int event_query(CUevent_st* event) {
    return call("cuEventQuery", true, [&](auto& self) {
      if (self.events_.count(event) == 0) return kInvalidHandle;
      if (event->captured_in != 0) return EmulatedGraphs::kCapturedEvent;
      self.run_some();
      return self.lost_ != 0 ? self.lost_ : !event->latest || *event->latest ? 0 : cuda_status::kNotReady;
    });
  }
  static int memory_allocate(CudaDriver::Address* address, std::size_t bytes) {
    return call("cuMemAlloc", true, [&](auto& self) {
      if (bytes == 0) return kInvalidValue;
      if (self.used_bytes_ + bytes > static_cast<std::size_t>(self.options_.memory_bytes))
        return cuda_status::kOutOfMemory;
      auto block = self.options_.is_guarded ? guarded_memory(bytes) : plain_memory(bytes);
      *address = reinterpret_cast<CudaDriver::Address>(block.get());
      self.memory_[*address] = {std::move(block), bytes};
      self.used_bytes_ += bytes;
      return 0;
    });
  }
  static int memory_free(CudaDriver::Address address) {
    return call("cuMemFree", true, [&](auto& self) {
      const auto block = self.memory_.find(address);
      if (block == self.memory_.end()) return kInvalidValue;
      self.used_bytes_ -= block->second.bytes;
      self.memory_.erase(block);
      return 0;
    });
  }
  static int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) {
    return call("cuMemGetInfo", true, [&](auto& self) {
      *total_bytes = static_cast<std::size_t>(self.options_.memory_bytes);
      return *free_bytes = *total_bytes - self.used_bytes_, 0;
    });
  }
  static int host_allocate(void** address, std::size_t bytes, unsigned) {
    return call("cuMemHostAlloc", true, [&](auto& self) {
      constexpr std::size_t kPage = 4096;
      *address = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
      if (*address == nullptr) return cuda_status::kOutOfMemory;
      self.host_memory_.insert(*address);
      return 0;
    });
  }
  static int host_free(void* address) {
    return call("cuMemFreeHost", true, [&](auto& self) {
      if (self.host_memory_.erase(address) == 0) return kInvalidValue;
      std::free(address);
      return 0;
    });
  }

  static int memory_set(CudaDriver::Address address, unsigned char value, std::size_t bytes, CUstream_st* stream) {
    return call("cuMemsetD8Async", true, [&](auto& self) {
      self.push(*stream, [=] { std::memset(reinterpret_cast<void*>(address), value, bytes); });
      return self.lost_;
    });
  }
  static int memory_set_words(CudaDriver::Address address, unsigned value, std::size_t words, CUstream_st* stream) {
    return call("cuMemsetD32Async", true, [&](auto& self) {
      if (address % sizeof value != 0) return kInvalidValue;
      self.push(*stream, [=] { std::fill_n(reinterpret_cast<unsigned*>(address), words, value); });
      return self.lost_;
    });
  }
  static int memory_copy(CudaDriver::Address to, CudaDriver::Address from, std::size_t bytes, CUstream_st* stream) {
    return call("cuMemcpyAsync", true, [&](auto& self) {
      self.push(*stream, [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
      return self.lost_;
    });
  }
  static int capture_begin(CUstream_st* stream, int mode) {
    return call("cuStreamBeginCapture", true, [&](auto& self) {
      return self.streams_.count(stream) == 0 || mode != CudaDriver::kThreadLocalCapture ? kInvalidHandle
                                                                                         : self.graphs_.begin(*stream);
    });
  }
  static int capture_end(CUstream_st* stream, CUgraph_st** graph) {
    return call("cuStreamEndCapture", true, [&](auto& self) { return self.graphs_.end(stream, graph); });
  }
  static int graph_instantiate(CUgraphExec_st** made, CUgraph_st* graph, unsigned long long flags) {
    return call("cuGraphInstantiate", true,
                [&](auto& self) { return flags != 0 ? kInvalidValue : self.graphs_.instantiate(made, graph); });
  }
  static int graph_launch(CUgraphExec_st* graph, CUstream_st* stream) {
    return call("cuGraphLaunch", true, [&](auto& self) { return self.graphs_.launch(graph, *stream); });
  }
  static int graph_exec_destroy(CUgraphExec_st* graph) {
    return call("cuGraphExecDestroy", true, [&](auto& self) { return self.graphs_.destroy(graph); });
  }
  static int graph_destroy(CUgraph_st* graph) {
    return call("cuGraphDestroy", true, [&](auto& self) { return self.graphs_.destroy(graph); });
  }
  static int module_load(CUmod_st** module, const void*) {
    return call("cuModuleLoadData", true, [&](auto& self) {
      *module = *self.modules_.insert(new CUmod_st).first;
      for (const auto& [name, kernel] : self.options_.kernels) (*module)->functions[name] = {&kernel};
      return 0;
    });
  }
  static int module_unload(CUmod_st* module) {
    return call("cuModuleUnload", true, [&](auto& self) {
      if (self.modules_.erase(module) == 0) return kInvalidHandle;
      delete module;
      return 0;
    });
  }
  static int module_function(CUfunc_st** function, CUmod_st* module, const char* name) {
    return call("cuModuleGetFunction", true, [&](auto& self) {
      if (self.modules_.count(module) == 0) return kInvalidHandle;
      const auto found = module->functions.find(name);
      if (found == module->functions.end()) return kNotFound;
      *function = &found->second;
      return 0;
    });
  }
  static int function_load(CUfunc_st*) {
    return call("cuFuncLoad", true, [](auto&) { return 0; });
  }
  static int function_attribute(CUfunc_st* function, int attribute, int value) {
    return call("cuFuncSetAttribute", true, [&](auto& self) {
      constexpr int kMostSharedBytes = 227 << 10;  // of compute capability 9.0
      if (attribute != CudaDriver::kMostDynamicSharedBytes || value < 0 || value > kMostSharedBytes)
        return kInvalidValue;
      function->most_shared_bytes = static_cast<unsigned>(value);
      return self.lost_;
    });
  }
  static int launch(CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                    unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream_st* stream, void** arguments,
                    void**) {
    return call("cuLaunchKernel", true, [&](auto& self) {
      constexpr unsigned kMostThreads = 1024;
      if (grid_x == 0 || grid_x > INT32_MAX || block_x == 0 || block_x > kMostThreads) return kInvalidValue;
      if (shared_bytes > function->most_shared_bytes) return kInvalidValue;
      const auto* const bytes = static_cast<const std::byte*>(arguments[0]);
      const std::vector<std::byte> args(bytes, bytes + function->kernel->args_bytes);
      self.push(*stream, [=, &self, kernel = function->kernel] {
        self.run_kernel(*kernel, args.data(), {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes});
      });
      return self.lost_;
    });
  }

  static constexpr CudaDriver kTable = {
      .init = init,
      .error_text = error_text,
      .device_count = device_count,
      .device = device,
      .device_name = device_name,
      .device_uuid = device_uuid,
      .device_attribute = device_attribute,
      .device_memory = device_memory,
      .context_retain = context_retain,
      .context_release = context_release,
      .context_make_current = context_make_current,
      .priority_range = priority_range,
      .stream_create = stream_create,
      .stream_destroy = stream_destroy,
      .stream_query = stream_query,
      .stream_wait_event = stream_wait_event,
      .stream_call = stream_call,
      .event_create = event_create,
      .event_destroy = event_destroy,
      .event_record = event_record,
      .event_query = event_query,
      .event_elapsed = event_elapsed,
      .memory_allocate = memory_allocate,
      .memory_free = memory_free,
      .memory_info = memory_info,
      .host_allocate = host_allocate,
      .host_free = host_free,
      .memory_set = memory_set,
      .memory_set_words = memory_set_words,
      .memory_copy = memory_copy,
      .capture_begin = capture_begin,
      .capture_end = capture_end,
      .graph_instantiate = graph_instantiate,
      .graph_launch = graph_launch,
      .graph_exec_destroy = graph_exec_destroy,
      .graph_destroy = graph_destroy,
      .module_load = module_load,
      .module_unload = module_unload,
      .module_function = module_function,
      .function_load = function_load,
      .function_attribute = function_attribute,
      .launch = launch,
  };
};

const CudaDriver& emulated_functions() { return EmulatedFunctions::kTable; }

}  // namespace zs::test
