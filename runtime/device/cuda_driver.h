#pragma once

#include <cstddef>

// The driver's own handles, as its header declares them.
struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUmod_st;
struct CUstream_st;

namespace zs {

/// The functions of NVIDIA's driver (libcuda) that zshard calls, with the driver's own signatures: enumerations are
/// int, a device address is an integer. Nothing here needs NVIDIA's headers, so the whole host side is built and tested
/// everywhere; where nvcc is found, cuda_abi_check.cpp compares each line with those headers. All return 0 or an
/// error's number, which `check_cuda` reads.
struct CudaDriver {
  using Address = unsigned long long;

  int (*init)(unsigned flags);
  int (*error_text)(int error, const char** text);

  int (*device_count)(int* count);
  int (*device)(int* device, int ordinal);
  int (*device_name)(char* name, int size, int device);
  int (*device_uuid)(void* uuid, int device);  ///< 16 bytes
  int (*device_attribute)(int* value, int attribute, int device);
  int (*device_memory)(std::size_t* bytes, int device);

  int (*context_retain)(CUctx_st** context, int device);
  int (*context_release)(int device);
  int (*context_make_current)(CUctx_st* context);
  int (*priority_range)(int* least, int* greatest);

  int (*stream_create)(CUstream_st** stream, unsigned flags, int priority);
  int (*stream_destroy)(CUstream_st* stream);
  int (*stream_query)(CUstream_st* stream);
  int (*stream_wait_event)(CUstream_st* stream, CUevent_st* event, unsigned flags);
  /// A thread of the driver's calls `function`, which may not call the driver.
  int (*stream_call)(CUstream_st* stream, void (*function)(void* data), void* data);

  int (*event_create)(CUevent_st** event, unsigned flags);
  int (*event_destroy)(CUevent_st* event);
  int (*event_record)(CUevent_st* event, CUstream_st* stream);
  int (*event_query)(CUevent_st* event);
  int (*event_elapsed)(float* ms, CUevent_st* start, CUevent_st* end);  ///< both passed, and made without kWithoutTime
  static constexpr unsigned kWithTime = 0, kWithoutTime = 2;

  int (*memory_allocate)(Address* address, std::size_t bytes);
  int (*memory_free)(Address address);
  int (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes);
  int (*host_allocate)(void** address, std::size_t bytes, unsigned flags);  ///< the GPU reaches it by the same address
  int (*host_free)(void* address);
  int (*memory_set)(Address address, unsigned char value, std::size_t bytes, CUstream_st* stream);
  /// Words of 4 bytes
  int (*memory_set_words)(Address address, unsigned value, std::size_t words, CUstream_st* stream);
  int (*memory_copy)(Address to, Address from, std::size_t bytes, CUstream_st* stream);

  /// Begins a capture: until the end, what the stream is given, and what streams are given that wait for it, is noted
  /// and not done.
  int (*capture_begin)(CUstream_st* stream, int mode);
  int (*capture_end)(CUstream_st* stream, CUgraph_st** graph);
  static constexpr int kThreadLocalCapture = 1;  ///< meanwhile the calling thread may not ask, wait or allocate
  int (*graph_instantiate)(CUgraphExec_st** made, CUgraph_st* graph, unsigned long long flags);
  int (*graph_launch)(CUgraphExec_st* graph, CUstream_st* stream);
  int (*graph_exec_destroy)(CUgraphExec_st* graph);
  int (*graph_destroy)(CUgraph_st* graph);

  int (*module_load)(CUmod_st** module, const void* image);
  int (*module_unload)(CUmod_st* module);
  int (*module_function)(CUfunc_st** function, CUmod_st* module, const char* name);
  /// Loads a function: from CUDA 12.4; null before, when a function is loaded at its first launch.
  int (*function_load)(CUfunc_st* function);
  /// Attributes of what a function may use; shared memory beyond 48 KiB must be asked for here.
  static constexpr int kMostDynamicSharedBytes = 8;
  int (*function_attribute)(CUfunc_st* function, int attribute, int value);
  /// `arguments`: the address of each.
  int (*launch)(CUfunc_st* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream_st* stream, void** arguments,
                void** extra);
};

/// Return codes of the driver's functions that matter here.
namespace cuda_status {
inline constexpr int kSuccess = 0, kOutOfMemory = 2, kNoKernelImage = 209, kNotFound = 500, kNotReady = 600;
}

}  // namespace zs
