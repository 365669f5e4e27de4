#include "comm/report_name.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace zs {

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

}  // namespace zs
