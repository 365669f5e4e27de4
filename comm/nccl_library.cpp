#include "comm/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <new>
#include <string>

#include "runtime/base/check.h"

namespace zs {
namespace {

constexpr const char* kTodo = "put libnccl.so.2 of NCCL 2.18 or newer where the loader looks (LD_LIBRARY_PATH), or stage over the hosts";

class LoadedNccl {
 public:
  explicit LoadedNccl(const char* name) : name_(name) {
    // Operations of several communicators on one GPU keep the host's order, which all ranks share. Read when NCCL starts.
    if (setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0) != 0) throw std::bad_alloc();
    handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw Error(ExitCode::config, fmt::format("no NCCL here ({})", dlerror()), {}, kTodo);
    find(table.version, "ncclGetVersion");
    find(table.error_text, "ncclGetErrorString");
    find(table.last_error, "ncclGetLastError");
    find(table.unique_id, "ncclGetUniqueId");
    find(table.init, "ncclCommInitRankConfig");
    find(table.split, "ncclCommSplit");
    find(table.finalize, "ncclCommFinalize");
    find(table.destroy, "ncclCommDestroy");
    find(table.abort, "ncclCommAbort");
    find(table.async_error, "ncclCommGetAsyncError");
    find(table.all_gather, "ncclAllGather");
    find(table.reduce_scatter, "ncclReduceScatter");
    find(table.all_reduce, "ncclAllReduce");
    find(table.broadcast, "ncclBroadcast");
    find(table.send, "ncclSend");
    find(table.receive, "ncclRecv");
    find(table.group_start, "ncclGroupStart");
    find(table.group_end, "ncclGroupEnd");
    find(table.enroll, "ncclCommRegister", false);
    find(table.discharge, "ncclCommDeregister", false);
  }
  // NCCL's threads may outlive its communicators by a moment: the library stays loaded.

  NcclLibrary table{};

 private:
  template <class Function>
  void find(Function*& function, const char* symbol, bool is_needed = true) {
    function = reinterpret_cast<Function*>(dlsym(handle_, symbol));
    if (function == nullptr && is_needed) throw Error(ExitCode::config, fmt::format("NCCL is too old: it has no {}", symbol), name_, kTodo);
  }

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace

std::shared_ptr<const NcclLibrary> open_nccl_library(const char* library) {
  const auto loaded = std::make_shared<const LoadedNccl>(library);
  int version = 0;
  const int status = loaded->table.version(&version);
  if (status != nccl::kSuccess) throw Error(ExitCode::config, fmt::format("ncclGetVersion: NCCL error {}", status), library, kTodo);
  if (version < NcclLibrary::kOldestVersion)
    throw Error(ExitCode::config, fmt::format("NCCL is too old: version {}", version), library, kTodo);
  return {loaded, &loaded->table};
}

}  // namespace zs
