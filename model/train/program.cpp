#include "model/train/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>
#include <system_error>

#include "comm/communicator.h"

namespace zs {

void keep_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF && open("/dev/null", O_RDONLY) < 0) return;  // then nothing can be opened
  }
}

void limit_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  std::error_code failed;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed || setenv("GOMP_SPINCOUNT", "3000", 1) != 0) return;
  execv(executable.c_str(), argv);  // returns only when it failed: then on as we are
}

bool prints_to_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  std::error_code failed;
  const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", getppid()), failed).string();
  return !failed && (target.starts_with("/dev/pts/") || target.starts_with("/dev/tty"));
}

bool prints_utf8() {
  if (!prints_to_terminal()) return true;
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const locale = std::getenv(name);
    if (locale == nullptr || *locale == '\0') continue;
    const char* const charset = std::strchr(locale, '.');
    return charset == nullptr || strncasecmp(charset, ".utf-8", 6) == 0 || strncasecmp(charset, ".utf8", 5) == 0;
  }
  return true;
}

bool is_consequence(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const GroupEnded&) {
    return true;
  } catch (...) {
    return false;
  }
}

Error as_error(const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ExitCode::out_of_memory, "out of memory", "", "lower train.micro_batch or the model's size");
  } catch (const std::system_error& error) {  // of standard output, files or threads: what the system refused
    return Error(ExitCode::io, error.what(), "", "see whether there is room, and what ulimit -a allows");
  } catch (const std::exception& error) {
    return Error(ExitCode::internal, error.what(), "", "this is a defect of zshard");
  }
}

}  // namespace zs
