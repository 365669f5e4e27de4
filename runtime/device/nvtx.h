#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace zs {

/// Interface by which a program and a profiler's library meet in NVTX 3, in NVIDIA's numbers; where nvcc is found,
/// nvtx_abi_check.cpp compares them with its headers. The tool asks for tables of pointers to the program's functions,
/// and points them at its own.
namespace nvtx {
using Function = void (*)();
inline constexpr std::uint32_t kCallbacks = 1, kVersionInfo = 3;  ///< tables that a tool asks for
struct Callbacks {
  std::size_t bytes = sizeof(Callbacks);
  /// 1 where there is such a module; `count` pointers, of which the first is null, and a null after them.
  int (*module_functions)(int module, Function*** table, unsigned* count);
};
struct VersionInfo {
  std::size_t bytes = sizeof(VersionInfo);
  std::uint32_t version = 3, reserved = 0;
  void (*set_tool_version)(std::uint32_t version);
};
using ExportTable = const void* (*)(std::uint32_t id);
/// Not 0: the tool is attached.
using Initialize = int (*)(ExportTable tables);
inline constexpr const char* kInitialize = "InitializeInjectionNvtx2";

inline constexpr int kCore = 1, kCuda = 2, kModules = 7;
/// Functions of each module, and one more, as the numbers begin at 1.
inline constexpr unsigned kCounts[kModules] = {0, 16, 9, 15, 7, 16, 7}, kMostFunctions = 16;
inline constexpr unsigned kRangePush = 9, kRangePop = 11;  ///< functions of kCore
inline constexpr unsigned kNameStream = 5;                 ///< function of kCuda
using RangePush = int (*)(const char* name);
using RangePop = int (*)();
using NameStream = void (*)(void* stream, const char* name);
}  // namespace nvtx

/// The profiler that this process runs under (Nsight Systems, or whatever else understands NVTX 3), and what it wants
/// to hear.
class Nvtx {
 public:
  /// The library that NVTX_INJECTION64_PATH names, opened at the first call and never closed. Null where no tool is
  /// attached: then there is nothing to call. One that cannot be used is a line on stderr. Any thread.
  static const Nvtx* of_process();

  /// Ranges of one thread nest.
  void push(const char* name) const {
    if (push_ != nullptr) push_(name);
  }
  void pop() const {
    if (pop_ != nullptr) pop_();
  }
  void name(CUstream_st* stream, const char* name) const {
    if (name_stream_ != nullptr) name_stream_(stream, name);
  }

 private:
  Nvtx(nvtx::RangePush push, nvtx::RangePop pop, nvtx::NameStream name_stream)
      : push_(push), pop_(pop), name_stream_(name_stream) {}
  static const Nvtx* attach(const char* path);

  nvtx::RangePush push_;
  nvtx::RangePop pop_;
  nvtx::NameStream name_stream_;
};

/// A range of the calling thread, for as long as it lives; nothing without a tool.
class NvtxRange {
 public:
  NvtxRange(const Nvtx* tool, const char* name) : tool_(tool) {
    if (tool_ != nullptr) tool_->push(name);
  }
  ~NvtxRange() {
    if (tool_ != nullptr) tool_->pop();
  }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

 private:
  const Nvtx* tool_;
};

}  // namespace zs
