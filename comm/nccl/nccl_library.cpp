#include "comm/nccl/nccl_library.h"

#include <cstdlib>
#include <new>

#include "comm/gpu/gpu_world.h"
#include "runtime/base/check.h"
#include "runtime/device/shared_library.h"

namespace zs {
namespace {

constexpr const char* kLaunchOrder = "NCCL_LAUNCH_ORDER_IMPLICIT";
constexpr const char* kTodo =
    "name the folder of libnccl.so.2 of NCCL 2.18 or newer in cuda.libraries, or stage over the hosts";

struct LoadedNccl {
  LoadedNccl(const char* name, const std::string& folders) : library({name}, "NCCL", kTodo, folders, cuda_folders()) {
    library.find(table.version, "ncclGetVersion");
    library.find(table.error_text, "ncclGetErrorString");
    library.find(table.last_error, "ncclGetLastError");
    library.find(table.unique_id, "ncclGetUniqueId");
    library.find(table.init, "ncclCommInitRankConfig");
    library.find(table.split, "ncclCommSplit");
    library.find(table.finalize, "ncclCommFinalize");
    library.find(table.destroy, "ncclCommDestroy");
    library.find(table.abort, "ncclCommAbort");
    library.find(table.async_error, "ncclCommGetAsyncError");
    library.find(table.all_gather, "ncclAllGather");
    library.find(table.reduce_scatter, "ncclReduceScatter");
    library.find(table.all_reduce, "ncclAllReduce");
    library.find(table.broadcast, "ncclBroadcast");
    library.find(table.send, "ncclSend");
    library.find(table.receive, "ncclRecv");
    library.find(table.group_start, "ncclGroupStart");
    library.find(table.group_end, "ncclGroupEnd");
    library.find_if_there(table.memory_allocate, "ncclMemAlloc");
    library.find_if_there(table.memory_free, "ncclMemFree");
    library.find_if_there(table.enroll, "ncclCommRegister");
    library.find_if_there(table.discharge, "ncclCommDeregister");
  }

  SharedLibrary library;
  NcclLibrary table{};
};

}  // namespace

void set_nccl_environment() {
  if (setenv(kLaunchOrder, "1", 0) != 0) throw std::bad_alloc();
}

int version_of(const NcclLibrary& library, const char* name) {
  int version = 0;
  const int status = library.version(&version);
  if (status != nccl::kSuccess)
    throw Error(ExitCode::config, fmt::format("ncclGetVersion: NCCL error {}", status), name, kTodo);
  return version;
}

std::shared_ptr<const NcclLibrary> open_nccl_library(const char* library, const std::string& folders) {
  const auto loaded = std::make_shared<const LoadedNccl>(library, folders);
  if (const int version = version_of(loaded->table, library); version < NcclLibrary::kOldestVersion)
    throw Error(ExitCode::config, fmt::format("NCCL is too old: version {}", version), library, kTodo);
  if (std::getenv(kLaunchOrder) == nullptr)
    throw Error(ExitCode::config, fmt::format("{} is not set", kLaunchOrder), "environment",
                "set it to 1, or call set_nccl_environment() in main");
  return {loaded, &loaded->table};
}

}  // namespace zs
