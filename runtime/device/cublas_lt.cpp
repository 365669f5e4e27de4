#include "runtime/device/cublas_lt.h"

#include "runtime/device/shared_library.h"

namespace zs {
namespace {

struct LoadedCublas {
  explicit LoadedCublas(const std::string& folders)
      : library({"libcublasLt.so.13", "libcublasLt.so.12"}, "cuBLASLt",
                "name the folder of CUDA's libcublasLt.so in cuda.libraries, or use device = \"cpu\"", folders,
                cuda_folders()) {
    library.find(table.status_text, "cublasLtGetStatusString");
    library.find(table.version, "cublasLtGetVersion");
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

  SharedLibrary library;
  CublasLt table{};
};

}  // namespace

std::shared_ptr<const CublasLt> open_cublas_lt(const std::string& folders) {
  const auto loaded = std::make_shared<const LoadedCublas>(folders);
  return {loaded, &loaded->table};
}

}  // namespace zs
