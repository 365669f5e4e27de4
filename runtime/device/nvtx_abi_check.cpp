// Compiled by nvcc where there is one, and linked to nothing: what nvtx.h says of NVTX 3's interface to tools is what
// NVIDIA's headers say, where those are installed too.
#if __has_include(<nvtx3/nvToolsExtSync.h>)
#include <cuda.h>
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtCuda.h>
#include <nvtx3/nvToolsExtSync.h>

#include "runtime/device/abi_check.h"
#include "runtime/device/nvtx.h"

namespace zs::abi {

static_assert(nvtx::kCallbacks == NVTX_ETID_CALLBACKS && nvtx::kVersionInfo == NVTX_ETID_VERSIONINFO);
static_assert(sizeof(nvtx::Callbacks) == sizeof(NvtxExportTableCallbacks) &&
              offsetof(nvtx::Callbacks, module_functions) ==
                  offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable));
static_assert(sizeof(nvtx::VersionInfo) == sizeof(NvtxExportTableVersionInfo) &&
              offsetof(nvtx::VersionInfo, version) == offsetof(NvtxExportTableVersionInfo, version) &&
              offsetof(nvtx::VersionInfo, set_tool_version) ==
                  offsetof(NvtxExportTableVersionInfo, SetInjectionNvtxVersion));
static_assert(
    kSame<decltype(nvtx::Callbacks::module_functions), decltype(NvtxExportTableCallbacks::GetModuleFunctionTable)>);
static_assert(kSame<decltype(nvtx::VersionInfo::set_tool_version),
                    decltype(NvtxExportTableVersionInfo::SetInjectionNvtxVersion)>);
static_assert(kSame<nvtx::ExportTable, NvtxGetExportTableFunc_t>);

static_assert(nvtx::kCore == NVTX_CB_MODULE_CORE && nvtx::kCuda == NVTX_CB_MODULE_CUDA &&
              nvtx::kModules == NVTX_CB_MODULE_SIZE);
static_assert(nvtx::kCounts[NVTX_CB_MODULE_CORE] == NVTX_CBID_CORE_SIZE &&
              nvtx::kCounts[NVTX_CB_MODULE_CUDA] == NVTX_CBID_CUDA_SIZE &&
              nvtx::kCounts[NVTX_CB_MODULE_OPENCL] == NVTX_CBID_OPENCL_SIZE &&
              nvtx::kCounts[NVTX_CB_MODULE_CUDART] == NVTX_CBID_CUDART_SIZE &&
              nvtx::kCounts[NVTX_CB_MODULE_CORE2] == NVTX_CBID_CORE2_SIZE &&
              nvtx::kCounts[NVTX_CB_MODULE_SYNC] == NVTX_CBID_SYNC_SIZE);
static_assert(nvtx::kRangePush == NVTX_CBID_CORE_RangePushA && nvtx::kRangePop == NVTX_CBID_CORE_RangePop &&
              nvtx::kNameStream == NVTX_CBID_CUDA_NameCuStreamA);
static_assert(kSame<nvtx::RangePush, nvtxRangePushA_impl_fntype>);
static_assert(kSame<nvtx::RangePop, nvtxRangePop_impl_fntype>);
static_assert(kSame<nvtx::NameStream, nvtxNameCuStreamA_impl_fntype>);

}  // namespace zs::abi
#endif
