#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <system_error>

namespace zs {

/// Exit codes of every program of the project. They stay clear of MPI error classes, of signals (128 + n) and of the
/// codes that sanitizers use.
enum class ExitCode : int {
  ok = 0,
  usage = 64,           ///< command line or launcher
  dataset = 65,         ///< dataset missing or invalid
  model = 67,           ///< model or weight file invalid
  checkpoint = 68,      ///< checkpoint unusable
  peer_lost = 69,       ///< a peer is lost or hangs
  internal = 70,        ///< an invariant of zshard itself failed
  out_of_memory = 71,   ///< out of memory
  ranks_disagree = 72,  ///< configuration, order or version differ between ranks
  cannot_create = 73,   ///< output cannot be created
  io = 74,              ///< I/O error while writing
  stopped = 75,         ///< stopped on request, state saved
  non_finite = 76,      ///< loss or gradient is not finite
  config = 78,          ///< configuration invalid
};

/// The one exception type that reaches users: what happened, where (file, key, rank ...; may be empty) and what to do
/// about it (may be empty), with the exit code of the program that dies of it.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, std::string what_happened, std::string where = {}, std::string what_to_do = {})
      : std::runtime_error(compose(what_happened, where, what_to_do)),
        code_(code),
        what_happened_(std::move(what_happened)),
        where_(std::move(where)),
        what_to_do_(std::move(what_to_do)) {}

  ExitCode code() const { return code_; }
  const std::string& what_happened() const { return what_happened_; }
  const std::string& where() const { return where_; }
  const std::string& what_to_do() const { return what_to_do_; }

 private:
  static std::string compose(const std::string& what, const std::string& where, const std::string& todo) {
    std::string line = what;
    if (!where.empty()) line += " (" + where + ")";
    if (!todo.empty()) line += ": " + todo;
    return line;
  }

  ExitCode code_;
  std::string what_happened_, where_, what_to_do_;
};

/// The system's words for an errno.
inline std::string system_reason(int error) { return std::error_code(error, std::generic_category()).message(); }

/// ZS_CHECK's failure: throws an Error(internal) that names the condition, file and line.
[[noreturn]] inline void throw_check_failure(const char* condition, const char* file, int line,
                                             const std::string& detail) {
  throw Error(ExitCode::internal, std::string("check failed: ").append(condition).append(": ").append(detail),
              std::string(file).append(":").append(std::to_string(line)));
}

}  // namespace zs

/// Active in every build type. The message is a fmt format string with the values, what was expected, and the rank
/// where it is known.
#define ZS_CHECK(condition, ...)                                                             \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::zs::throw_check_failure(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
  } while (false)
