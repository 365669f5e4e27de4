// A file that stands for memory: what it refuses, and what it notices.
#include "runtime/shard/offload/disk_file.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "runtime/device/device.h"
#include "tests/file_limit.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"

namespace zs::test::disk_file_test {
namespace {

struct OneDisk {
  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  TempDir dir;
  DiskFile file{dir / "state", 0, true};
  Stream& stream = device->stream(StreamRole::compute);
};

}  // namespace

TEST_CASE("what a file keeps is read as it was written, whole and in part", "[disk_file]") {
  OneDisk disk;
  constexpr std::int64_t kElems = (std::int64_t{5} << 18) + 13;  // 5 MiB and a little more
  std::vector<float> values(kElems), found(kElems);
  std::iota(values.begin(), values.end(), 0.0f);
  const Memory first = disk.file.acquire(100, disk.stream, "moments"),
               second = disk.file.acquire(kElems * 4, disk.stream, "moments");
  const Buffer all = second.buffer(DType::f32, kElems);
  CHECK(disk.file.contains(all));
  CHECK_FALSE(disk.file.contains({values.data(), kElems, DType::f32, DeviceKind::cpu}));
  CHECK(disk.dir.entries() == 1);  // the folder
  CHECK(disk.file.bytes() % 4096 == 0);
  disk.file.write(disk.file.range_of(first.buffer(DType::u8, 100)), values.data());
  disk.file.write(disk.file.range_of(all), values.data());
  disk.file.read(disk.file.range_of(all), found.data());
  CHECK(found == values);
  const Buffer part = all.slice(262'000, 600'000);
  std::vector<float> changed(static_cast<std::size_t>(part.elems), -1.0f);
  disk.file.write(disk.file.range_of(part), changed.data());
  std::copy(changed.begin(), changed.end(), values.begin() + 262'000);
  disk.file.read(disk.file.range_of(all), found.data());
  CHECK(found == values);
  std::vector<float> some(777);
  disk.file.read(disk.file.range_of(all.slice(861'500, 777)), some.data());
  CHECK(std::equal(some.begin(), some.end(), values.begin() + 861'500));
}

TEST_CASE("a folder that cannot be used is refused, and nothing is left there", "[disk_file]") {
  const TempDir dir;
  const std::string file = dir.write("file", "x");
  for (const std::string& folder : {dir / "not/there", file, file + "/state"}) {
    const auto open = [&] { DiskFile(folder, 0, true); };
    CAPTURE(folder);
    CHECK_THAT(coded_message_of(open), Catch::StartsWith("73: the folder for state that the disk keeps") &&
                                           Catch::Contains(folder) && Catch::Contains("name one"));
  }
  CHECK(dir.entries() == 1);
}

TEST_CASE("a disk without room is found out when the room is taken", "[disk_file]") {
  OneDisk disk;
  const Memory small = disk.file.acquire(4096, disk.stream, "moments");
  const FileLimit limit(1 << 20);
  const auto take = [&] { disk.file.acquire(1 << 20, disk.stream, "moments"); };
  CHECK_THAT(
      coded_message_of(take),
      Catch::StartsWith("71: the disk has no room for the state that it is to keep: 1048576 bytes beside 4096") &&
          Catch::Contains("raise the limit of a file's size"));
  const auto take_more = [&] { disk.file.acquire(std::int64_t{1} << 60, disk.stream, "moments"); };
  CHECK_THAT(coded_message_of(take_more), Catch::StartsWith("71: "));
}

TEST_CASE("a write that the system refuses says so", "[disk_file]") {
  OneDisk disk;
  constexpr std::int64_t kBytes = std::int64_t{3} << 20;
  const std::vector<std::byte> zeros(kBytes);
  const Memory memory = disk.file.acquire(kBytes, disk.stream, "moments");
  const Buffer all = memory.buffer(DType::u8, kBytes);
  const FileLimit limit((2 << 20) + 100);  // within the third block, whose first byte is named
  const auto write = [&] { disk.file.write(disk.file.range_of(all), zeros.data()); };
  CHECK_THAT(coded_message_of(write),
             Catch::StartsWith("74: writing the state that the disk keeps failed at byte 2097152") &&
                 Catch::Contains("go on from the last checkpoint"));
}

}  // namespace zs::test::disk_file_test
