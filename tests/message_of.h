#pragma once

#include <fmt/core.h>

#include <string>

#include "runtime/base/check.h"

namespace zs::test {

/// What the Error says that `body` throws; empty if it throws none.
template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// The same behind the exit code: "64: ...".
template <class Body>
std::string coded_message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
  }
  return "";
}

}  // namespace zs::test
