#pragma once

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/health/device_poller.h"
#include "comm/health/diagnosis.h"
#include "comm/health/fault_injector.h"
#include "comm/health/flight_recorder.h"
#include "comm/health/heartbeat_exchange.h"
#include "comm/health/peer_table.h"
#include "comm/health/status_scope.h"
#include "comm/health/watch_options.h"
#include "runtime/base/launch.h"
#include "runtime/device/device.h"

namespace zs {

/// Watches over one rank, and with the others over all: a thread that never waits for a peer or for MPI. It polls every
/// 100 ms whether the rank has moved. When it has stood still for the limit of its phase, it reads the status pages of
/// the other ranks of the host and the heartbeats of other hosts, names the one that keeps the rest waiting, writes the
/// host's flight records, and ends the process with exit code 69, or 72 when the ranks wait for each other; the
/// launcher ends the others. Of all ranks one reports.
///
/// Owned by a World, which outlives whatever it watches. `enter` is the host thread's, the rest is anybody's.
class Watchdog {
 public:
  /// Watches a process that a launcher has started; made before MPI is.
  explicit Watchdog(const WatchOptions& options);

  /// State that the ranks of a process share. Outlives their watchdogs.
  struct Threads {
    explicit Threads(int ranks) : pages(static_cast<std::size_t>(ranks)) {}
    std::vector<StatusPage> pages;  ///< by rank
    std::atomic<bool> is_claimed{false};
    std::atomic<bool> has_failed{false};  ///< an exception ends the job, and says why
  };
  /// Watches a rank that is a thread, on that thread. Begins with the first phase that has a limit.
  Watchdog(const WatchOptions& options, int rank, Threads& threads);
  /// Ends the watch: its rank has come to the end of its part, unless an exception ends it: then whoever catches that
  /// tells the user.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// The host thread begins something else.
  void enter(Phase phase, std::int64_t step = 0);
  Phase phase() const { return page_.phase.load(); }
  /// Looks the processes of the job's ranks up, once every rank has started, so that their deaths are noticed.
  void find_peers() { peers_.find(); }
  /// MPI has said how many ranks there are in the job and on this host, which not every launcher does.
  void note_ranks(int ranks, int host_ranks);
  /// Joins the hosts: from here on this rank knows the ranks of other hosts, and they know those of this one.
  void join_hosts(std::unique_ptr<HeartbeatExchange> heartbeats);
  /// Sets the folder where `dump` and alarms write rank-N.txt; made when it is needed. Empty: nowhere.
  void record_to(std::string folder);
  /// Sets the end of the line, which tells the user what to do: how to go on.
  void advise(std::string advice);
  /// The host thread has come to the end of its part: no other rank need wait for it in an operation.
  void leave() { page_.has_left = true; }
  /// MPI has ended in this rank. Then, until it has in every rank of this host, this one had better stay and watch:
  /// mpirun waits for a rank that stops in MPI_Finalize for ever, and nobody else would see it.
  void note_finalized() { page_.has_finalized = true; }
  bool has_finalizing_peer() const { return peers_.has_finalizing(); }
  /// Tells the user why this rank ends the job, unless another has told, or is about to.
  void report(const Error& error, const std::string& place);
  /// Writes this rank's record; where it is the one that reports, those of all ranks of its host. Never throws.
  void dump(std::string_view reason) noexcept;
  /// True if this rank is to tell the user why the job ends; true once. On several hosts, `reason` is sent to the
  /// others.
  bool try_claim_report(std::string_view reason = {}) noexcept;
  /// True if another rank has reported.
  bool report_seen() const noexcept;
  /// This rank ends the job, and has said why: the others need not.
  void note_reported() noexcept { page_.has_reported = true; }
  /// True if an exception is on its way out of what owns it.
  bool is_unwound() const noexcept { return std::uncaught_exceptions() > exceptions_; }
  /// The job ends from here on: neither exit() nor the peers' ends are failures.
  void stand_down() noexcept;

  /// Cost of polling so far.
  struct Cost {
    double polls = 0, cpu_us_a_poll = 0, poll_every_ms = 0;
  };
  Cost cost() const;
  FlightRecorder& recorder() { return recorder_; }
  const FlightRecorder& recorder() const { return recorder_; }
  const StatusPage& page() const { return page_; }
  FaultInjector& faults() { return faults_; }

 private:
  friend class StatusScope;
  struct ExitGuard;

  void hook_faults();
  void guard_exit();
  std::string name_of_exiting_rank() const;
  Error error_of_exit(int code) const;
  std::string copy_of(const std::string& text) const;
  static void write_line(const std::string& line);
  void start_thread();
  void watch(const std::stop_token& stop);
  void poll();
  void note_pause(std::int64_t now);
  void warn_of_pause(std::int64_t now);
  bool has_moved();
  bool has_new_failure();
  void note_failure();
  double limit_s() const;
  double still_s() const;
  std::vector<RankView> views() const;
  std::vector<RankView> host_views() const;
  HeartbeatExchange* heartbeats() const { return heartbeats_.load(); }
  void exchange_heartbeats(std::int64_t now);
  void follow_report();
  bool another_host_reports(const Diagnosis& diagnosis) const;
  void write_records(std::string_view reason) const noexcept;
  const StatusPage* page_of(int rank) const;
  void check_launcher();
  void check_deaths();
  void check_early_ends();
  void check_limit();
  bool goes_on() const;
  void alarm(const Diagnosis& diagnosis, const std::vector<RankView>& ranks);
  Error error_for(const Diagnosis& diagnosis, const std::vector<RankView>& ranks) const;
  void write_records_of(std::span<const StatusPage* const> pages, std::string_view reason) const;
  void print(const Error& error, const std::string& place);
  std::vector<std::atomic<bool>*> report_marks();
  bool claim_report_marks() noexcept;
  [[noreturn]] void end_process(ExitCode code, bool waits);

  WatchOptions options_;
  Launch launch_;  // launcher's facts about this process; none where ranks are threads
  FaultInjector faults_;
  std::string host_name_;
  std::unique_ptr<OwnStatusPage> own_;
  Threads* threads_ = nullptr;
  StatusPage& page_;
  FlightRecorder recorder_{page_};
  DevicePoller device_poller_{page_};
  std::shared_ptr<ExitGuard> exit_guard_;
  PeerTable peers_;
  int host_thread_, launcher_pid_ = 0;
  std::atomic<std::uint64_t> polls_{0};
  std::atomic<std::int64_t> polls_cpu_ns_{0};  // so far
  std::atomic<bool> is_standing_down_{false};
  std::unique_ptr<HeartbeatExchange> own_heartbeats_;
  std::atomic<HeartbeatExchange*> heartbeats_{nullptr};  // own_heartbeats_, once it is there

  mutable std::mutex mutex_;  // guards what follows; held for moments
  std::condition_variable_any wakes_;
  std::string folder_, advice_;

  // state of the thread
  std::uint64_t last_moves_ = 0;
  bool has_seen_failure_ = false;
  int exceptions_ = std::uncaught_exceptions();  // when it was made
  std::int64_t last_poll_ns_ = 0, last_heartbeat_ns_ = 0;
  bool has_sent_leave_ = false;
  std::string pause_;  // text about a pause that is to be said
  std::int64_t pause_ended_ns_ = 0;
  std::atomic<bool> has_printed_{false};  // the line that shall be the last
  std::jthread thread_;
};

inline constexpr const char *kInitializing = "MPI_Init", *kFinalizing = "MPI_Finalize";

}  // namespace zs
