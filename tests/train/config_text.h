#pragma once

#include <catch2/catch.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "model/train/config/config.h"

namespace zs::test {

using Overrides = std::vector<std::string>;

/// A configuration with what has no default, and two keys more.
inline const std::string kSmall = R"(
[model]
preset = "tiny"
[data]
train = "corpus.txt"
[train]
steps = 100
global_batch = 24
)";

inline std::vector<Error> problems_of(const std::string& text, const Overrides& overrides = {}) {
  try {
    parse_config(text, "folder/small.toml", overrides);
  } catch (const ConfigError& error) {
    for (const Error& problem : error.problems()) CHECK(problem.code() == ExitCode::config);
    return error.problems();
  }
  return {};
}

inline Error only_problem(const std::string& text, const Overrides& overrides = {}) {
  const auto problems = problems_of(text, overrides);
  for (const Error& problem : problems) UNSCOPED_INFO(problem.what());
  REQUIRE(problems.size() == 1);
  return problems[0];
}

inline std::string set(std::string_view key, const std::string& value) { return std::string(key) + "=" + value; }

}  // namespace zs::test
