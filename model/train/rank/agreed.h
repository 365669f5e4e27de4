#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>

#include "comm/together.h"
#include "model/train/rank/error_line.h"
#include "runtime/base/standard_streams.h"

namespace zs {

/// Runs `body` on every rank and agrees on its outcome: 0, or the code of the lowest rank that failed, which prints why
/// in `program`'s name.
template <class Body>
int agreed(World& world, const Body& body, std::string_view program = program_name()) {
  int code = 0;
  std::string message;
  try {
    body();
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = error_line(error, world.size() > 1 ? fmt::format("rank {}", world.rank()) : "", program);
  }
  const World::Agreement agreement = world.agree(code, message);
  if (agreement.code != 0 && world.rank() == agreement.rank) print_to_stderr("{}\n", agreement.message);
  return agreement.code;
}

/// Runs `body(together)`, in which `together` is agreed() of its own argument: 0, or the code of the first that was
/// not.
template <class Body>
int agreed_together(World& world, const Body& body, std::string_view program = program_name()) {
  struct Refused {
    int code;
  };
  try {
    body([&](const std::function<void()>& part) {
      if (const int code = agreed(world, part, program); code != 0) throw Refused{code};
    });
    return 0;
  } catch (const Refused& refused) {
    return refused.code;
  }
}

/// Runs what is collective and fails alike on all ranks: 0, or the code that it failed with; one rank prints why.
template <class Body>
int collectively(World& world, const std::string& place, const Body& body) {
  try {
    body();
    return 0;
  } catch (const AgreedError& error) {
    if (world.rank() == 0) print_to_stderr("{}\n", error_line(error, place));
    return static_cast<int>(error.code());
  }
}

}  // namespace zs
