#pragma once

#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

namespace zs {

/// Sequences that colour what follows on a terminal, and end that.
inline constexpr std::string_view kGreen = "\x1b[32m", kPlainColour = "\x1b[0m";

/// Writes `text` to standard error, without a buffer. Control characters are spelled as \x1b, but for line ends, tabs,
/// a return at a line's begin and the sequences that clear a line or colour text: text may have the names of files in
/// it. What cannot be written (the stream is closed, its disk is full) is lost: nobody is left to be told. Never
/// throws. Any thread.
void write_to_stderr(std::string_view text) noexcept;

/// Writes to standard output. The first failure is remembered, so that the program can report it when its work is done:
/// a full disk or a reader that has gone is no reason to lose a training. Never throws. Any thread.
void write_to_stdout(std::string_view text) noexcept;

/// errno of the first write to standard output that failed, 0 where none has. A stream that was closed when the program
/// started counts as one that nobody wants, and does not fail.
int stdout_failure() noexcept;

/// Formats, then writes; without memory to format in nothing is written.
template <class... Args>
void print_to_stderr(fmt::format_string<Args...> format, Args&&... args) noexcept {
  try {
    write_to_stderr(fmt::format(format, std::forward<Args>(args)...));
  } catch (const std::exception&) {
    write_to_stderr("zshard: a message is lost: no memory\n");
  }
}

}  // namespace zs
