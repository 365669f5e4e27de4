#include "comm/rank_processes.h"

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
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "comm/file_size.h"
#include "runtime/base/check.h"
#include "runtime/base/whole_number.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPageName = "zshard-flight";
constexpr const char* kJobVariable = "PMIX_NAMESPACE";
constexpr const char* kRankVariable = "OMPI_COMM_WORLD_RANK";

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Of an environment as /proc shows it.
std::optional<std::string_view> variable(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') return entry.substr(name.size() + 1);
    environment.remove_prefix(std::min(environment.size(), entry.size() + 1));
  }
  return std::nullopt;
}

/// The path of the process's page among its open files.
std::optional<std::string> page_of(int pid) {
  std::error_code failed;
  const std::string wanted = fmt::format("/memfd:{}", kPageName);
  for (fs::directory_iterator file(fmt::format("/proc/{}/fd", pid), failed), end; !failed && file != end; file.increment(failed)) {
    std::error_code unreadable;
    if (fs::read_symlink(file->path(), unreadable).string().starts_with(wanted)) return file->path().string();
  }
  return std::nullopt;
}

/// Of /proc/PID/stat what follows the name, from the state on; empty where there is no such process.
std::string stat_of(int pid) {
  const std::string stat = contents(fmt::format("/proc/{}/stat", pid));
  const auto end_of_name = stat.rfind(") ");
  return end_of_name == stat.npos ? "" : stat.substr(end_of_name + 2);
}

FlightPage* map_page(int fd, int protection) {
  void* const address = mmap(nullptr, sizeof(FlightPage), protection, MAP_SHARED, fd, 0);
  return address == MAP_FAILED ? nullptr : static_cast<FlightPage*>(address);
}

}  // namespace

OwnPage::OwnPage() {
  fd_ = static_cast<int>(syscall(SYS_memfd_create, kPageName, 1U /* MFD_CLOEXEC */));
  if (fd_ >= 0 && may_have_file_of(sizeof(FlightPage)) && posix_fallocate(fd_, 0, sizeof(FlightPage)) == 0)
    page_ = map_page(fd_, PROT_READ | PROT_WRITE);
  // Where the system gives none, the others do not see what this rank does; it still watches.
  if (page_ == nullptr) {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
    page_ = static_cast<FlightPage*>(mmap(nullptr, sizeof(FlightPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (page_ == MAP_FAILED) throw Error(ExitCode::out_of_memory, fmt::format("no memory for a flight record: {}", std::strerror(errno)));
  }
  new (page_) FlightPage;
}

OwnPage::~OwnPage() {
  if (munmap(page_, sizeof(FlightPage)) != 0 || (fd_ >= 0 && close(fd_) != 0)) errno = 0;
}

PeerProcess::PeerProcess(int rank, int pid) : rank_(rank), pid_(pid) {
  process_ = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0));
  const std::string stat = stat_of(pid);  // "S 4321 ..."
  if (stat.size() > 2) parent_ = whole_number<int>(std::string_view(stat).substr(2, stat.find(' ', 2) - 2)).value_or(0);
  const auto path = page_of(pid);
  const int fd = path ? open(path->c_str(), O_RDONLY | O_CLOEXEC) : -1;
  struct stat status {};
  if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size >= static_cast<off_t>(sizeof(FlightPage))) page_ = map_page(fd, PROT_READ);
  if (fd >= 0 && close(fd) != 0) errno = 0;
  // What a rank has forked has the rank's page open.
  if (page_ == nullptr || (page_->magic.load() == FlightPage::kMagic && page_->pid.load() == pid)) return;
  if (munmap(const_cast<FlightPage*>(page_), sizeof(FlightPage)) != 0) errno = 0;
  page_ = nullptr;
}

void PeerProcess::note_told() const {
  const auto path = page_ != nullptr ? page_of(pid_) : std::nullopt;
  const int fd = path ? open(path->c_str(), O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  FlightPage* const page = map_page(fd, PROT_READ | PROT_WRITE);
  if (page != nullptr) page->is_told = true;
  if ((page != nullptr && munmap(page, sizeof(FlightPage)) != 0) || close(fd) != 0) errno = 0;
}

PeerProcess::~PeerProcess() {
  if (page_ != nullptr && munmap(const_cast<FlightPage*>(page_), sizeof(FlightPage)) != 0) errno = 0;
  if (process_ >= 0 && close(process_) != 0) errno = 0;
}

bool PeerProcess::has_ended() const {
  pollfd watched{process_, POLLIN, 0};
  return process_ >= 0 && poll(&watched, 1, 0) == 1;
}

void PeerProcess::kill_if_stopped() const {
  if (process_ < 0 || state() != 'T') return;
  if (syscall(SYS_pidfd_send_signal, process_, SIGKILL, nullptr, 0) != 0) errno = 0;  // it has ended meanwhile
}

char PeerProcess::state() const {
  if (has_ended()) return 'X';
  const std::string stat = stat_of(pid_);
  return stat.empty() ? 'X' : stat[0];
}

std::string job_name() {
  const char* const name = std::getenv(kJobVariable);
  return name != nullptr ? name : "";
}

std::vector<std::unique_ptr<PeerProcess>> find_peer_processes(int own_rank, std::string_view job) {
  std::map<int, std::unique_ptr<PeerProcess>> found;  // by rank
  std::error_code failed;
  for (fs::directory_iterator entry("/proc", failed), end; !job.empty() && !failed && entry != end; entry.increment(failed)) {
    const auto pid = whole_number<int>(entry->path().filename().string());
    if (!pid || *pid == getpid()) continue;
    const std::string environment = contents(entry->path().string() + "/environ");
    if (variable(environment, kJobVariable) != job) continue;
    const auto rank = whole_number<int>(variable(environment, kRankVariable).value_or(""));
    if (!rank || *rank == own_rank) continue;
    auto peer = std::make_unique<PeerProcess>(*rank, *pid);
    auto& known = found[*rank];
    // A wrapper, or what the rank has started, has the same environment: the rank is the one with the page.
    if (!known || (known->page() == nullptr && peer->page() != nullptr)) known = std::move(peer);
  }
  std::vector<std::unique_ptr<PeerProcess>> peers;
  for (auto& [rank, peer] : found) peers.push_back(std::move(peer));
  return peers;
}

}  // namespace zs
