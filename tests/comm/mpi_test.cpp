// The conformance cases over processes, run by mpirun: TRANSPORT [MODE]. Exit 0: all passed. Modes: none; lost, a peer
// that never comes; abort, rank 0 ends the job with 42 while the others wait; late, the last rank does not come to the
// end of the job, which ends with 69; huge, buffers of more than 2^31 bytes; ordered, sums over all ranks one after the
// other; killed, the last rank is killed and the others must notice by themselves; refused, the last rank gets no
// shared memory and all use mpi; tcp, how Open MPI would send over TCP is printed; meddled, the last rank writes to
// what an operation is about to give it; unwound, an exception leaves the last rank's world while the others wait, and
// is told outside of it; apart, the last rank waits in another operation than the rest; asleep, rank 0 keeps the others
// waiting, and it is printed how much of a processor that took.
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "comm/health/status_scope.h"
#include "comm/health/watchdog.h"
#include "comm/host/host_map.h"
#include "comm/mpi/mpi_exchange.h"
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

double cpu_seconds() {
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) != 0) throw std::runtime_error("no getrusage");
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

/// Of all threads of all ranks together, while these wait for 3 s: who spins would have all there is.
void wait_calmly(World& world) {
  constexpr double kMostShare = 0.1;  // of a processor, for each rank
  const auto comm = world.communicator();
  const auto device = Device::create(DeviceKind::cpu, {});
  Stream& stream = device->stream(StreamRole::compute);
  const auto meet = [&] {
    comm->barrier(stream, "unit");
    device->synchronize();
  };
  meet();
  const double cpu_before = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(3));
  meet();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  double share = (cpu_seconds() - cpu_before) / wall.count();
  comm->all_reduce(stream, "unit", {&share, 1, DType::f64, DeviceKind::cpu}, ReduceOp::sum);
  device->synchronize();
  expect(wall.count() > 2.5, "the wait was {:.1f} s", wall.count());
  if (world.rank() != 0) return;
  fmt::print("{} ranks {} with {:.0f} % of a processor\n", world.size(),
             share < kMostShare * world.size() ? "waited calmly" : "spun", 100 * share);
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
  const bool is_known =
      message.find(fmt::format("waited for rank {}, whose process has ended", last)) != message.npos ||
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
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) throw std::runtime_error("no limit was set");
}

/// Open MPI's own variable, as it understood what it was told.
template <class T>
T variable_of_mpi(const char* name) {
  int index = 0, count = 0;
  T value{};
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  check_mpi(MPI_T_cvar_get_index(name, &index), "MPI_T_cvar_get_index");
  check_mpi(MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count), "MPI_T_cvar_handle_alloc");
  check_mpi(MPI_T_cvar_read(handle, &value), "MPI_T_cvar_read");
  check_mpi(MPI_T_cvar_handle_free(&handle), "MPI_T_cvar_handle_free");
  return value;
}

void print_tcp_settings(const World& world) {
  constexpr unsigned kPut = 2;  // MCA_BTL_FLAGS_PUT
  int provided = 0;
  check_mpi(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided), "MPI_T_init_thread");
  fmt::print("rank {} sends large messages over tcp {}, {} KiB at most in a socket\n", world.rank(),
             (variable_of_mpi<unsigned>("btl_tcp_flags") & kPut) != 0 ? "as one piece" : "in fragments",
             variable_of_mpi<int>("btl_tcp_sndbuf") / 1024);
  check_mpi(MPI_T_finalize(), "MPI_T_finalize");
}

/// Once the output holds the pattern that private copies leave there, which is gone when the results come.
void write_to_what_is_in_use(World& world) {
  const auto comm = world.communicator();
  const auto device = Device::create(DeviceKind::cpu, {});
  Array<float> full(*comm, 4 * world.size());
  full.fill([](std::int64_t i) { return static_cast<float>(i); });
  comm->all_gather(device->stream(StreamRole::unshard), "blocks.1", full.buffer().slice(4 * world.rank(), 4),
                   full.buffer());
  if (world.rank() == world.size() - 1) {
    volatile float& first = full[0];
    while (!std::isnan(first)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    first = 9;
  }
  device->synchronize();
}

/// No phase has a limit, and the operations would wait for 30 s.
void wait_apart(World& world) {
  const auto device = Device::create(DeviceKind::cpu, {});
  const StatusScope observed(world.watchdog(), *device);
  Stream& stream = device->stream(StreamRole::compute);
  const auto everybody = world.communicator(), others = world.communicator();
  for (Communicator* comm : {everybody.get(), others.get()}) comm->barrier(stream, "before");
  const bool is_odd = world.rank() == world.size() - 1;
  (is_odd ? everybody : others)->barrier(stream, is_odd ? "own" : "theirs");
  device->synchronize();
}

/// As a trainer does whose handler is around everything.
int tell_outside(std::string_view transport) {
  try {
    WorldOptions options{.timeout_s = 30};
    options.watch.step_s = 20;
    const auto world = make_process_world(options, transport);
    world->watchdog()->enter(Phase::step, 1);
    const int last = world->size() - 1;
    if (world->rank() < last) wait_for_ever(*world);
    const auto comm = world->communicator();
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    throw Error(ExitCode::io, "the disk is full");
  } catch (const GroupEnded& error) {
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than the others look for who has left
    fmt::print("told: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}

int run(std::string_view transport, std::string_view mode) {
  const double timeout_s =
      mode == "" || mode == "ordered" || mode == "huge"                                                 ? 60
      : mode == "abort" || mode == "killed" || mode == "asleep" || mode == "meddled" || mode == "apart" ? 30
                                                                                                        : 1.5;
  if (mode == "unwound") return tell_outside(transport);
  if (mode == "refused") refuse_shared_memory();
  WorldOptions options{.timeout_s = timeout_s, .sums_in_rank_order = mode == "ordered"};
  const char* const race_check = std::getenv("ZSHARD_TEST_RACE_CHECK_MS");
  if (race_check != nullptr) options.race_check_delay_ms = std::atof(race_check);
  const auto world = make_process_world(options, transport);
  try {
    const std::string expected = mode == "refused"     ? "mpi"
                                 : transport == "hier" ? hier_comes_to(*world)
                                                       : std::string(transport);
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
      print_tcp_settings(*world);
    } else if (mode == "meddled") {
      write_to_what_is_in_use(*world);
    } else if (mode == "apart") {
      try {
        wait_apart(*world);
      } catch (const Error&) {  // the rank that reports ends the job
        std::this_thread::sleep_for(std::chrono::seconds(20));
      }
    } else if (mode == "asleep") {
      wait_calmly(*world);
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
