#include "runtime/base/standard_streams.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
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

constexpr std::array<std::string_view, 3> kSequences = {"\x1b[K", kGreen, kPlainColour};

bool is_control(unsigned char byte) { return byte < 0x20 || byte == 0x7f; }
/// U+0080 to U+009F in UTF-8.
bool is_c1(std::string_view text) {
  return text.size() > 1 && text[0] == '\xc2' && (static_cast<unsigned char>(text[1]) & 0xe0) == 0x80;
}

/// The text with control characters spelled as \x1b, but for those that lines are made of: a name may have others.
std::string visible(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool begins_line = i == 0 || text[i - 1] == '\n';
    const bool is_layout = c == '\n' || c == '\t' || (c == '\r' && begins_line);
    const auto known = std::find_if(kSequences.begin(), kSequences.end(),
                                    [&](std::string_view one) { return text.substr(i).starts_with(one); });
    if (known != kSequences.end()) {
      out += *known;
      i += known->size() - 1;
    } else if (is_c1(text.substr(i))) {
      out += fmt::format("\\xc2\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if (is_control(static_cast<unsigned char>(c)) && !is_layout) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

int write_visible(int descriptor, std::string_view text) noexcept {
  try {
    return write_all(descriptor, visible(text));
  } catch (const std::exception&) {  // no memory for another text
    return write_all(descriptor, text);
  }
}

}  // namespace

void write_to_stderr(std::string_view text) noexcept { static_cast<void>(write_visible(STDERR_FILENO, text)); }

void write_to_stdout(std::string_view text) noexcept {
  const int error = write_visible(STDOUT_FILENO, text);
  int none = 0;
  if (error != 0 && error != EBADF) first_failure.compare_exchange_strong(none, error);
}

int stdout_failure() noexcept { return first_failure.load(); }

}  // namespace zs
