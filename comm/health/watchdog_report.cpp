#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>

#include "comm/health/watchdog.h"
#include "runtime/base/file.h"

namespace zs {
namespace {

/// A thread that wakes so much too late was not allowed to run: its process was stopped, or the host was.
constexpr std::int64_t kPauseFrom_ns = 2'000'000'000;
constexpr std::int64_t kPauseWarnedAfter_ns = 2'500'000'000;
constexpr auto kReportTravels = std::chrono::milliseconds(200);  // from an end to mpirun
constexpr auto kReceiveEvery = std::chrono::milliseconds(50);
constexpr auto kGrace = std::chrono::seconds(5);        // for mpirun, or the rank that reports, to end this one
constexpr auto kRecordsTake = std::chrono::seconds(3);  // at most; less than the others' grace

std::string name_of_state(char state) {
  switch (state) {
    case 'T':
    case 't': return "T (stopped)";
    case 'X': return "X (gone)";
    case 'Z': return "Z (ended)";
    case 'D': return "D (in the system)";
    default: return std::string(1, state);
  }
}

std::string evidence_of(const Diagnosis& diagnosis, const RankView& culprit) {
  if (diagnosis.kind == Diagnosis::Kind::silent) return "stopped, or no power or network";
  return "state " + name_of_state(culprit.state);
}

struct RecordFile {
  std::string name, text;
};
constexpr std::string_view kRecordBegin = "zshard flight record ";

/// Opens a flight record to be written, a new one or an earlier one. No link is followed, and what is there but begins
/// otherwise is somebody else's (EEXIST).
File open_record(const Folder& folder, const std::string& name) {
  File made = folder.file(name, O_WRONLY | O_CREAT | O_EXCL);
  if (made.error() != EEXIST) return made;
  File there = folder.file(name, O_RDWR);
  if (!there.is_open()) return there;
  std::array<char, kRecordBegin.size()> begin{};
  const bool is_record = there.is_regular() &&
                         (there.bytes() == 0 || (there.read_at(0, begin.data(), begin.size()).bytes == begin.size() &&
                                                 std::string_view(begin.data(), begin.size()) == kRecordBegin));
  errno = is_record ? there.truncate(0) : EEXIST;
  return errno == 0 ? std::move(there) : File(-1);
}

/// Returns what went wrong, or nothing.
std::string write_files(const std::string& path, const std::vector<RecordFile>& files) {
  const int made = make_folder(path);
  const Folder folder = Folder::open(path);
  const int missing = made != 0 && made != EEXIST ? made : folder.error();
  if (missing != 0) return fmt::format("no {}: {}", path, system_reason(missing));
  std::string problem;
  for (const auto& [name, text] : files) {
    File file = open_record(folder, name);
    const bool is_ours = file.is_open();
    int error = is_ours ? file.write(text) : file.error();
    if (error == 0) error = file.close();
    if (error == 0) continue;
    problem = fmt::format("{} is not written: {}", folder.path_of(name), system_reason(error));
    if (is_ours) static_cast<void>(folder.remove_file(name));  // half of one says less than none
  }
  return problem;
}

/// The end of the job does not depend on records.
template <class Write>
void try_to(const Write& write) noexcept {
  try {
    write();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "zshard: warning: no flight records: %s\n", error.what());
  }
}

/// mpirun -q hides what MPI says; other launchers do not.
std::string where_mpi_says_why(const Launch& launch) {
  return launch.manager == ProcessManager::open_mpi ? "mpirun without -q shows why MPI could not start"
                                                    : "MPI's own lines say why it could not start";
}

}  // namespace

/// Guard that exit() finds when nobody has ended the job before. Exit handlers cannot be taken back: one of them
/// outlives the watchdog.
struct Watchdog::ExitGuard {
  explicit ExitGuard(Watchdog* guarded) : watchdog(guarded) {}
  std::atomic<Watchdog*> watchdog;

  static void on_exit(int code, void* handle) {
    const std::unique_ptr<std::shared_ptr<ExitGuard>> guard(static_cast<std::shared_ptr<ExitGuard>*>(handle));
    Watchdog* const watchdog = (*guard)->watchdog.exchange(nullptr);
    if (watchdog == nullptr || watchdog->page_.pid != getpid()) return;  // a process that the rank has forked may exit
    const Error error = watchdog->error_of_exit(code);
    const bool reports = watchdog->try_claim_report(error.what_happened());
    watchdog->dump("exit() was called before the end of the job");
    if (reports) watchdog->print(error, watchdog->name_of_exiting_rank());
    _exit(static_cast<int>(error.code()));
  }
};

