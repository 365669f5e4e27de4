#include "comm/nccl_library.h"

#include <cstdlib>
#include <new>

#include "runtime/base/check.h"
#include "runtime/device/shared_library.h"

namespace zs {
namespace {

constexpr const char* kTodo = "put libnccl.so.2 of NCCL 2.18 or newer where the loader looks (LD_LIBRARY_PATH), or stage over the hosts";

struct LoadedNccl {
  explicit LoadedNccl(const char* name) : library({name}, "NCCL", kTodo) {
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
    library.find_if_there(table.enroll, "ncclCommRegister");
    library.find_if_there(table.discharge, "ncclCommDeregister");
  }

  SharedLibrary library;
  NcclLibrary table{};
};

}  // namespace

std::shared_ptr<const NcclLibrary> open_nccl_library(const char* library) {
  // Operations of several communicators on one GPU keep the host's order, which all ranks share. Read when NCCL starts.
  if (setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0) != 0) throw std::bad_alloc();
  const auto loaded = std::make_shared<const LoadedNccl>(library);
  int version = 0;
  const int status = loaded->table.version(&version);
  if (status != nccl::kSuccess) throw Error(ExitCode::config, fmt::format("ncclGetVersion: NCCL error {}", status), library, kTodo);
  if (version < NcclLibrary::kOldestVersion)
    throw Error(ExitCode::config, fmt::format("NCCL is too old: version {}", version), library, kTodo);
  return {loaded, &loaded->table};
}

}  // namespace zs
