#include "comm/health/watchdog.h"
#include "runtime/base/parse_integer.h"
#include "runtime/base/standard_streams.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace zs {
namespace {

// Polls that search for the other ranks' processes while the job starts; polls between two searches later.
constexpr int kPollsThatSearch = 50, kPollsBetweenSearches = 5;
constexpr std::int64_t kHeartbeatEvery_ns = 1'000'000'000;  // other hosts
constexpr double kSendsWithin_s = 1;                        // a watchdog has polled that is taken to send them
constexpr double kForOtherHosts_s = 10;                     // to which a rank that sees no culprit leaves the report
constexpr double kDeadlockAfter_s = 2;                      // that all ranks do nothing but wait
constexpr double kEndedAfter_s = 1;                         // that a rank waits for one that has ended

/// Bytes that a thread has read and written, with the kernel's help. No allocation, no stream: also runs when memory is
/// short.
std::uint64_t io_bytes(int thread) {
  std::array<char, 64> path{};
  *fmt::format_to(path.data(), "/proc/self/task/{}/io", thread) = '\0';
  const int fd = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<char, 256> text{};
  const auto length = read(fd, text.data(), text.size() - 1);
  if (close(fd) != 0 || length <= 0) return 0;
  std::uint64_t sum = 0;
  for (const char* key : {"rchar: ", "wchar: "}) {
    const char* const at = std::strstr(text.data(), key);
    if (at != nullptr) sum += std::strtoull(at + std::strlen(key), nullptr, 10);
  }
  return sum;
}

std::int64_t cpu_ns_of_this_thread() {
  timespec spent{};
  return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent) == 0 ? spent.tv_sec * 1'000'000'000 + spent.tv_nsec : 0;
}

}  // namespace

Watchdog::Watchdog(const WatchOptions& options)
    : options_(options),
      launch_(read_launch()),
      faults_(FaultInjector::from_environment(launch_.rank)),
      host_name_(name_of_host()),
      own_(std::make_unique<OwnStatusPage>()),
      page_(own_->page()),
      peers_(launch_.rank, std::max(1, launch_.local_size), launch_.job),
      host_thread_(gettid()),
      launcher_pid_(getppid()) {
  page_.rank = launch_.rank;
  page_.size = std::max(1, launch_.size);
  page_.pid = getpid();
  enter(Phase::init);
  page_.heartbeat_ns = monotonic_ns();
  page_.magic = StatusPage::kMagic;
  find_peers();  // peers that are there, before this rank can miss the end of one
  hook_faults();
  guard_exit();
  start_thread();
}

Watchdog::Watchdog(const WatchOptions& options, int rank, Threads& threads)
    : options_(options),
      faults_(FaultInjector::from_environment(rank)),
      host_name_(name_of_host()),
      threads_(&threads),
      page_(threads.pages[static_cast<std::size_t>(rank)]),
      peers_(rank, 1, ""),
      host_thread_(gettid()) {
  page_.rank = rank;
  page_.size = static_cast<int>(threads.pages.size());
  page_.pid = getpid();
  page_.heartbeat_ns = page_.moved_ns = monotonic_ns();
  page_.magic = StatusPage::kMagic;
  hook_faults();
  guard_exit();
}

void Watchdog::hook_faults() {
  if (faults_.any()) recorder_.set_start_hook([this] { faults_.hit("comm.op"); });
}

Watchdog::~Watchdog() {
  is_unwound() ? note_failure() : leave();
  stand_down();
  thread_ = {};
}

void Watchdog::start_thread() {
  sigset_t all, before;
  sigfillset(&all);
  // Signals are for the threads that know what to do about them.
  const bool is_blocked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
  try {
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  } catch (const std::system_error& error) {
    print_to_stderr("{}: warning: no watchdog, its thread cannot be started: {}\n", options_.program, error.what());
  }
  if (is_blocked && pthread_sigmask(SIG_SETMASK, &before, nullptr) != 0) errno = 0;
}

void Watchdog::enter(Phase phase, std::int64_t step) {
  page_.phase = phase;
  page_.step = step;
  page_.moved_ns = monotonic_ns();
  recorder_.note_move();
  if (threads_ != nullptr && !thread_.joinable() && limit_s() > 0) start_thread();
}

