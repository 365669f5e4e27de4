#include "runtime/device/stream_report.h"

#include <cstdio>
#include <typeinfo>

#include "runtime/base/usage_error.h"

#include "runtime/base/standard_streams.h"

namespace zs {
namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace

std::string describe_activity(const std::vector<std::pair<StreamRole, std::string>>& activities) {
  std::string busy;
  for (const auto& [role, activity] : activities) {
    if (activity != "idle") busy += fmt::format("{}{}: {}", busy.empty() ? "" : "; ", name_of(role), activity);
  }
  return busy;
}

SyncTimeout sync_timeout(StreamRole role, double limit_s, const std::string& busy) {
  return {ExitCode::peer_lost, fmt::format("stream '{}' did not finish within {} s", name_of(role), limit_s),
          busy.empty() ? "no stream is running anything" : busy,
          "a rank is lost, stopped or much slower than the others"};
}

std::exception_ptr current_error_of(const std::string& op) noexcept {
  try {
    throw;
  } catch (const UsageError& e) {
    return std::make_exception_ptr(UsageError(fmt::format("op {}: {}", op, e.what_happened()), e.what_to_do()));
  } catch (const Error& e) {
    if (typeid(e) != typeid(Error) || e.code() != ExitCode::internal) return std::current_exception();
    return std::make_exception_ptr(
        Error(e.code(), fmt::format("op {}: {}", op, e.what_happened()), e.where(), e.what_to_do()));
  } catch (...) {
    return std::current_exception();
  }
}

void log_unseen_error(StreamRole role, const std::exception_ptr& error) noexcept {
  if (std::uncaught_exceptions() > 0) return;  // whoever catches that one has a line to print, which shall be the last
  print_to_stderr("zshard: stream '{}' ended with an error that nobody asked for: {}\n", name_of(role),
                  message_of(error));
}

void log_left_behind(StreamRole role, const std::string& activity) noexcept {
  print_to_stderr("zshard: stream '{}' does not end ({}); it is left behind\n", name_of(role), activity);
}

}  // namespace zs
