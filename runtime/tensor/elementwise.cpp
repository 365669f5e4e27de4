#include "runtime/tensor/elementwise.h"

#include <algorithm>

namespace zs::elementwise_detail {

void on_ranges(const ExecContext& exec, std::int64_t n,
               const std::function<void(std::int64_t begin, std::int64_t end)>& body) {
  constexpr std::int64_t kFewest = 16384;
  const std::int64_t pieces = std::clamp<std::int64_t>(n / kFewest, 1, exec.threads()),
                     each = (n + pieces - 1) / pieces;
#pragma omp parallel for num_threads(static_cast <int>(pieces)) schedule(static, 1) if (pieces > 1)
  for (std::int64_t piece = 0; piece < pieces; ++piece)
    body(std::min(n, piece * each), std::min(n, (piece + 1) * each));
}

void require_place(const std::string& name, const Tensor& x, bool has_gpu_code) {
  if (x.context().device().kind() != DeviceKind::cuda || has_gpu_code) return;
  throw UsageError(fmt::format("op {}: its functions are compiled for the CPU, and x is on a GPU", name),
                   "compile the file that calls elementwise() with nvcc, and mark the functions __host__ __device__");
}

void refuse_device(DeviceKind device) {
  throw Error(ExitCode::internal,
              fmt::format("check failed: an op compiled for the CPU alone ran on device {}", name_of(device)));
}

}  // namespace zs::elementwise_detail
