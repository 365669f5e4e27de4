#include "model/train/rank/error_line.h"
#include "model/train/rank/print.h"

#include <catch2/catch.hpp>

#include "model/data/utf8.h"
#include "tests/stderr_of.h"

namespace error_line_test {

using namespace zs;

TEST_CASE("an error line is one short line of printable characters") {
  const Error plain(ExitCode::config, "train.lr is -1", "a.toml:3", "give a number");
  CHECK(error_line(plain) == "train: error: train.lr is -1 (a.toml:3): give a number");
  CHECK(error_line(plain, "rank 2 step 7") == "train: error: train.lr is -1 (a.toml:3, rank 2 step 7): give a number");
  CHECK(error_line(Error(ExitCode::peer_lost, "nobody came"), "rank 2") == "train: error: nobody came (rank 2)");
  CHECK(error_line(Error(ExitCode::peer_lost, "nobody came", "rank 2"), "rank 2") ==
        "train: error: nobody came (rank 2)");
  const Error odd(ExitCode::config, "a\nb\x1b[2J", "c\td", "");
  CHECK(error_line(odd) == "train: error: a\\x0ab\\x1b[2J (c\\x09d)");

  const Error lengthy(ExitCode::config, std::string(500, 'w'), "/" + std::string(500, 'p') + "/last.toml:9",
                      std::string(200, 't'));
  const std::string line = error_line(lengthy);
  CHECK(line.size() == 300);
  CHECK(line.find("last.toml:9)") != std::string::npos);
  CHECK(line.ends_with("ttt..."));
  CHECK(error_line(Error(ExitCode::peer_lost, "rank 1 is gone", {},
                         "see whether that rank still runs; WorldOptions::timeout_s limits the wait")) ==
        "train: error: rank 1 is gone: see whether that rank still runs; comm.timeout_s limits the wait");
  CHECK(error_line(Error(ExitCode::checkpoint, "a checksum", "a", "use another checkpoint")) ==
        "train: error: a checksum (a): use another checkpoint; --resume latest-valid finds the newest good one");
  CHECK(error_line(Error(ExitCode::checkpoint, "a checksum", "a",
                         "use another checkpoint; --resume latest-valid finds the newest good one")) ==
        "train: error: a checksum (a): use another checkpoint; --resume latest-valid finds the newest good one");
  std::string umlauts;
  for (int i = 0; i < 400; ++i) umlauts += "\xc3\xa4";
  CHECK(error_line(Error(ExitCode::config, umlauts)).find("\xc3.") == std::string::npos);
}

TEST_CASE("F18: nothing that steers a terminal is left in escaped text, and UTF-8 stays") {
  CHECK(escaped("train.lr 0.1 -> \x1b]0;x\x07") == "train.lr 0.1 -> \\x1b]0;x\\x07");
  CHECK(escaped("\xc2\x9b"
                "31m \xc2\xa0") == "\\xc2\\x9b31m \xc2\xa0");  // CSI as a C1 character, and the first that is none
  CHECK(escaped("\x9b"
                "31m\xff") == "\\x9b31m\\xff");  // CSI as a byte
  CHECK(escaped("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80") == "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80");
  // Overlong, a surrogate, too large, cut short: each byte by itself.
  CHECK(escaped("\xc0\x9b") == "\\xc0\\x9b");
  CHECK(escaped("\xe0\x80\x9b") == "\\xe0\\x80\\x9b");
  CHECK(escaped("\xed\xa0\x80") == "\\xed\\xa0\\x80");
  CHECK(escaped("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");
  CHECK(escaped("\xe2\x82") == "\\xe2\\x82");
}

TEST_CASE("what is printed of a path or a name steers no terminal, and lines of the program stay") {
  const std::string path = "runs/x\x1b]0;pwned\x07\n\xc2\x9b";
  CHECK(fmt::format("{}", printed(path)) == "runs/x\\x1b]0;pwned\\x07\\x0a\\xc2\\x9b");
  CHECK(fmt::format("{}", printed(std::string_view(path))) == escaped(path));
  CHECK(fmt::format("{}", printed(AsIs{"a\n\rb\x1b[K"})) == "a\n\rb\x1b[K");
  CHECK(fmt::format("{}{}", printed(7), printed("\n")) == "7\n");
}

TEST_CASE("standard error gets no character that steers a terminal, but for those of the program's own line") {
  const std::string text = "\rstep 1\x1b[K\n\tx\x1b[2J\x07\rb\xc2\x9b\n";
  CHECK(test::stderr_of([&] { write_to_stderr(text); }) == "\rstep 1\x1b[K\n\tx\\x1b[2J\\x07\\x0db\\xc2\\x9b\n");
}

}  // namespace error_line_test
