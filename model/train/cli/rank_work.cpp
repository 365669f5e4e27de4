#include "model/train/cli/rank_work.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <thread>

#include "comm/gpu/gpu_world.h"
#include "comm/host/interfaces.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/program.h"
#include "model/train/rank/startup.h"
#include "model/train/rank/stop_signal.h"
#include "model/train/rank/watch.h"
#include "runtime/base/launch.h"
#include "runtime/base/standard_streams.h"

namespace zs {
namespace {

/// Every line of an error, one a problem.
std::string error_lines(const Error& error, const std::string& place = {}) {
  const auto* config_error = dynamic_cast<const ConfigError*>(&error);
  if (config_error == nullptr) return error_line(error, place);
  std::string lines;
  for (const Error& problem : config_error->problems())
    lines += (lines.empty() ? "" : "\n") + error_line(problem, place);
  return lines;
}

void print_lines(const std::string& lines) { print_to_stderr("{}\n", lines); }

/// Work that was prepared, or the error that every rank shall end with.
struct Prepared {
  RankWork work;
  int code = 0;
  std::string message;

  void fail(const Error& error) {
    code = static_cast<int>(error.code());
    message = error_lines(error);
  }
};

/// The last words of a rank that the others know nothing of, and the end of the job. One rank of a host reports it.
int end_alone(World& world, const std::exception_ptr& problem) {
  const Error error = as_error(problem);
  const RankWatch watch(world);
  // The rank that has caused a failure is to report it, or its peers' watchdogs, who know more.
  if (is_consequence(problem)) std::this_thread::sleep_for(std::chrono::seconds(1));
  const bool is_told = error.where().starts_with("rank ");
  const bool speaks = watch.watchdog() == nullptr || watch.watchdog()->try_claim_report(error.what_happened());
  watch.dump(error.what());  // before the line, which is the last
  if (speaks) print_lines(error_lines(error, world.size() > 1 && !is_told ? fmt::format("rank {}", world.rank()) : ""));
  std::fflush(nullptr);
  if (world.size() > 1) world.abort(static_cast<int>(error.code()));
  return static_cast<int>(error.code());
}

/// Variables of the environment that ranks must have in common, a line each.
std::string variables() {
  const auto variable = [](const char* name) {
    const char* const text = std::getenv(name);
    return fmt::format("{} = {}\n", name, text == nullptr ? "unset" : text);
  };
  return variable("ZSHARD_TRANSPORT") + variable("ZSHARD_HOSTS_OF");
}

/// One rank that owns its process.
int run_process(World& world, const Prepared& prepared) {
  const RankWatch watch(world);
  watch.enter(Phase::init);  // a refusal ends within this limit, too
  try {
    watch.hit("agree");
    const World::Agreement agreement = world.agree(prepared.code, prepared.message);
    if (agreement.code != 0) {
      if (world.rank() == agreement.rank) print_lines(agreement.message);
      return agreement.code;
    }
    const RankWork& work = prepared.work;
    if (const int code = agree_at_start(world, work.config, work.started + variables()); code != 0) return code;
    return work.run(world);
  } catch (...) {
    return end_alone(world, std::current_exception());
  }
}

/// Several ranks as threads of this process.
int run_threads(const RankWork& work, const WorldOptions& options) {
  std::mutex mutex;
  int code = 0;
  run_local_world(static_cast<int>(work.config.comm.ranks), options, [&](World& world) {
    const int own = work.run(world);
    const std::lock_guard lock(mutex);
    code = std::max(code, own);
  });
  return code;
}

/// Ranks come from a launcher or from the configuration, not from both.
void check_ranks_source(Prepared& prepared, const Launch& launch) {
  const auto& comm = prepared.work.config.comm;
  if (prepared.code != 0 || !launch.is_by_mpi() || (comm.transport != "local" && comm.ranks == 1)) return;
  prepared.fail(Error(
      ExitCode::config,
      fmt::format("comm.transport = \"local\" and comm.ranks start ranks of their own, and {0} has started some",
                  launch.launcher),
      prepared.work.config_path, fmt::format("leave out {}, or leave those keys at their defaults", launch.launcher)));
}

/// Interfaces of this host that comm.interface means, where ranks may be on several, or the error that every rank shall
/// end with.
std::string interfaces_for(Prepared& prepared, const Launch& launch) {
  if (!launch.is_by_mpi() || launch.hosts == 1) return "";
  try {
    return interfaces_of_host(prepared.work.config.comm.interface);
  } catch (const Error& error) {
    if (prepared.code == 0) prepared.fail(error);
    return "";
  }
}

/// Says where the run's own comm.interface has no effect. `hosts`: of the ranks.
void note_useless_interface(const Config& config, const Launch& launch, const std::vector<int>& hosts) {
  if (config.comm.interface.empty() || config.given.site.contains("comm.interface")) return;
  if (std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end())
    print_note("comm.interface has no effect: all ranks are on one host");
  else if (launch.manager == ProcessManager::pmi)
    print_note("comm.interface has no effect on MPICH, which asks FI_TCP_IFACE or UCX_NET_DEVICES");
}

/// The transport that this one of a launcher's ranks wants; when there is something wrong anyhow, any to say so over.
std::string transport_for(Prepared& prepared) {
  try {
    if (prepared.code == 0) return chosen_transport(prepared.work.config.comm.transport);
  } catch (const Error& error) {
    prepared.fail(error);
  }
  return "";
}

}  // namespace

int run_on_ranks(const std::function<RankWork()>& prepare) {
  install_stop_signals();
  Launch launch;
  try {
    launch = detect_launch();
  } catch (const Error& error) {
    if (is_first_started()) throw;
    return static_cast<int>(error.code());  // one line is enough
  }
  Prepared prepared;
  try {
    prepared.work = prepare();
  } catch (const Error& error) {
    prepared.fail(error);
  }
  check_ranks_source(prepared, launch);
  const Config& config = prepared.work.config;
  const WorldOptions options{.timeout_s = config.comm.timeout_s,
                             .sums_in_rank_order = config.train.deterministic,
                             .race_check_delay_ms = config.comm.race_check_ms,
                             .watch = watch_options(config),
                             .interfaces = interfaces_for(prepared, launch)};
  if (launch.is_by_mpi()) {
    const auto world = make_process_world(options, transport_for(prepared));
    if (prepared.code == 0 && world->rank() == 0) note_useless_interface(config, launch, world->hosts());
    return run_process(*world, prepared);
  }
  const bool is_good = prepared.code == 0;
  if (is_good) note_useless_interface(config, launch, {0});
  if (is_good && config.comm.ranks > 1 && !prepared.work.is_for_one_process) return run_threads(prepared.work, options);
  auto world = make_single_world(options);
  if (is_good && config.comm.transport == "null") world = make_null_world(std::move(world));
  return run_process(*world, prepared);
}

int refuse_on_ranks(const Error& problem) {
  return run_on_ranks([&]() -> RankWork { throw problem; });
}

int print_answer(const std::string& text) {
  write_to_stdout(text);
  if (stdout_failure() == 0) return 0;
  const Error error(ExitCode::io, fmt::format("standard output was lost: {}", system_reason(stdout_failure())),
                    "stdout", "send it where there is room");
  print_lines(error_line(error));
  return static_cast<int>(error.code());
}

bool is_first_started() { return read_launch().rank == 0; }

int run_alone(const std::function<int()>& work) {
  release_stop_signals();
  return is_first_started() ? work() : 0;
}

void print_error(const Error& error) { print_lines(error_lines(error)); }

}  // namespace zs
