#pragma once

#include <cstdint>
#include <string>

/// Numbers as people read them.
namespace zs {

std::string format_bytes(std::int64_t bytes);                     ///< "1.5 GiB"
std::string format_count(double count);                           ///< "12.3k"
std::string format_number(std::int64_t count, const char* noun);  ///< "1 rank", "4 ranks"
std::string format_duration(double seconds);                      ///< "1:02:03", "2:05"

}  // namespace zs
