#include "model/train/inference/line_input.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/reader_limits.h"
#include "runtime/base/standard_streams.h"

namespace zs {

bool LineInput::is_terminal() { return ::isatty(STDIN_FILENO) == 1; }

bool LineInput::take_line() {
  const std::size_t end = read_.find('\n');
  if (end == std::string::npos && !(has_ended_ && !read_.empty())) return false;
  line_ = read_.substr(0, end);
  read_.erase(0, end == std::string::npos ? end : end + 1);
  if (line_.ends_with('\r')) line_.pop_back();
  return true;
}

LineInput::State LineInput::poll(int timeout_ms) {
  if (take_line()) return State::line;
  if (has_ended_) return State::end;
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (::poll(&input, 1, timeout_ms) <= 0) return State::nothing;  // also where a signal has come
  std::array<char, 4096> piece;
  const ssize_t bytes = ::read(STDIN_FILENO, piece.data(), piece.size());
  if (bytes < 0 && (errno == EINTR || errno == EAGAIN)) return State::nothing;
  if (bytes < 0)
    throw Error(ExitCode::io, fmt::format("standard input cannot be read: {}", system_reason(errno)), "stdin",
                "give it a file, a pipe or a terminal");
  if (bytes == 0) has_ended_ = true;
  read_.append(piece.data(), static_cast<std::size_t>(bytes));
  if (take_line()) return State::line;
  if (read_.size() > ReaderLimits::kChatLineBytes)
    throw Error(ExitCode::dataset, "a line is larger than 1 MiB", "stdin", "end lines, each of which is a turn");
  return has_ended_ ? State::end : State::nothing;
}

}  // namespace zs
