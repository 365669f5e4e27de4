#pragma once

#include <cstdint>

#include "runtime/base/launch.h"

namespace zs {

/// MPI library that a program is built with. Libraries with MPICH's binary interface are MPICH here.
enum class MpiLibrary : std::uint8_t { open_mpi, mpich, none };
MpiLibrary mpi_of_this_build();

/// The launch as the library takes it: see detect_launch.
Launch accepted_launch(const Launch& launch, MpiLibrary library);

}  // namespace zs
