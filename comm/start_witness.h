#pragma once

#include <sys/un.h>

#include <string>
#include <string_view>

#include "comm/flight_recorder.h"

namespace zs {

/// A name that one process of the host can have, that is nowhere in the file system and goes with its process: whoever has it tells the
/// user why the job ends. `job`: what job_name() says, or anything else that its processes have in common.
class ReportName {
 public:
  explicit ReportName(std::string_view job);
  static constexpr int kTaken = -1, kRefused = -2;
  /// A descriptor that holds the name; kTaken: somebody else has it; kRefused: the system gives it to nobody. May be called by a process
  /// that has just been forked.
  int claim() const noexcept;

 private:
  sockaddr_un address_{};
  socklen_t length_;
};

/// A child of this process that tells of its end while MPI starts. MPI ends a process in which it cannot start by `_exit`, all ranks at
/// once and without a word where mpirun is quiet. Where it cannot be made there is none.
class StartWitness {
 public:
  /// `line` is written to standard error when this process ends, unless the page says that the user has been told, or somebody else has
  /// the name.
  StartWitness(FlightPage& page, const ReportName& name, const std::string& line);
  /// MPI has started.
  ~StartWitness();
  StartWitness(const StartWitness&) = delete;
  StartWitness& operator=(const StartWitness&) = delete;

 private:
  int pid_ = -1, pipe_ = -1;
};

}  // namespace zs