void Watchdog::record_to(std::string folder) {
  const std::lock_guard lock(mutex_);
  folder_ = std::move(folder);
}

void Watchdog::advise(std::string advice) {
  const std::lock_guard lock(mutex_);
  advice_ = std::move(advice);
}

Watchdog::Cost Watchdog::cost() const {
  const auto polls = static_cast<double>(polls_.load());
  return {polls, static_cast<double>(polls_cpu_ns_) * 1e-3 / std::max(polls, 1.0),
          std::chrono::duration<double, std::milli>(kPollEvery).count()};
}

double Watchdog::limit_s() const { return limit_of(options_, page_.phase); }

double Watchdog::still_s() const { return static_cast<double>(monotonic_ns() - page_.moved_ns.load()) * 1e-9; }

void Watchdog::watch(const std::stop_token& stop) {
  last_poll_ns_ = monotonic_ns();
  bool has_warned = false;
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex_);
      wakes_.wait_for(lock, stop, kPollEvery, [] { return false; });
    }
    if (stop.stop_requested()) return;
    // The next one may succeed; without any the others would take this rank for stopped.
    const auto goes_on_after = [&](const std::exception& error) {
      if (!std::exchange(has_warned, true))
        print_to_stderr("{}: warning: rank {}'s watchdog goes on after: {}\n", options_.program, page_.rank.load(),
                        error.what());
    };
    try {
      device_poller_.poll();
    } catch (const std::exception& error) {
      goes_on_after(error);  // the limits hold all the same
    }
    try {
      poll();
      ++polls_;
      polls_cpu_ns_ = cpu_ns_of_this_thread();
    } catch (const std::exception& error) {
      goes_on_after(error);
    }
  }
}

void Watchdog::poll() {
  const std::int64_t now = monotonic_ns();
  note_pause(now);
  warn_of_pause(now);
  last_poll_ns_ = now;
  page_.heartbeat_ns = now;
  if (has_moved()) page_.moved_ns = now;
  if (is_standing_down_) return;
  if (has_new_failure()) page_.moved_ns = now;  // to unwind, ranks have as long as for anything else
  if (heartbeats() != nullptr) exchange_heartbeats(now);
  const bool searches = polls_ < kPollsThatSearch || polls_ % kPollsBetweenSearches == 0;
  if (threads_ == nullptr && page_.phase == Phase::init && searches) find_peers();
  check_launcher();
  check_deaths();
  check_early_ends();
  check_limit();
}

/// True if a rank that is a thread has failed: of other ranks, the launcher knows that one has ended.
bool Watchdog::has_new_failure() {
  return threads_ != nullptr && threads_->has_failed && !std::exchange(has_seen_failure_, true);
}

void Watchdog::note_failure() {
  if (threads_ == nullptr) {
    page_.has_reported = true;
    return;
  }
  threads_->has_failed = true;  // first: that it has left is not what ends the job
  leave();
}

bool Watchdog::has_moved() {
  const std::uint64_t moves =
      recorder_.moves() + page_.started + page_.done + io_bytes(host_thread_) + device_poller_.completed();
  return std::exchange(last_moves_, moves) != moves;
}

void Watchdog::note_ranks(int ranks, int host_ranks) {
  page_.size = ranks;
  peers_.set_host_ranks(host_ranks);
  find_peers();
}

void Watchdog::join_hosts(std::unique_ptr<HeartbeatExchange> heartbeats) {
  own_heartbeats_ = std::move(heartbeats);
  heartbeats_ = own_heartbeats_.get();
}

/// The first rank of the host whose watchdog runs sends the status of all of them.
void Watchdog::exchange_heartbeats(std::int64_t now) {
  heartbeats()->receive();
  if (heartbeats()->has_report() && !page_.report_seen) follow_report();
  const bool has_left = page_.has_left.load();
  if (now - last_heartbeat_ns_ < kHeartbeatEvery_ns && has_left == has_sent_leave_) return;
  last_heartbeat_ns_ = now;
  has_sent_leave_ = has_left;
  const auto ranks = host_views();
  const auto sends = [&](const RankView& rank) {
    return rank.rank < page_.rank && rank.has_page && rank.heartbeat_age_s < kSendsWithin_s;
  };
  if (std::none_of(ranks.begin(), ranks.end(), sends)) heartbeats()->send(ranks);
}