/// MPI ends a process in which it cannot start in this way, too, where files or threads are short.
Error Watchdog::error_of_exit(int code) const {
  const std::string where = fmt::format("host {}, pid {}", host_name_, getpid());
  if (page_.host.get() == kInitializing)
    return {ExitCode::peer_lost, fmt::format("MPI could not start, and called exit({})", code), where,
            "see what ulimit -n and ulimit -u allow; " + where_mpi_says_why(launch_)};
  return {ExitCode::internal, fmt::format("exit({}) was called before the end of the job", code), where,
          "let the rank return from its work, or throw"};
}

/// Threads of one process have a guard each, and the last one made is asked first, whoever exits.
std::string Watchdog::name_of_exiting_rank() const {
  if (threads_ == nullptr || host_thread_ == gettid()) return fmt::format("rank {}", page_.rank.load());
  return fmt::format("one of ranks 0 to {}", page_.size - 1);
}

void Watchdog::guard_exit() {
  exit_guard_ = std::make_shared<ExitGuard>(this);
  // An early exit is seen by the other ranks alone, where the handler cannot be registered.
  auto handle = std::make_unique<std::shared_ptr<ExitGuard>>(exit_guard_);
  if (::on_exit(&ExitGuard::on_exit, handle.get()) == 0)
    static_cast<void>(handle.release());  // the handler's, from here on
}

void Watchdog::stand_down() noexcept {
  is_standing_down_ = true;
  if (exit_guard_ != nullptr) exit_guard_->watchdog = nullptr;
}

/// Copy of `folder_` or `advice_`, which the host thread may be changing.
std::string Watchdog::copy_of(const std::string& text) const {
  const std::lock_guard lock(mutex_);
  return text;
}

