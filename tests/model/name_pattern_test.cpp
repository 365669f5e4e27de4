// The language of patterns for names.
#include "runtime/base/name_pattern.h"

#include <catch2/catch.hpp>

#include "runtime/base/check.h"
#include "tests/message_of.h"

namespace name_pattern_test {

using namespace zs;
using namespace zs::test;

namespace {

bool matches(const char* pattern, const char* name) { return NamePattern(pattern).matches(name); }
std::string problem_of(const char* pattern) {
  return message_of([&] { NamePattern{pattern}; });
}

}  // namespace

TEST_CASE("3-4: a pattern matches what the published plan code says") {
  struct Row {
    const char *pattern, *name;
    bool matches;
  };
  const auto row = GENERATE(values<Row>({{"layers.{0-3}", "layers.12", false},
                                         {"*.{0-3}", "layers.12", false},
                                         {"*.{0-3}", "layers.2", true},
                                         {"{*}", "12", true},
                                         {"a.{*}", "a.0.1", false},
                                         {"a.*", "a.0.1", true},
                                         {"a.*", "a", false},
                                         {"a?b", "a.b", true},
                                         {"a[0]", "a[0]", true},
                                         {"a[0]", "a0", false},
                                         {"layers.{*}", "layers.007", true},
                                         {"layers.{7-7}", "layers.007", true},
                                         {"a.{ 1 - 3 }", "a.2", true},
                                         {"a{", "a{", true},
                                         {"", "", true},
                                         {"*", "", true},
                                         {"layers.{*}", "model.layers.0", false},
                                         {"*layers.{*}", "model.layers.0", true},
                                         {"layers.{*}", "layers.0.attn", false},
                                         {"layers.{*}*", "layers.0.attn", true},
                                         {"A.{*}", "a.1", false}}));
  CAPTURE(row.pattern, row.name);
  CHECK(matches(row.pattern, row.name) == row.matches);
}

TEST_CASE("3-4: a pattern matches a whole name, however many ways there are") {
  CHECK(matches("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaab"));
  CHECK_FALSE(matches("*a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(200, 'a').c_str()));
  CHECK(matches("{*}{*}", "12"));
  CHECK_FALSE(matches("{*}{*}", "1"));
  CHECK(matches("b.{*}?", "b.12"));
  CHECK(matches("x.{10-11}.y", "x.11.y"));
  CHECK_FALSE(matches("x.{10-11}.y", "x.12.y"));
  CHECK_FALSE(matches("x.{0-9}", "x.99999999999999999999999999"));
  CHECK_FALSE(matches("x.{0-9}", "x."));
  CHECK_FALSE(matches("a", "ab"));
  CHECK_FALSE(matches("b", "ab"));
  CHECK_FALSE(matches("", "a"));
}

TEST_CASE("3-4: braces that say no integers are refused") {
  const auto [pattern, what] = GENERATE(table<const char*, const char*>({{"a.{}", "braces hold {*}"},
                                                                         {"a.{1}", "braces hold {*}"},
                                                                         {"a.{1-2-3}", "braces hold {*}"},
                                                                         {"a.{0,1}", "braces hold {*}"},
                                                                         {"a.{x-2}", "not both integers"},
                                                                         {"a.{-3}", "not both integers"},
                                                                         {"a.{3-1}", "write {1-3}"}}));
  CHECK_THAT(problem_of(pattern), Catch::Contains(pattern) && Catch::Contains(what));
}

// The published code takes as many digits as it can and compares then: "*{0-3}" matches "layers.12", whose last digit
// is 2, and "a.{1-2}{3-4}" matches "a.23", but "{0-3}*" does not match "12.x".
TEST_CASE("3-4: a range beside what may be a digit is refused, where the published code takes what is left over") {
  for (const char* pattern : {"*{0-3}", "a.{1-2}{3-4}", "{0-3}*", "1{0-3}", "?{0-3}", "{0-3}{*}"}) {
    CHECK_THAT(problem_of(pattern), Catch::Contains("beside what may be a digit as well"));
  }
}

// There it is what stands in for braces while a pattern is translated.
TEST_CASE("3-4: the text __NUM__ stands for itself, where in the published code it is a number") {
  CHECK_FALSE(matches("__NUM__", "5"));
  CHECK(matches("__NUM__", "__NUM__"));
}

TEST_CASE("the nearest names leave integers open, each form once") {
  const std::vector<std::string> names = {
      "",         "blocks",       "blocks.0",           "blocks.0.mlp", "blocks.0.attention",
      "blocks.1", "blocks.1.mlp", "blocks.1.attention", "norm"};
  CHECK(nearest_names("blocks.{*}.atention", names, 1) == std::vector<std::string>{"blocks.{*}.attention"});
  CHECK(nearest_names("blocks.{0-3}.mpl", names, 2) == std::vector<std::string>{"blocks.{*}.mlp", "blocks.{*}"});
  CHECK(nearest_names("nrom", names).size() == 3);
  CHECK(nearest_names("x", {}).empty());
}

}  // namespace name_pattern_test
