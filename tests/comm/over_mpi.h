#pragma once

#include <cstdio>
#include <exception>

#include "comm/world.h"

namespace zs::test {

/// What main of a program returns that is one test by ranks over MPI. An exception ends the job with its line.
template <class Body>
int run_over_mpi(const Body& body) {
  const auto world = make_process_world(WorldOptions{.timeout_s = 60}, "mpi");
  try {
    body(*world);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world->rank(), error.what());
    world->abort(1);
    return 1;
  }
  return 0;
}

}  // namespace zs::test
