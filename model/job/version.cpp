#include "model/job/version.h"

#include <string_view>

namespace zs {
namespace {

/// 102 for "0.1.2".
consteval int number_of(std::string_view version) {
  int parts[3] = {}, which = 0;
  for (const char c : version) {
    if (c == '.') {
      ++which;
    } else {
      parts[which] = parts[which] * 10 + (c - '0');
    }
  }
  return parts[0] * 10000 + parts[1] * 100 + parts[2];
}
static_assert(number_of(ZSHARD_VERSION) == ZSHARD_VERSION_NUMBER,
              "model/job/version.h has another version than meson.build");

}  // namespace

const char* version() { return ZSHARD_VERSION; }

}  // namespace zs
