#include "model/train/rank/disk_space.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <functional>

#include "tests/file_limit.h"
#include "tests/model/temp_dir.h"

namespace disk_space_test {

using namespace zs;

namespace {

constexpr std::int64_t kMore = std::int64_t{1} << 60;  // than any disk has

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::io);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("what a disk cannot hold is refused with how much is needed and how much is free, and nothing is left") {
  test::TempDir dir;
  for (const std::string& folder : {dir / "", dir / "not/yet/there"}) {
    const std::string message = message_of([&] { SpaceReserve().take(folder, kMore, "the final weights"); });
    CHECK_THAT(message, Catch::Contains("the disk has no room for the final weights: 1.0 EiB needed, ") &&
                            Catch::Contains(" free") && Catch::Contains("set run.dir"));
    CHECK_THAT(message_of([&] { check_space(folder, kMore, "a checkpoint"); }),
               Catch::Contains("no room for a checkpoint"));
  }
  CHECK(dir.entries() == 0);
}

TEST_CASE("space is taken without a name, and is free again when it is released") {
  test::TempDir dir;
  constexpr std::int64_t kBytes = 1 << 20;
  SpaceReserve space;
  space.take(dir / "new/run", kBytes, "the final weights");
  CHECK(dir.entries() == 0);
  check_space(dir / "", kBytes, "more");
  space.release();
  space.release();
  space.take(dir / "", kBytes, "once more");
}

TEST_CASE("a limit on the size of files is a lack of space, too") {
  test::TempDir dir;
  const test::FileLimit limit(4096);
  const std::string message = message_of([&] { SpaceReserve().take(dir / "", 1 << 20, "the final weights"); });
  CHECK_THAT(message, Catch::Contains("1.0 MiB needed") && Catch::Contains("File too large"));
  SpaceReserve().take(dir / "", 4096, "what is small");
}

TEST_CASE("only errors of full disks are for lack of space") {
  const auto failed = [](int error, ExitCode code = ExitCode::io) {
    return Error(code, "saving: write failed: " + system_reason(error), "x");
  };
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) CHECK(is_for_lack_of_space(failed(error)));
  for (const int error : {EIO, EACCES, EROFS}) CHECK_FALSE(is_for_lack_of_space(failed(error)));
  CHECK_FALSE(is_for_lack_of_space(failed(ENOSPC, ExitCode::checkpoint)));
}

}  // namespace disk_space_test
