#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct CUstream_st;

namespace zs {

/// The functions of NVIDIA's cuBLASLt that zshard calls, as CudaDriver has those of the driver: enumerations are int,
/// and the library's handles are types of our own that nobody looks into. cublas_abi_check.cpp compares each line with
/// NVIDIA's header where nvcc is found. All but status_text and version return 0 or a status.
struct CublasLt {
  struct Handle;
  struct Operation;
  struct Layout;
  struct Preference;
  struct Algorithm {
    std::uint64_t data[8];
  };
  struct Candidate {
    Algorithm algorithm;
    std::size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
  };

  const char* (*status_text)(int status);
  std::size_t (*version)();

  int (*create)(Handle** handle);
  int (*destroy)(Handle* handle);

  int (*operation_create)(Operation** operation, int compute_type, int scale_type);
  int (*operation_destroy)(Operation* operation);
  int (*operation_set)(Operation* operation, int attribute, const void* value, std::size_t bytes);

  /// Layout of a matrix by columns, which begin `stride` elements apart.
  int (*layout_create)(Layout** layout, int type, std::uint64_t rows, std::uint64_t columns, std::int64_t stride);
  int (*layout_destroy)(Layout* layout);

  int (*preference_create)(Preference** preference);
  int (*preference_destroy)(Preference* preference);
  int (*preference_set)(Preference* preference, int attribute, const void* value, std::size_t bytes);

  /// The `wanted` best, of which there may be none.
  int (*find_algorithms)(Handle* handle, Operation* operation, Layout* a, Layout* b, Layout* c, Layout* d,
                         Preference* preference, int wanted, Candidate* candidates, int* found);
  /// d := alpha op(a) op(b) + beta c, and the operation's epilogue.
  int (*multiply)(Handle* handle, Operation* operation, const void* alpha, const void* a, Layout* a_layout,
                  const void* b, Layout* b_layout, const void* beta, const void* c, Layout* c_layout, void* d,
                  Layout* d_layout, const Algorithm* algorithm, void* workspace, std::size_t workspace_bytes,
                  CUstream_st* stream);
};

/// The numbers that go in and come out.
namespace cublas {
inline constexpr int kSuccess = 0, kNotInitialized = 1, kAllocationFailed = 3, kInvalidValue = 7, kExecutionFailed = 13,
                     kNotSupported = 15;
inline constexpr int kF32 = 0, kBf16 = 14;
inline constexpr int kComputeF32 = 68, kComputeTf32 = 77;
inline constexpr int kTransposed = 1;
/// Epilogue of a product: what becomes of its sums. GELU is its tanh form; a product with GELU writes GELU's input
/// beside its output, and one with GELU's gradient multiplies by the slope at the input that it reads: "aux" below.
inline constexpr int kPlainEpilogue = 1, kBiasEpilogue = 4, kGeluEpilogue = 160, kGeluBiasEpilogue = 164,
                     kGeluGradientEpilogue = 192;
/// Attributes of an operation, then of a preference.
inline constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8, kBiasType = 26,
                     kAuxPointer = 11, kAuxStride = 12, kAuxType = 22;
inline constexpr int kMostWorkspace = 1, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7, kAlignmentD = 8;
}  // namespace cublas

/// Opens the library, of CUDA 13 or 12, first looked for in `folders` (DeviceOptions::libraries), at last in
/// cuda_folders(). Error(config) that says in one line why there is none.
std::shared_ptr<const CublasLt> open_cublas_lt(const std::string& folders = {});

}  // namespace zs
