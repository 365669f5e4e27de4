#pragma once

#include <climits>
#include <cstddef>
#include <memory>
#include <string>

// NCCL's own handle, and the driver's stream, as their headers declare them.
struct ncclComm;
struct CUstream_st;

namespace zs {

/// The functions of NVIDIA's NCCL that zshard calls, with its own signatures: enumerations are int. As for the driver
/// (cuda_driver.h), nothing here needs NVIDIA's header; where that is found, nccl_abi_check.cpp compares each line with
/// it. All but the texts return a status.
struct NcclLibrary {
  struct Id {
    char bytes[128];
  };
  /// The beginning of ncclConfig_t, as NCCL 2.18 has it: later ones take it by its size and version.
  struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef, version = 21800;
    int blocking = 1, cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;  // INT_MIN: NCCL chooses
    const char* net_name = nullptr;
    int split_share = INT_MIN;
  };
  static constexpr int kOldestVersion = 21800;  // ncclCommSplit

  int (*version)(int* version);
  const char* (*error_text)(int status);
  const char* (*last_error)(ncclComm* comm);
  int (*unique_id)(Id* id);
  int (*init)(ncclComm** comm, int ranks, Id id, int rank, Config* config);
  int (*split)(ncclComm* comm, int color, int key, ncclComm** made, Config* config);
  int (*finalize)(ncclComm* comm);
  int (*destroy)(ncclComm* comm);
  int (*abort)(ncclComm* comm);
  int (*async_error)(ncclComm* comm, int* status);

  int (*all_gather)(const void* from, void* to, std::size_t count, int dtype, ncclComm* comm, CUstream_st* stream);
  int (*reduce_scatter)(const void* from, void* to, std::size_t count, int dtype, int op, ncclComm* comm,
                        CUstream_st* stream);
  int (*all_reduce)(const void* from, void* to, std::size_t count, int dtype, int op, ncclComm* comm,
                    CUstream_st* stream);
  int (*broadcast)(const void* from, void* to, std::size_t count, int dtype, int root, ncclComm* comm,
                   CUstream_st* stream);
  int (*send)(const void* from, std::size_t count, int dtype, int peer, ncclComm* comm, CUstream_st* stream);
  int (*receive)(void* to, std::size_t count, int dtype, int peer, ncclComm* comm, CUstream_st* stream);
  int (*group_start)();
  int (*group_end)();

  /// Functions from 2.19; null before. Memory that is taken here can be registered; it may be more than was asked for.
  int (*memory_allocate)(void** address, std::size_t bytes);
  int (*memory_free)(void* address);
  int (*enroll)(ncclComm* comm, void* address, std::size_t bytes, void** handle);
  int (*discharge)(ncclComm* comm, void* handle);
};

/// NCCL's numbers, where they matter here.
namespace nccl {
inline constexpr int kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;
inline constexpr int kU8 = 1, kI32 = 2, kI64 = 4, kF32 = 7, kF64 = 8, kBf16 = 9;
inline constexpr int kSum = 0, kMax = 2, kMin = 3;
}  // namespace nccl

/// Opens the library, first looked for in `folders` (separated by colons), at last in cuda_folders(). Error(config)
/// that says in one line what is missing: the library, a version of it that is new enough, what set_nccl_environment
/// (comm/gpu/gpu_world.h) sets.
std::shared_ptr<const NcclLibrary> open_nccl_library(const char* library, const std::string& folders = {});
/// 22800 of NCCL 2.28. `name`: the library's, for the error.
int version_of(const NcclLibrary& library, const char* name);

}  // namespace zs