/// One write: lines of several processes do not mix, and no lock of stdio is waited for.
void Watchdog::write_line(const std::string& line) {
  for (std::size_t done = 0; done < line.size();) {
    const auto written = write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (written < 0 && errno != EINTR) return;
    done += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
}

bool Watchdog::report_seen() const noexcept {
  if (page_.has_reported) return false;
  return page_.report_seen || peers_.report_seen();
}

/// Time in which this rank could not move is not held against it, nor against those that it waits for.
void Watchdog::note_pause(std::int64_t now) {
  const std::int64_t pause = now - last_poll_ns_;
  if (pause < kPauseFrom_ns) return;
  page_.moved_ns = now;
  if (page_.phase == Phase::idle) return;
  pause_ = fmt::format("{}: warning: rank {} did not run for {:.1f} s, and goes on (host {}, pid {}, step {})\n",
                       options_.program, page_.rank.load(), static_cast<double>(pause) * 1e-9, host_name_, getpid(),
                       page_.step.load());
  pause_ended_ns_ = now;
}

/// Later, when it has turned out that the rank was not awakened only to be ended.
void Watchdog::warn_of_pause(std::int64_t now) {
  if (pause_.empty() || now - pause_ended_ns_ < kPauseWarnedAfter_ns) return;
  if (goes_on()) write_line(pause_);
  pause_.clear();
}

/// True if the job goes on; else a warning would be noise.
bool Watchdog::goes_on() const {
  const bool has_ended = threads_ != nullptr && (threads_->has_failed || threads_->is_claimed);
  return !is_standing_down_ && !page_.has_reported && !has_ended && !report_seen();
}

/// Marks of the ranks of this host, in their order, this one included. Looked up again: who was stopped, or has just
/// begun, may know nobody yet.
std::vector<std::atomic<bool>*> Watchdog::report_marks() {
  find_peers();
  auto by_rank = peers_.report_marks();
  by_rank.emplace_back(page_.rank, &page_.report_seen);
  std::sort(by_rank.begin(), by_rank.end());
  std::vector<std::atomic<bool>*> marks;
  for (const auto& [rank, mark] : by_rank) marks.push_back(mark);
  return marks;
}

/// True if this rank is the first of its host's that marks their pages. Where they cannot be seen, and without memory,
/// two may be: twice is better than never.
bool Watchdog::claim_report_marks() noexcept {
  try {
    return set_all(report_marks());
  } catch (const std::exception&) {
    errno = 0;
    return !page_.report_seen.exchange(true);
  }
}

/// Another host has reported: nobody here need, and mpirun is about to end them.
void Watchdog::follow_report() {
  page_.report_seen = true;
  for (std::atomic<bool>* mark : report_marks()) *mark = true;
  const std::string reason = heartbeats()->reason();
  if (!reason.empty()) write_records(reason);
}

bool Watchdog::try_claim_report(std::string_view reason) noexcept {
  if (heartbeats() != nullptr) {
    heartbeats()->receive();
    if (heartbeats()->has_report()) return false;
  }
  if (threads_ != nullptr) return !threads_->is_claimed.exchange(true);
  if (page_.has_reported || report_seen() || !claim_report_marks()) return false;
  page_.has_reported = true;
  if (heartbeats() != nullptr) heartbeats()->broadcast_end(reason);
  return true;
}

void Watchdog::alarm(const Diagnosis& diagnosis, const std::vector<RankView>& ranks) {
  const Error error = error_for(diagnosis, ranks);
  const bool is_known = diagnosis.kind == Diagnosis::Kind::died;
  // While the job starts, other hosts cannot send that they have reported, and mpirun kills one rank some milliseconds
  // after the other.
  if (is_known && heartbeats() == nullptr && page_.size > peers_.host_ranks())
    std::this_thread::sleep_for(kReportTravels);
  const bool reports = !another_host_reports(diagnosis) && try_claim_report(error.what_happened());
  // The line is the last that the user sees, unless mpirun is ending this process too: then it comes first.
  if (reports && is_known) print(error, "");
  if (reports) write_records(error.what_happened());
  if (reports && !is_known) print(error, "");
  if (!reports && heartbeats() != nullptr && heartbeats()->has_report() && !page_.report_seen) follow_report();
  if (is_known) std::this_thread::sleep_for(kReportTravels);
  end_process(error.code(), !reports && !is_known);
}

/// True if another host reports, which is better placed to.
bool Watchdog::another_host_reports(const Diagnosis& diagnosis) const {
  if (heartbeats() == nullptr) return false;
  const std::int64_t until = monotonic_ns() + static_cast<std::int64_t>(heartbeats()->report_delay_s(diagnosis) * 1e9);
  while (monotonic_ns() < until && !heartbeats()->has_report()) {
    std::this_thread::sleep_for(kReceiveEvery);
    heartbeats()->receive();
  }
  return heartbeats()->has_report();
}

/// Writes the records of this host's ranks.
void Watchdog::write_records(std::string_view reason) const noexcept {
  try_to([&] {
    std::vector<const StatusPage*> pages;
    for (const RankView& rank : host_views()) {
      if (const StatusPage* const page = page_of(rank.rank)) pages.push_back(page);
    }
    write_records_of(pages, reason);
  });
}

namespace {

const char* hint_of(Diagnosis::Kind kind) {
  const bool are_apart = kind == Diagnosis::Kind::disagree || kind == Diagnosis::Kind::left_early;
  return are_apart ? "make the same calls on every rank, in one order"
                   : "find out what happened to it, then start again";
}

}  // namespace

Error Watchdog::error_for(const Diagnosis& diagnosis, const std::vector<RankView>& ranks) const {
  const auto find = [&](int rank) -> const RankView* {
    for (const RankView& one : ranks) {
      if (one.rank == rank) return &one;
    }
    return nullptr;
  };
  const RankView& culprit = *find(diagnosis.rank);
  const RankView* const waiting = find(diagnosis.waiting_rank);
  const std::string when = when_of(culprit);
  const std::string others =
      waiting == nullptr ? "" : fmt::format("; rank {} waits in {}", waiting->rank, doing(*waiting));
  const std::string where =
      fmt::format("host {}, pid {}, {}", culprit.host_name.empty() ? host_name_ : culprit.host_name, culprit.pid,
                  evidence_of(diagnosis, culprit));
  const std::string folder = copy_of(folder_), advice = copy_of(advice_);
  std::string todo = folder.empty() ? "" : fmt::format("see {}/rank-*.txt", folder);
  const bool is_in_mpi_init = diagnosis.kind == Diagnosis::Kind::died && culprit.host == kInitializing;
  if (is_in_mpi_init) todo = "if nothing killed it, " + where_mpi_says_why(launch_);
  if (todo.empty() && advice.empty()) todo = hint_of(diagnosis.kind);
  if (!advice.empty()) todo += (todo.empty() ? "" : "; ") + advice;
  const auto error = [&](ExitCode code, const std::string& what) { return Error(code, what, where, todo); };
  switch (diagnosis.kind) {
    case Diagnosis::Kind::died:
      return error(ExitCode::peer_lost, fmt::format("rank {} has died {}", culprit.rank, when));
    case Diagnosis::Kind::stopped:
      return error(ExitCode::peer_lost,
                   fmt::format("rank {} stopped answering {:.1f} s ago {}{}", culprit.rank,
                               culprit.has_page ? culprit.heartbeat_age_s : still_s(), when, others));
    case Diagnosis::Kind::left_early:
      return error(ExitCode::ranks_disagree,
                   fmt::format("the ranks disagree: rank {} has ended its part, rank {} waits for it{} in {}",
                               culprit.rank, waiting->rank,
                               waiting->step > 0 ? fmt::format(" in step {}", waiting->step) : "", doing(*waiting)));
    case Diagnosis::Kind::disagree:
      return error(ExitCode::ranks_disagree, fmt::format("the ranks disagree: rank {} waits in {}, rank {} in {}",
                                                         culprit.rank, doing(culprit), waiting->rank, doing(*waiting)));
    case Diagnosis::Kind::silent:
      return error(ExitCode::peer_lost, fmt::format("rank {} has not been heard for {:.1f} s, last {}{}", culprit.rank,
                                                    culprit.silent_s, when, others));
    case Diagnosis::Kind::absent:
      return {
          ExitCode::peer_lost,
          fmt::format("rank {} has not come to MPI within {:.1f} s: its command has ended before, or cannot be seen "
                      "from here",
                      peers_.absent(page_.size), culprit.still_s),
          "host " + host_name_, "see what that rank's command does"};
    case Diagnosis::Kind::unseen:
      todo = "see what the ranks of other hosts do, and whether MPI's network leads there (--mca btl_tcp_if_include)";
      return error(ExitCode::peer_lost,
                   fmt::format("{} has not ended for {:.1f} s, and no rank of this host is the reason; those of other "
                               "hosts cannot be seen",
                               doing(culprit).empty() ? name_of(culprit.phase) : doing(culprit), culprit.still_s));
    default:
      return error(ExitCode::peer_lost, fmt::format("rank {} has stood still for {:.1f} s {}{}", culprit.rank,
                                                    culprit.has_page ? culprit.still_s : still_s(), when, others));
  }
}

void Watchdog::report(const Error& error, const std::string& place) {
  if (try_claim_report(error.what_happened())) print(error, place);
}

void Watchdog::print(const Error& error, const std::string& place) {
  std::string line =
      options_.line ? options_.line(error, place)
                    : fmt::format("{}: error: {}{}{}", options_.program, error.what(), place.empty() ? "" : " ", place);
  has_printed_ = true;
  write_line(line + '\n');
}

/// Writes records by a thread that owns all it needs, and is left behind: a file system that hangs does not hold up the
/// end of the job.
void Watchdog::write_records_of(std::span<const StatusPage* const> pages, std::string_view reason) const {
  const std::string folder = copy_of(folder_);
  if (folder.empty()) return;
  std::vector<RecordFile> files;
  for (const StatusPage* const page : pages) {
    files.push_back({fmt::format("rank-{}.txt", page->rank.load()), flight_text(*page, host_name_, reason)});
  }
  std::packaged_task<std::string()> task([folder, files = std::move(files)] { return write_files(folder, files); });
  auto written = task.get_future();
  std::thread(std::move(task)).detach();
  const bool is_ready = written.wait_for(kRecordsTake) == std::future_status::ready;
  const std::string problem =
      is_ready ? written.get() : fmt::format("not all flight records are written: {} does not answer", folder);
  if (!problem.empty() && !has_printed_) write_line(fmt::format("{}: warning: {}\n", options_.program, problem));
}

void Watchdog::dump(std::string_view reason) noexcept {
  if (report_seen()) return;  // then this rank's record is written
  if (page_.has_reported) return write_records(reason);
  try_to([&] { write_records_of(std::array<const StatusPage*, 1>{&page_}, reason); });
}

/// Whoever has reported ends the job, and the others of its host follow: mpirun's pauses between SIGCONT, SIGTERM and
/// SIGKILL, of a second each, are cut short by the end of any rank. Of a death mpirun knows already: its code stands.
void Watchdog::end_process(ExitCode code, bool waits) {
  const auto until = std::chrono::steady_clock::now() + kGrace;
  while (waits && !peers_.reporter_has_ended() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(kReceiveEvery);
  if (waits) std::this_thread::sleep_for(kReportTravels);
  _exit(static_cast<int>(code));
}

}  // namespace zs
