#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/stream.h"

namespace zs {

/// "compute: waits for stream 'unshard'; unshard: all_gather:blocks.3": of streams and what each does, those that are
/// not "idle".
std::string describe_activity(const std::vector<std::pair<StreamRole, std::string>>& activities);
/// Error that synchronize throws when `role` takes longer than `limit_s`, while the streams do `busy`.
SyncTimeout sync_timeout(StreamRole role, double limit_s, const std::string& busy);
/// The exception that is being handled, of an op's work. A failed check, which knows no op, gets this op's name; any
/// other is as it was.
std::exception_ptr current_error_of(const std::string& op) noexcept;
/// One line on stderr for an error of a stream that ends, which no synchronize has thrown.
void log_unseen_error(StreamRole role, const std::exception_ptr& error) noexcept;
/// Logs one line on stderr for a stream that does not end.
void log_left_behind(StreamRole role, const std::string& activity) noexcept;

}  // namespace zs
