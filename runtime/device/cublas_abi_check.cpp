// Compiled by nvcc where there is one, and linked to nothing: what CublasLt says of the library's functions is what
// NVIDIA's header says, where that is installed too.
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>

#include <cstddef>

#include "runtime/device/abi_check.h"
#include "runtime/device/cublas_lt.h"

namespace zs::abi {

template <>
constexpr bool kStandsFor<CublasLt::Handle, cublasLtContext> = true;
template <>
constexpr bool kStandsFor<CublasLt::Operation, cublasLtMatmulDescOpaque_t> = true;
template <>
constexpr bool kStandsFor<CublasLt::Layout, cublasLtMatrixLayoutOpaque_t> = true;
template <>
constexpr bool kStandsFor<CublasLt::Preference, cublasLtMatmulPreferenceOpaque_t> = true;
template <>
constexpr bool kStandsFor<CublasLt::Algorithm, cublasLtMatmulAlgo_t> = sizeof(CublasLt::Algorithm) ==
                                                                       sizeof(cublasLtMatmulAlgo_t);
template <>
constexpr bool kStandsFor<CublasLt::Candidate, cublasLtMatmulHeuristicResult_t> =
    sizeof(CublasLt::Candidate) == sizeof(cublasLtMatmulHeuristicResult_t) &&
    offsetof(CublasLt::Candidate, algorithm) == offsetof(cublasLtMatmulHeuristicResult_t, algo) &&
    offsetof(CublasLt::Candidate, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) &&
    offsetof(CublasLt::Candidate, status) == offsetof(cublasLtMatmulHeuristicResult_t, state);

static_assert(kSame<decltype(CublasLt::status_text), decltype(&cublasLtGetStatusString)>);
static_assert(kSame<decltype(CublasLt::version), decltype(&cublasLtGetVersion)>);
static_assert(kSame<decltype(CublasLt::create), decltype(&cublasLtCreate)>);
static_assert(kSame<decltype(CublasLt::destroy), decltype(&cublasLtDestroy)>);
static_assert(kSame<decltype(CublasLt::operation_create), decltype(&cublasLtMatmulDescCreate)>);
static_assert(kSame<decltype(CublasLt::operation_destroy), decltype(&cublasLtMatmulDescDestroy)>);
static_assert(kSame<decltype(CublasLt::operation_set), decltype(&cublasLtMatmulDescSetAttribute)>);
static_assert(kSame<decltype(CublasLt::layout_create), decltype(&cublasLtMatrixLayoutCreate)>);
static_assert(kSame<decltype(CublasLt::layout_destroy), decltype(&cublasLtMatrixLayoutDestroy)>);
static_assert(kSame<decltype(CublasLt::preference_create), decltype(&cublasLtMatmulPreferenceCreate)>);
static_assert(kSame<decltype(CublasLt::preference_destroy), decltype(&cublasLtMatmulPreferenceDestroy)>);
static_assert(kSame<decltype(CublasLt::preference_set), decltype(&cublasLtMatmulPreferenceSetAttribute)>);
static_assert(kSame<decltype(CublasLt::find_algorithms), decltype(&cublasLtMatmulAlgoGetHeuristic)>);
static_assert(kSame<decltype(CublasLt::multiply), decltype(&cublasLtMatmul)>);

static_assert(cublas::kSuccess == CUBLAS_STATUS_SUCCESS && cublas::kNotInitialized == CUBLAS_STATUS_NOT_INITIALIZED &&
              cublas::kAllocationFailed == CUBLAS_STATUS_ALLOC_FAILED &&
              cublas::kInvalidValue == CUBLAS_STATUS_INVALID_VALUE &&
              cublas::kExecutionFailed == CUBLAS_STATUS_EXECUTION_FAILED &&
              cublas::kNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(cublas::kF32 == CUDA_R_32F && cublas::kBf16 == CUDA_R_16BF && cublas::kComputeF32 == CUBLAS_COMPUTE_32F &&
              cublas::kComputeTf32 == CUBLAS_COMPUTE_32F_FAST_TF32 && cublas::kTransposed == CUBLAS_OP_T &&
              cublas::kPlainEpilogue == CUBLASLT_EPILOGUE_DEFAULT && cublas::kBiasEpilogue == CUBLASLT_EPILOGUE_BIAS &&
              cublas::kGeluEpilogue == CUBLASLT_EPILOGUE_GELU_AUX &&
              cublas::kGeluBiasEpilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS &&
              cublas::kGeluGradientEpilogue == CUBLASLT_EPILOGUE_DGELU);
static_assert(cublas::kTransposeA == CUBLASLT_MATMUL_DESC_TRANSA &&
              cublas::kTransposeB == CUBLASLT_MATMUL_DESC_TRANSB &&
              cublas::kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE &&
              cublas::kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER &&
              cublas::kBiasType == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE &&
              cublas::kAuxPointer == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER &&
              cublas::kAuxStride == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD &&
              cublas::kAuxType == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE);
static_assert(cublas::kMostWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES &&
              cublas::kAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES &&
              cublas::kAlignmentB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES &&
              cublas::kAlignmentC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES &&
              cublas::kAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

}  // namespace zs::abi
#endif
