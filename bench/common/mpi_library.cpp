#include "bench/common/mpi_library.h"

#include <cerrno>

#include "comm/mpi/mpi_exchange.h"

namespace zs::bench {

MpiLibrary::MpiLibrary() {
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
}

MpiLibrary::~MpiLibrary() {
  if (MPI_Comm_free(&comm_) != MPI_SUCCESS) comm_ = MPI_COMM_NULL;  // MPI's to clean up
}

void MpiLibrary::call(Collective op, Buffer data, Buffer out) {
  ZS_CHECK(has(op, data.dtype) && data.bytes() <= INT32_MAX, "{} of {} bytes of {}", name_of(op), data.bytes(),
           zs::name_of(data.dtype));
  const auto elems = static_cast<int>(data.elems), part = elems / size_, bytes = static_cast<int>(data.bytes()),
             part_bytes = bytes / size_;
  switch (op) {
    case Collective::all_gather:
      return check_mpi(MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, data.data, part_bytes, MPI_BYTE, comm_),
                       "MPI_Allgather");
    case Collective::reduce_scatter:
      return check_mpi(MPI_Reduce_scatter_block(MPI_IN_PLACE, data.data, part, MPI_FLOAT, MPI_SUM, comm_),
                       "MPI_Reduce_scatter_block");
    case Collective::all_reduce:
      return check_mpi(MPI_Allreduce(MPI_IN_PLACE, data.data, elems, MPI_FLOAT, MPI_SUM, comm_), "MPI_Allreduce");
    case Collective::all_to_all:
      return check_mpi(MPI_Alltoall(data.data, part_bytes, MPI_BYTE, out.data, part_bytes, MPI_BYTE, comm_),
                       "MPI_Alltoall");
    case Collective::broadcast: return check_mpi(MPI_Bcast(data.data, bytes, MPI_BYTE, 0, comm_), "MPI_Bcast");
  }
}

}  // namespace zs::bench
