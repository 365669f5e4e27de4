#include "model/train/run_dir/event_file.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/check.h"
#include "tests/model/temp_dir.h"

namespace event_file_test {

using namespace zs;

namespace {

/// The bytes of each record's event.
std::vector<std::string> events_in(const std::string& path) {
  const std::string bytes = test::read_file(path);
  std::vector<std::string> events;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    REQUIRE(at + 16 + length <= bytes.size());
    events.push_back(bytes.substr(at + 12, length));
    at += 16 + length;
  }
  return events;
}

}  // namespace

TEST_CASE("CRC-32C has the values of RFC 3720, appendix B.4, and is masked as TFRecord files have it") {
  const auto masked = [](std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; };
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  CHECK(masked_crc32c(std::string(32, '\0')) == masked(0x8a9136aaU));
  CHECK(masked_crc32c(std::string(32, '\xff')) == masked(0x62a8ab43U));
  CHECK(masked_crc32c(rising) == masked(0x46dd794eU));
  CHECK(masked_crc32c(falling) == masked(0x113fdb5cU));
}

TEST_CASE("a new file has a version, and an event for each step; one that goes on says from where") {
  test::TempDir dir;
  const std::string path = dir / "events";
  {
    EventFile file(path, 0);
    file.add({.step = 1, .loss = 2.5f, .val_loss = 3.f});
    file.add({.step = 300, .loss = 2});
  }
  REQUIRE(events_in(path).size() == 3);
  CHECK(events_in(path)[0].ends_with("brain.Event:2"));
  CHECK(events_in(path)[1].find("loss/validation") != std::string::npos);
  CHECK(events_in(path)[2].find("loss/validation") == std::string::npos);
  CHECK(events_in(path)[2].substr(9, 3) == std::string("\x10\xac\x02", 3));  // step 300
  const std::string whole = test::read_file(path);
  { EventFile file(path, 4); }
  CHECK(test::read_file(path).starts_with(whole));
  CHECK(events_in(path).back().substr(9) == std::string("\x10\x05\x3a\x02\x08\x01", 6));  // step 5: START
}

TEST_CASE("of step 0 there is its validation alone") {
  test::TempDir dir;
  const std::string path = dir / "events";
  {
    EventFile file(path, 0);
    file.add({.step = 0, .val_loss = 3.f, .tasks = {{"books", "acc", 0.5}}});
    file.add({.step = 0});
  }
  const auto events = events_in(path);
  REQUIRE(events.size() == 2);
  CHECK(events[1].find("task/books/acc") != std::string::npos);
  CHECK(events[1].find("loss/validation") != std::string::npos);
  for (const char* tag : {"loss/train", "train/", "speed/", "memory/"}) CHECK(events[1].find(tag) == std::string::npos);
}

TEST_CASE("what is torn or damaged at the end is cut off before the file goes on") {
  test::TempDir dir;
  const std::string path = dir / "events";
  {
    EventFile file(path, 0);
    for (const std::int64_t step : {1, 2, 3}) file.add({.step = step});
  }
  const std::string whole = test::read_file(path);
  const std::size_t version = 16 + events_in(path)[0].size();
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    dir.write("events", whole.substr(0, cut));
    EventFile(path, 1).add({.step = 2});
    const auto events = events_in(path);
    std::string again;
    for (const std::string& event : events) again += std::string(16, ' ') + event;
    REQUIRE(again.size() == test::read_file(path).size());
    CHECK(events.front().ends_with("brain.Event:2"));
    CHECK(events.size() >= (cut < version ? 2U : 3U));
  }
  std::string damaged = whole;
  damaged[damaged.size() - 20] ^= 1;
  dir.write("events", damaged);
  EventFile(path, 2).add({.step = 3});
  CHECK(test::read_file(path).substr(0, version) == whole.substr(0, version));
  CHECK(events_in(path).size() == 3 + 2);  // version, 1, 2; then START, 3
}

TEST_CASE("no other file is taken for one of events, nor a link followed, and it stays as it is") {
  test::TempDir dir;
  for (const std::string& text :
       {std::string("precious\n"), std::string(100, '\0'), std::string("\x18\0\0\0\0\0\0\0 more", 13)}) {
    const std::string path = dir.write("events", text);
    CHECK_THROWS_AS(EventFile(path, 0), Error);
    CHECK(test::read_file(path) == text);
  }
  const std::string target = dir.write("target", "");
  REQUIRE(::symlink(target.c_str(), (dir / "link").c_str()) == 0);
  CHECK_THROWS_AS(EventFile(dir / "link", 0), Error);
  std::filesystem::create_directory(dir / "folder");
  CHECK_THROWS_AS(EventFile(dir / "folder", 0), Error);
}

}  // namespace event_file_test
