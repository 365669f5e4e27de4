#pragma once

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

}  // namespace zs::test
