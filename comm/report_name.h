#pragma once

#include <sys/un.h>

#include <string_view>

namespace zs {

/// A name that one process of the host can have, that is nowhere in the file system and goes with its process: whoever has it tells the
/// user why the job ends. `job`: what job_name() says, or anything else that its processes have in common.
class ReportName {
 public:
  explicit ReportName(std::string_view job);
  static constexpr int kTaken = -1, kRefused = -2;
  /// A descriptor that holds the name; kTaken: somebody else has it; kRefused: the system gives it to nobody.
  int claim() const noexcept;

 private:
  sockaddr_un address_{};
  socklen_t length_;
};

}  // namespace zs
