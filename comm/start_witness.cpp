#include "comm/start_witness.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace zs {
namespace {

constexpr timespec kNameIsHeld{.tv_sec = 1, .tv_nsec = 0};  // what mpirun gives the others to end

/// Of a process that has just been forked while others of its threads ran: nothing that takes a lock or memory.
[[noreturn]] void watch(int pipe, FlightPage& page, const ReportName& name, const std::string& line) noexcept {
  char nothing = 0;
  const bool has_ended = read(pipe, &nothing, 1) == 0;
  // mpirun, which kills a rank with all of its group, reaches this process no longer: who has the name keeps it. Where it was mpirun that
  // has killed the rank, this process has gone, too.
  if (setpgid(0, 0) != 0) errno = 0;
  if (has_ended && !page.has_spoken && !page.is_told && name.claim() != ReportName::kTaken) {
    page.has_spoken = true;
    const bool is_written = write(STDERR_FILENO, line.data(), line.size()) > 0;
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(stream);  // mpirun may wait for their end
    if (is_written) nanosleep(&kNameIsHeld, nullptr);
  }
  _exit(0);
}

}  // namespace

ReportName::ReportName(std::string_view job) {
  address_.sun_family = AF_UNIX;
  const auto end = fmt::format_to_n(address_.sun_path + 1, sizeof address_.sun_path - 2, "zshard-report-{}-{}", getuid(), job);
  length_ = static_cast<socklen_t>(end.out - reinterpret_cast<char*>(&address_));
}

int ReportName::claim() const noexcept {
  const int made = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (made < 0) return kRefused;
  if (bind(made, reinterpret_cast<const sockaddr*>(&address_), length_) == 0) return made;
  const bool is_taken = errno == EADDRINUSE;
  if (close(made) != 0) errno = 0;
  return is_taken ? kTaken : kRefused;
}

StartWitness::StartWitness(FlightPage& page, const ReportName& name, const std::string& line) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  sigset_t all, before;
  sigfillset(&all);
  const bool is_blocked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;  // mpirun sends them to the rank's whole process group
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[1]);
    watch(ends[0], page, name, line);
  }
  if (is_blocked && pthread_sigmask(SIG_SETMASK, &before, nullptr) != 0) errno = 0;
  close(ends[0]);
  pipe_ = ends[1];
}

StartWitness::~StartWitness() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (pipe_ >= 0) close(pipe_);
}

}  // namespace zs
