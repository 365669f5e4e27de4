#include "model/train/rank/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "kernels/kernels.h"
#include "kernels/versions.h"
#include "model/job/version.h"
#include "runtime/base/launch.h"

namespace zs {

void keep_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF && open("/dev/null", O_RDONLY) < 0)
      return;  // then nothing can be opened
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
  if (read_launch().manager != ProcessManager::open_mpi) return true;
  std::error_code failed;
  const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", getppid()), failed).string();
  return !failed && (target.starts_with("/dev/pts/") || target.starts_with("/dev/tty"));
}

std::string program_folder(const char* program) {
  std::error_code failed;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", failed);
  return (failed ? std::filesystem::path(program) : executable).parent_path().string();
}

std::string describe_build() {
  const std::string archs = cuda_kernel_archs();
  return fmt::format("zshard {}\nCUDA: {}\nMPI: {}\noneDNN: {}\nCPU kernels: {}", version(),
                     archs.empty() ? "no" : fmt::format("yes, kernels for compute capability {}", archs), mpi_version(),
                     onednn_version(), cpu_isa());
}

void check_threads(int count) {
  std::mutex mutex;
  std::condition_variable ends;
  bool is_over = false;
  std::vector<std::jthread> threads;
  const auto end = [&] {
    const std::lock_guard lock(mutex);
    is_over = true;
    ends.notify_all();
  };
  try {
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        std::unique_lock lock(mutex);
        ends.wait(lock, [&] { return is_over; });
      });
    }
  } catch (...) {
    end();
    throw as_error(std::current_exception());
  }
  end();
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
  } catch (const std::system_error& error) {
    // A thread has this error; files and streams do not.
    if (error.code() == std::errc::resource_unavailable_try_again)
      return Error(ExitCode::out_of_memory, fmt::format("no thread can be started: {}", error.what()), "",
                   "raise the limit on processes (ulimit -u, a container's pids.max), or lower OMP_NUM_THREADS or the "
                   "number of ranks");
    // The system refused standard output, files or threads.
    return Error(ExitCode::io, error.what(), "", "see whether there is room, and what ulimit -a allows");
  } catch (const std::exception& error) {
    return Error(ExitCode::internal, error.what(), "", "this is a defect of zshard");
  }
}

}  // namespace zs
