// The conformance cases over processes, run by mpirun: TRANSPORT [MODE]. Exit 0: all passed. Modes: none; lost, a peer that never comes;
// abort, rank 0 ends the job with 42 while the others wait; late, the last rank does not come to the end of the job, which ends with 69;
// huge, buffers of more than 2^31 bytes; ordered, sums over all ranks one after the other; killed, the last rank is killed and the others
// must notice by themselves; refused, the last rank gets no shared memory and all use mpi; tcp, how Open MPI would send over TCP is
// printed.
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "comm/host_map.h"
#include "comm/mpi_exchange.h"
#include "tests/comm/arrays.h"
#include "tests/comm/conformance.h"
#include "tests/comm/host_cases.h"

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

std::string hier_comes_to(const World& world) {
  const HostMap map(world.hosts());
  return map.is_one_host() ? "shm" : map.is_one_rank_each() ? "mpi" : "hier";
}

void wait_for_ever(World& world) {
  const auto comm = world.communicator();
  const auto device = Device::create(DeviceKind::cpu, {});
  comm->barrier(device->stream(StreamRole::compute), "unit");
  device->synchronize();
}

/// mpirun, too, ends the others, a second later: their lines are the proof.
void notice_a_killed_rank(World& world) {
  const auto comm = world.communicator();
  const int last = world.size() - 1;
  if (world.rank() == last && raise(SIGKILL) != 0) throw std::runtime_error("still alive");
  const auto device = Device::create(DeviceKind::cpu, {});
  comm->barrier(device->stream(StreamRole::compute), "unit");
  std::string message = "nothing was thrown";
  try {
    device->synchronize();
  } catch (const Error& error) {
    message = error.code() == ExitCode::peer_lost ? error.what() : fmt::format("wrong code: {}", error.what());
  }
  // Whoever hears it from another survivor has no other news.
  const bool is_known = message.find(fmt::format("waited for rank {}, whose process has ended", last)) != message.npos ||
                        message.find("because another rank failed") != message.npos;
  fmt::print("rank {} {}: {}\n", world.rank(), is_known ? "noticed" : "failed", message);
  std::fflush(stdout);
}

/// A rank that may not write large files gets no shared memory either. MPI's own are there by then.
void refuse_shared_memory() {
  int provided = 0, rank = 0, size = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  if (rank != size - 1) return;
  const rlimit limit{1 << 20, 1 << 20};
  if (std::signal(SIGXFSZ, SIG_IGN) == SIG_ERR || setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("no limit was set");
}

/// As Open MPI itself understood what it was told.
void print_tcp_setting(const World& world) {
  constexpr unsigned kPut = 2;  // MCA_BTL_FLAGS_PUT
  int provided = 0, index = 0, count = 0;
  unsigned flags = 0;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  check_mpi(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided), "MPI_T_init_thread");
  check_mpi(MPI_T_cvar_get_index("btl_tcp_flags", &index), "MPI_T_cvar_get_index");
  check_mpi(MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count), "MPI_T_cvar_handle_alloc");
  check_mpi(MPI_T_cvar_read(handle, &flags), "MPI_T_cvar_read");
  check_mpi(MPI_T_cvar_handle_free(&handle), "MPI_T_cvar_handle_free");
  check_mpi(MPI_T_finalize(), "MPI_T_finalize");
  fmt::print("rank {} sends large messages over tcp {}\n", world.rank(), (flags & kPut) != 0 ? "as one piece" : "in fragments");
}

int run(std::string_view transport, std::string_view mode) {
  const double timeout_s = mode == "" || mode == "ordered" || mode == "huge" ? 60 : mode == "abort" || mode == "killed" ? 30 : 1.5;
  if (mode == "refused") refuse_shared_memory();
  WorldOptions options{.timeout_s = timeout_s, .sums_in_rank_order = mode == "ordered"};
  const char* const shadow = std::getenv("ZSHARD_TEST_SHADOW_MS");
  if (shadow != nullptr) options.watch.shadow_ms = std::atof(shadow);
  const auto world = make_process_world(options, transport);
  try {
    const std::string expected = mode == "refused" ? "mpi" : transport == "hier" ? hier_comes_to(*world) : std::string(transport);
    expect(world->transport() == expected, "transport {} instead of {}", world->transport(), expected);
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
    } else if (mode == "huge") {
      const auto device = Device::create(DeviceKind::cpu, {});
      huge_buffers_arrive(*world, *device);
    } else if (mode == "tcp") {
      print_tcp_setting(*world);
    } else if (mode == "killed") {
      notice_a_killed_rank(*world);
      wait_for_ever(*world);
    } else {
      run_cases(*world, mode == "refused" ? operation_cases().first(1) : operation_cases());
      if (world->size() > 1 && mode != "refused") run_cases(*world, disagreement_cases());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world->rank(), error.what());
    world->abort(1);
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view transport = argc > 1 ? argv[1] : "", mode = argc > 2 ? argv[2] : "";
  const int code = run(transport, mode);
  if (mode == "refused") check_mpi(MPI_Finalize(), "MPI_Finalize");
  return code;
}
