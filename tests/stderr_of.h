#pragma once

#include <catch2/catch.hpp>

#include <unistd.h>

#include <cstdio>
#include <string>

namespace zs::test {

/// What this process writes to stderr while `body` runs.
template <class Body>
std::string stderr_of(const Body& body) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stderr);
  const int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  body();
  std::fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

}  // namespace zs::test
