#include "comm/health/peer_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "comm/host/file_size.h"
#include "comm/host/sealed_file.h"
#include "runtime/base/check.h"
#include "runtime/base/launch.h"
#include "runtime/base/parse_integer.h"
#include "runtime/base/proc_file.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPageName = "zshard-flight";

/// Variable of an environment as /proc shows it: each entry ends with a zero byte, the last one with the text's own.
const char* variable(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.data() + name.size() + 1;
    environment.remove_prefix(std::min(environment.size(), entry.size() + 1));
  }
  return nullptr;
}

/// True if a process runs with this user's rights alone. Of a program that runs with others' (setuid) the environment,
/// and what it has open, may come from whoever has started it, so all four of its user ids count.
bool is_own_user(std::string_view status) {
  const std::string_view key = "\nUid:";
  const auto at = status.find(key);
  if (at == status.npos) return false;
  std::string_view ids = status.substr(at + key.size());
  ids = ids.substr(0, ids.find('\n'));
  const std::string own = fmt::format("\t{}", geteuid());
  return ids == own + own + own + own;
}

/// Text in /proc/PID/stat after the name, from the state on; empty where there is no such process.
std::string_view after_name(std::string_view stat) {
  const auto end_of_name = stat.rfind(") ");
  return end_of_name == stat.npos ? "" : stat.substr(end_of_name + 2);
}

/// No side effects, whatever it is that has a page's name.
int open_for_mapping(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return -1;
  return open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

StatusPage* map_page(int fd) {
  void* const address = mmap(nullptr, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return address == MAP_FAILED ? nullptr : static_cast<StatusPage*>(address);
}

}  // namespace

OwnStatusPage::OwnStatusPage() {
  fd_ = static_cast<int>(syscall(SYS_memfd_create, kPageName, kSealable));
  if (fd_ >= 0 && may_have_file_of(sizeof(StatusPage)) && posix_fallocate(fd_, 0, sizeof(StatusPage)) == 0 &&
      seal_size(fd_))
    page_ = map_page(fd_);
  // Without a shared page the others do not see what this rank does; it still watches.
  if (page_ == nullptr) {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    page_ = static_cast<StatusPage*>(
        mmap(nullptr, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (page_ == MAP_FAILED)
      throw Error(ExitCode::out_of_memory, fmt::format("no memory for a flight record: {}", std::strerror(errno)));
  }
  new (page_) StatusPage;
}

OwnStatusPage::~OwnStatusPage() {
  if (munmap(page_, sizeof(StatusPage)) != 0 || (fd_ >= 0 && close(fd_) != 0)) errno = 0;
}

StatusPage* map_offered_page(int fd) { return is_safe_to_map(fd, sizeof(StatusPage)) ? map_page(fd) : nullptr; }

std::unique_ptr<PeerProcess> PeerProcess::find(int pid, std::string_view job) {
  const int folder = open(fmt::format("/proc/{}", pid).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return nullptr;
  std::unique_ptr<PeerProcess> peer(new PeerProcess(pid, folder));
  return peer->read(job) ? std::move(peer) : nullptr;
}

/// Through the open folder, so that it is the same process each time, and not another that has got its number.
std::string PeerProcess::path(std::string_view name) const { return fmt::format("/proc/self/fd/{}/{}", folder_, name); }

bool PeerProcess::read(std::string_view job) {
  if (!is_own_user(read_proc_file(path("status")))) return false;
  const std::string environment = read_proc_file(path("environ"));
  const Launch launch = read_launch([&](const char* name) { return variable(environment, name); });
  if (launch.job != job) return false;
  rank_ = launch.rank;
  process_ = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid_), 0));
  const std::string stat = read_proc_file(path("stat"));  // last: while it is there, nobody else has its number
  const std::string_view fields = after_name(stat);       // "S 4321 ..."
  if (fields.size() < 3) return false;
  parent_ = parse_integer<int>(fields.substr(2, fields.find(' ', 2) - 2)).value_or(0);
  take_page();
  return true;
}

/// Opened once. Whatever has that name later is not looked at.
void PeerProcess::take_page() {
  const std::string wanted = fmt::format("/memfd:{}", kPageName);
  std::error_code failed;
  for (fs::directory_iterator file(path("fd"), failed), end; !failed && file != end && page_ == nullptr;
       file.increment(failed)) {
    std::error_code unreadable;
    if (!fs::read_symlink(file->path(), unreadable).string().starts_with(wanted)) continue;
    const int fd = open_for_mapping(file->path().string());
    page_ = map_offered_page(fd);
    if (fd >= 0 && close(fd) != 0) errno = 0;
    // Processes that a rank has forked have the rank's page open.
    if (page_ == nullptr ||
        (page_->magic.load() == StatusPage::kMagic && page_->pid.load() == pid_ && page_->rank.load() == rank_))
      continue;
    if (munmap(page_, sizeof(StatusPage)) != 0) errno = 0;
    page_ = nullptr;
  }
}

PeerProcess::~PeerProcess() {
  if (page_ != nullptr && munmap(page_, sizeof(StatusPage)) != 0) errno = 0;
  for (const int fd : {folder_, process_}) {
    if (fd >= 0 && close(fd) != 0) errno = 0;
  }
}

bool PeerProcess::has_ended() const {
  pollfd watched{process_, POLLIN, 0};
  return process_ >= 0 && poll(&watched, 1, 0) == 1;
}

void PeerProcess::kill_if_stopped() const {
  if (process_ < 0 || state() != 'T') return;
  if (syscall(SYS_pidfd_send_signal, process_, SIGKILL, nullptr, 0) != 0) errno = 0;  // the process has ended meanwhile
}

char PeerProcess::state() const {
  if (has_ended()) return 'X';
  const std::string stat = read_proc_file(path("stat"));
  const std::string_view fields = after_name(stat);
  return fields.empty() ? 'X' : fields[0];
}

bool set_all(std::span<std::atomic<bool>* const> marks) noexcept {
  return std::none_of(marks.begin(), marks.end(), [](std::atomic<bool>* mark) { return mark->exchange(true); });
}

std::vector<std::unique_ptr<PeerProcess>> find_peer_processes(int own_rank, std::string_view job) {
  std::map<int, std::unique_ptr<PeerProcess>> found;  // by rank
  std::error_code failed;
  for (fs::directory_iterator entry("/proc", failed), end; !job.empty() && !failed && entry != end;
       entry.increment(failed)) {
    const auto pid = parse_integer<int>(entry->path().filename().string());
    if (!pid || *pid == getpid()) continue;
    auto peer = PeerProcess::find(*pid, job);
    if (peer == nullptr || peer->rank() == own_rank) continue;
    auto& known = found[peer->rank()];
    // A wrapper, or what the rank has started, has the same environment: the rank is the one with the page.
    if (!known || (known->page() == nullptr && peer->page() != nullptr)) known = std::move(peer);
  }
  std::vector<std::unique_ptr<PeerProcess>> peers;
  for (auto& [rank, peer] : found) peers.push_back(std::move(peer));
  return peers;
}

}  // namespace zs
