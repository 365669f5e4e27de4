// The conformance cases over MPI, run by mpirun. Exit 0: all passed. Modes: none; lost, a peer that never comes; abort, rank 0
// ends the job with 42 while the others wait; late, the last rank does not come to the end of the job, which ends with 69.
#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>

#include "tests/comm/conformance.h"

using namespace zs;
using namespace zs::test;

namespace {

void run_cases(World& world, std::span<const ConformanceCase> cases) {
  for (const ConformanceCase& one : cases) {
    const auto device = Device::create(DeviceKind::cpu, {});
    int code = 0;
    std::string message;
    try {
      one.run(world, *device);
    } catch (const std::exception& error) {
      code = 1;
      message = error.what();
    }
    if (code != 0) throw std::runtime_error(std::string(one.name) + ": " + message);
  }
}

void wait_for_ever(World& world) {
  const auto comm = world.communicator();
  const auto device = Device::create(DeviceKind::cpu, {});
  comm->barrier(device->stream(StreamRole::compute), "unit");
  device->synchronize();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  const double timeout_s = mode == "" ? 60 : mode == "abort" ? 30 : 1.5;
  const auto world = make_mpi_world({timeout_s});
  try {
    if (mode == "lost") {
      const auto device = Device::create(DeviceKind::cpu, {});
      expect_lost_peer_is_named(*world, *device, timeout_s);
    } else if (mode == "abort") {
      if (world->rank() == 0) {
        const auto matching = world->communicator();
        world->abort(42);
      }
      wait_for_ever(*world);
    } else if (mode == "late") {
      if (world->rank() == world->size() - 1) std::this_thread::sleep_for(std::chrono::seconds(40));
    } else {
      run_cases(*world, operation_cases());
      if (world->size() > 1) run_cases(*world, disagreement_cases());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world->rank(), error.what());
    world->abort(1);
    return 1;
  }
  return 0;
}
