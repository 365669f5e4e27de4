// Compiled by nvcc where it finds NCCL's header, and linked to nothing: what NcclLibrary says is what that header says.
#include <nccl.h>

#include <cstddef>

#include "comm/nccl/nccl_library.h"
#include "runtime/device/abi_check.h"

namespace zs::abi {

template <>
constexpr bool kStandsFor<NcclLibrary::Id, ncclUniqueId> = true;
template <>
constexpr bool kStandsFor<NcclLibrary::Config, ncclConfig_t> = true;

static_assert(sizeof(NcclLibrary::Id) == sizeof(ncclUniqueId) && alignof(NcclLibrary::Id) == alignof(ncclUniqueId));
static_assert(offsetof(NcclLibrary::Config, size) == offsetof(ncclConfig_t, size) &&
              offsetof(NcclLibrary::Config, magic) == offsetof(ncclConfig_t, magic) &&
              offsetof(NcclLibrary::Config, version) == offsetof(ncclConfig_t, version) &&
              offsetof(NcclLibrary::Config, blocking) == offsetof(ncclConfig_t, blocking) &&
              offsetof(NcclLibrary::Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize) &&
              offsetof(NcclLibrary::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs) &&
              offsetof(NcclLibrary::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs) &&
              offsetof(NcclLibrary::Config, net_name) == offsetof(ncclConfig_t, netName) &&
              offsetof(NcclLibrary::Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(NcclLibrary::Config{}.magic == ncclConfig_t(NCCL_CONFIG_INITIALIZER).magic &&
              NCCL_CONFIG_UNDEF_INT == INT_MIN);

static_assert(kSame<decltype(NcclLibrary::version), decltype(&ncclGetVersion)>);
static_assert(kSame<decltype(NcclLibrary::error_text), decltype(&ncclGetErrorString)>);
static_assert(kSame<decltype(NcclLibrary::last_error), decltype(&ncclGetLastError)>);
static_assert(kSame<decltype(NcclLibrary::unique_id), decltype(&ncclGetUniqueId)>);
static_assert(kSame<decltype(NcclLibrary::init), decltype(&ncclCommInitRankConfig)>);
static_assert(kSame<decltype(NcclLibrary::split), decltype(&ncclCommSplit)>);
static_assert(kSame<decltype(NcclLibrary::finalize), decltype(&ncclCommFinalize)>);
static_assert(kSame<decltype(NcclLibrary::destroy), decltype(&ncclCommDestroy)>);
static_assert(kSame<decltype(NcclLibrary::abort), decltype(&ncclCommAbort)>);
static_assert(kSame<decltype(NcclLibrary::async_error), decltype(&ncclCommGetAsyncError)>);
static_assert(kSame<decltype(NcclLibrary::all_gather), decltype(&ncclAllGather)>);
static_assert(kSame<decltype(NcclLibrary::reduce_scatter), decltype(&ncclReduceScatter)>);
static_assert(kSame<decltype(NcclLibrary::all_reduce), decltype(&ncclAllReduce)>);
static_assert(kSame<decltype(NcclLibrary::broadcast), decltype(&ncclBroadcast)>);
static_assert(kSame<decltype(NcclLibrary::send), decltype(&ncclSend)>);
static_assert(kSame<decltype(NcclLibrary::receive), decltype(&ncclRecv)>);
static_assert(kSame<decltype(NcclLibrary::group_start), decltype(&ncclGroupStart)>);
static_assert(kSame<decltype(NcclLibrary::group_end), decltype(&ncclGroupEnd)>);
static_assert(kSame<decltype(NcclLibrary::memory_allocate), decltype(&ncclMemAlloc)>);
static_assert(kSame<decltype(NcclLibrary::memory_free), decltype(&ncclMemFree)>);
static_assert(kSame<decltype(NcclLibrary::enroll), decltype(&ncclCommRegister)>);
static_assert(kSame<decltype(NcclLibrary::discharge), decltype(&ncclCommDeregister)>);

static_assert(nccl::kSuccess == ncclSuccess && nccl::kInvalidArgument == ncclInvalidArgument &&
              nccl::kInvalidUsage == ncclInvalidUsage && nccl::kRemoteError == ncclRemoteError &&
              nccl::kInProgress == ncclInProgress);
static_assert(nccl::kU8 == ncclUint8 && nccl::kI32 == ncclInt32 && nccl::kI64 == ncclInt64 &&
              nccl::kF32 == ncclFloat32 && nccl::kF64 == ncclFloat64 && nccl::kBf16 == ncclBfloat16);
static_assert(nccl::kSum == ncclSum && nccl::kMax == ncclMax && nccl::kMin == ncclMin);

}  // namespace zs::abi
