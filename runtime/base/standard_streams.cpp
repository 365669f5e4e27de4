#include "runtime/base/standard_streams.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

namespace zs {
namespace {

std::atomic<int> first_failure{
    0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): a process has one standard output

/// 0, or the errno of what could not be written.
int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count == 0) return EIO;
    if (count > 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
      continue;
    }
    const int error = errno;
    if (error == EAGAIN ||
        error == EWOULDBLOCK) {  // whoever gave us the stream reads it slowly, and made it non-blocking
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else if (error != EINTR) {
      return error;
    }
  }
  return 0;
}

}  // namespace

void write_to_stderr(std::string_view text) noexcept { static_cast<void>(write_all(STDERR_FILENO, text)); }

void write_to_stdout(std::string_view text) noexcept {
  const int error = write_all(STDOUT_FILENO, text);
  int none = 0;
  if (error != 0 && error != EBADF) first_failure.compare_exchange_strong(none, error);
}

int stdout_failure() noexcept { return first_failure.load(); }

}  // namespace zs
