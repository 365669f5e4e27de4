#include "runtime/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace zs {

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  return value < 99.95 ? fmt::format("{:.1f} {}", value, kUnits[unit]) : fmt::format("{:.0f} {}", value, kUnits[unit]);
}

std::string format_count(double count) {
  static constexpr std::array kUnits = {"k", "M", "G", "T", "P"};
  if (!std::isfinite(count)) return "?";
  if (count < 999.5) return fmt::format("{:.0f}", count);
  count /= 1000;
  std::size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) count /= 1000, ++unit;
  return count < 99.95 ? fmt::format("{:.1f}{}", count, kUnits[unit]) : fmt::format("{:.0f}{}", count, kUnits[unit]);
}

std::string format_number(std::int64_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e9;
  if (!(seconds >= 0) || seconds > kLongest) return "?";
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t hours = total / 3600, minutes = total / 60 % 60, rest = total % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, rest) : fmt::format("{}:{:02}", minutes, rest);
}

}  // namespace zs
