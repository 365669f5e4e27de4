#pragma once

#include <functional>
#include <string>

#include "runtime/base/check.h"

namespace zs {

/// Limits on how long a rank may make no progress in each phase, in seconds: finish no operation, read and write
/// nothing. 0: for ever. A rank that is waited for and moves, however slowly, is left alone.
struct WatchOptions {
  double init_s = 300, first_step_s = 0, step_s = 0, checkpoint_s = 0;
  /// Watchdogs of several hosts send each other what their ranks do, by UDP.
  bool exchanges_heartbeats = true;
  std::string program = "zshard";  ///< begins the lines that it prints
  /// One line for the user; without it: "program: error: ...".
  std::function<std::string(const Error& error, const std::string& place)> line = {};
};

}  // namespace zs