std::vector<RankView> Watchdog::views() const {
  auto ranks = host_views();
  if (heartbeats() == nullptr) return ranks;
  const auto on_host = std::ssize(ranks);
  for (RankView& other : heartbeats()->views()) {
    const auto seen = std::find_if(ranks.begin(), ranks.begin() + on_host,
                                   [&](const RankView& rank) { return rank.rank == other.rank; });
    if (seen == ranks.begin() + on_host) ranks.push_back(std::move(other));
  }
  return ranks;
}

/// Views of the ranks that can be seen without a message.
std::vector<RankView> Watchdog::host_views() const {
  std::vector<RankView> ranks;
  if (threads_ != nullptr) {
    for (const StatusPage& page : threads_->pages) {
      if (page.magic.load() == StatusPage::kMagic) ranks.push_back(view_of(page, 'R'));
    }
    return ranks;
  }
  ranks.push_back(view_of(page_, 'R'));
  auto peers = peers_.views(page_.phase == Phase::init ? still_s() : 0);  // in phase init this rank has not begun
  std::move(peers.begin(), peers.end(), std::back_inserter(ranks));
  return ranks;
}

const StatusPage* Watchdog::page_of(int rank) const {
  if (threads_ != nullptr) return &threads_->pages[static_cast<std::size_t>(rank)];
  if (rank == page_.rank) return &page_;
  return peers_.page_of(rank);
}

/// Ranks whose launcher is gone get no signals any more: a stopped one would stay for ever.
void Watchdog::check_launcher() {
  if (threads_ != nullptr || page_.size == 1 || getppid() == launcher_pid_) return;
  const std::string advice = copy_of(advice_);
  const Error error(ExitCode::peer_lost, fmt::format("{} has ended before its ranks", launch_.launcher),
                    fmt::format("host {}, pid {}", host_name_, launcher_pid_), advice.empty() ? "start again" : advice);
  if (try_claim_report()) print(error, "");
  peers_.kill_stopped();
  _exit(static_cast<int>(error.code()));
}

void Watchdog::check_deaths() {
  if (page_.report_seen && peers_.reporter_has_ended()) end_process(ExitCode::peer_lost, true);
  // Before the program has begun in it, a rank is known as the launcher's own child.
  const int dead = peers_.find_dead(page_.phase == Phase::init ? launcher_pid_ : 0);
  if (dead >= 0) alarm({Diagnosis::Kind::died, dead, -1}, views());
}

void Watchdog::check_early_ends() {
  if (page_.started == page_.done || still_s() < kEndedAfter_s) return;
  const auto ranks = views();
  Diagnosis diagnosis = diagnose_early_end(ranks, page_.size);
  if (diagnosis.kind == Diagnosis::Kind::nobody && page_.streams_wait && still_s() > kDeadlockAfter_s)
    diagnosis = diagnose_deadlock(ranks, page_.size, kDeadlockAfter_s);
  if (threads_ != nullptr && threads_->has_failed) return;  // now: whoever has left by an exception has said so before
  if (diagnosis.kind != Diagnosis::Kind::nobody) alarm(diagnosis, ranks);
}

void Watchdog::check_limit() {
  const Phase phase = page_.phase;
  const double limit = limit_of(options_, phase);
  if (limit <= 0 || still_s() < limit) return;
  const auto ranks = views();
  Diagnosis diagnosis = diagnose(ranks, page_.size, phase, options_);
  // MPI's own start and end have no other deadline.
  const bool is_in_mpi = phase == Phase::init || page_.host.get() == kFinalizing;
  if (diagnosis.kind == Diagnosis::Kind::nobody && is_in_mpi && !somebody_moves(ranks, limit)) {
    if (phase == Phase::init && !peers_.absent(page_.size).empty())
      return alarm({Diagnosis::Kind::absent, page_.rank, -1}, ranks);
    const bool sees_all = static_cast<int>(ranks.size()) == page_.size;
    if (!sees_all && still_s() < limit + kForOtherHosts_s) return;
    diagnosis = {sees_all ? Diagnosis::Kind::stands : Diagnosis::Kind::unseen, page_.rank, -1};
  }
  if (diagnosis.kind != Diagnosis::Kind::nobody) alarm(diagnosis, ranks);
}

}  // namespace zs
