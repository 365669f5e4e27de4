#include "runtime/device/cublas_lt.h"

#include "runtime/device/shared_library.h"

namespace zs {
namespace {

struct LoadedCublas {
  LoadedCublas() {
    library.find(table.status_text, "cublasLtGetStatusString");
    library.find(table.create, "cublasLtCreate");
    library.find(table.destroy, "cublasLtDestroy");
    library.find(table.operation_create, "cublasLtMatmulDescCreate");
    library.find(table.operation_destroy, "cublasLtMatmulDescDestroy");
    library.find(table.operation_set, "cublasLtMatmulDescSetAttribute");
    library.find(table.layout_create, "cublasLtMatrixLayoutCreate");
    library.find(table.layout_destroy, "cublasLtMatrixLayoutDestroy");
    library.find(table.preference_create, "cublasLtMatmulPreferenceCreate");
    library.find(table.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    library.find(table.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    library.find(table.find_algorithms, "cublasLtMatmulAlgoGetHeuristic");
    library.find(table.multiply, "cublasLtMatmul");
  }

  SharedLibrary library{{"libcublasLt.so.13", "libcublasLt.so.12"},
                        "cuBLASLt",
                        "put the folder of CUDA's libcublasLt.so into LD_LIBRARY_PATH, or use device = \"cpu\""};
  CublasLt table{};
};

}  // namespace

std::shared_ptr<const CublasLt> open_cublas_lt() {
  const auto loaded = std::make_shared<const LoadedCublas>();
  return {loaded, &loaded->table};
}

}  // namespace zs
