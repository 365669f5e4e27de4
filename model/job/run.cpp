#include "model/job/run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <thread>

#include "comm/health/status_scope.h"
#include "comm/health/watchdog.h"
#include "comm/together.h"
#include "kernels/kernels.h"
#include "model/job/rank_device.h"
#include "model/job/rank_gpus.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/usage_error.h"
#include "runtime/device/cpu_topology.h"

namespace zs {
namespace {

/// Exit code for an exception that zshard has not thrown.
constexpr int kForeign = 1;

/// Failure that a program dies of.
struct Failure {
  int code = 0;
  std::string what, where, todo;
  bool is_consequence = false;  ///< caused by another rank's
};

Failure failure_of(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what_happened(), error.where(), error.what_to_do(),
            dynamic_cast<const GroupEnded*>(&error) != nullptr};
  } catch (const std::bad_alloc&) {
    return {static_cast<int>(ExitCode::out_of_memory), "out of memory", "", "use smaller micro-batches, or more ranks"};
  } catch (const std::exception& error) {
    return {kForeign, error.what(), "", ""};
  } catch (...) {
    return {kForeign, "an exception that is no std::exception", "", ""};
  }
}

void print(const std::string& program, Failure failure, const std::string& place) {
  if (!place.empty() && !failure.where.starts_with("rank "))
    failure.where += (failure.where.empty() ? "" : ", ") + place;
  print_to_stderr("{}: error: {}{}{}\n", program, failure.what,
                  failure.where.empty() ? "" : fmt::format(" ({})", failure.where),
                  failure.todo.empty() ? "" : ": " + failure.todo);
}

/// The last words of a rank that the others know nothing of, and the end of the job. One rank of a host says them.
int end_alone(World& world, const std::string& program, const Failure& failure) {
  Watchdog* const watchdog = world.watchdog();
  // The rank that has caused a failure is to report it, and a watchdog that has reported ends the job with its own
  // code.
  const bool has_been_reported = watchdog != nullptr && watchdog->report_seen();
  if (failure.is_consequence || has_been_reported) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (watchdog == nullptr || watchdog->try_claim_report(failure.what))
    print(program, failure, world.size() > 1 ? fmt::format("rank {}", world.rank()) : "");
  std::fflush(nullptr);
  if (world.size() > 1) world.abort(failure.code);
  return failure.code;
}

/// Chooses what the ranks compute on, and the GPUs of all of them where it is one each. Collective.
RankDeviceOptions choose_rank_device(World& world, const std::string& program, const RunOptions& options) {
  RankDeviceOptions chosen{.timeout_s = options.timeout_s};
  const auto together = [&world](const std::function<void()>& body) { zs::together(world, body); };
  const auto say = [&](const char* kind, const std::string& note) {
    if (world.rank() == 0 && !note.empty()) print_to_stderr("{}: {}: {}\n", program, kind, note);
  };
  if (options.device == "cuda") chosen.kind = DeviceKind::cuda;
  if (options.device == "auto") {
    const DeviceChoice choice = choose_device(world, look_for_gpu(options.cuda.libraries), together);
    chosen.kind = choice.kind;
    say("note", choice.note);
  }
  if (chosen.kind != DeviceKind::cuda) return chosen;
  const GpuRanks gpus = find_rank_gpus(world, {.cuda = options.cuda, .planned_ranks = world.size()}, together);
  say(gpus.is_warning ? "warning" : "note", gpus.note());
  chosen.device.gpu = gpus.gpu;
  chosen.device.shares_gpu = options.cuda.share_gpu;
  chosen.device.libraries = options.cuda.libraries;
  chosen.transport = gpus.transport;
  chosen.nccl = {.timeout_s = options.timeout_s,
                 .arithmetic = GpuArithmetic::of(cuda_kernels()),
                 .folders = options.cuda.libraries};
  return chosen;
}

void run_rank(World& world, const std::string& program, const std::vector<std::string>& arguments,
              const std::function<void(Job&)>& body, const RunOptions& options) {
  const CpuShare share = cpu_share(world.local_rank(), world.local_size());
  RankDeviceOptions chosen = choose_rank_device(world, program, options);
  chosen.device.threads = options.threads > 0 ? options.threads : share.threads;
  chosen.device.cpus = share.cpus;
  RankDevice device(world, std::move(chosen));
  const StatusScope observed(world.watchdog(), device.device());
  Context context(device.device());
  Job job{device.world(), device.device(), context, arguments};
  body(job);
  device.device().synchronize();
}

void check(const RunOptions& options) {
  chosen_transport(options.transport);  // a wrong name is refused, also where one rank has no use for it
  if (!(options.timeout_s > 0) || options.threads < 0 || options.local_ranks < 0)
    throw UsageError(fmt::format("zs::run with a timeout of {} s, {} threads and {} local ranks", options.timeout_s,
                                 options.threads, options.local_ranks),
                     "the timeout is above 0, and the others are at least 0");
  if (options.device != "auto" && options.device != "cpu" && options.device != "cuda")
    throw UsageError(fmt::format("zs::run with device \"{}\"", options.device), "use \"auto\", \"cpu\" or \"cuda\"");
  const std::string& transport = options.cuda.transport;
  if (transport != "auto" && transport != "nccl" && transport != "staged")
    throw UsageError(fmt::format("zs::run with cuda.transport \"{}\"", transport),
                     "use \"auto\", \"nccl\" or \"staged\"");
}

}  // namespace

int run(int argc, char** argv, const std::function<void(Job& job)>& body, const RunOptions& options) {
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename().string() : "zshard";
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const WorldOptions world_options{.timeout_s = options.timeout_s, .watch = {.program = program}};
  try {
    check(options);
    if (options.device != "cpu") set_nccl_environment();
    if (options.local_ranks > 0) {
      run_local_world(options.local_ranks, world_options,
                      [&](World& world) { run_rank(world, program, arguments, body, options); });
      return 0;
    }
    const auto world = detect_launch().is_by_mpi() ? make_process_world(world_options, options.transport)
                                                   : make_single_world(world_options);
    try {
      run_rank(*world, program, arguments, body, options);
    } catch (...) {
      return end_alone(*world, program, failure_of(std::current_exception()));
    }
    return 0;
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    print(program, failure, "");
    return failure.code;
  }
}

}  // namespace zs
