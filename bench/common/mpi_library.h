#pragma once

#include <mpi.h>

#include "bench/collectives/collective_report.h"
#include "runtime/base/buffer.h"

namespace zs::bench {

/// The MPI library's own collectives, to compare with: blocking, called by the host thread, in place where Collective's
/// are. Owns a copy of MPI_COMM_WORLD; must die before MPI is finalised.
class MpiLibrary {
 public:
  MpiLibrary();
  ~MpiLibrary();
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  /// It has no sum of bf16.
  static bool has(Collective op, DType dtype) {
    return dtype == DType::f32 || (op != Collective::reduce_scatter && op != Collective::all_reduce);
  }
  /// `out` for all_to_all only. reduce_scatter leaves its result at the beginning of `data`.
  void call(Collective op, Buffer data, Buffer out);

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int size_ = 0;
};

}  // namespace zs::bench
