// A process has one profiler or none: what it is given comes by the environment, and each case holds in one of the runs
// that tests/device/meson.build makes of this program.
#include "runtime/device/nvtx.h"

#include <dlfcn.h>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/device/test_devices.h"

namespace nvtx_test {

using namespace zs;
using namespace zs::test;

namespace {

/// All that the profiler was told so far; of the runs that have one.
std::string notes() {
  void* const library = dlopen(std::getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY | RTLD_NOLOAD);
  REQUIRE(library != nullptr);
  const auto read = reinterpret_cast<const char* (*)()>(dlsym(library, "fake_profiler_notes"));
  REQUIRE(read != nullptr);
  const std::string text = read();
  REQUIRE(dlclose(library) == 0);
  return text;
}

std::string notes_since(const std::string& before) { return notes().substr(before.size()); }

CudaContext::Libraries libraries(EmulatedDriver& driver) { return {driver.table(), nullptr, Nvtx::of_process()}; }

}  // namespace

TEST_CASE("a profiler gets a range for each op, named as the trace names it, and the streams' names", "[attached]") {
  REQUIRE(Nvtx::of_process() != nullptr);
  const std::string at_first = notes();
  EmulatedDriver driver;
  CudaDevice device(patient(), libraries(driver));
  CHECK(notes_since(at_first) == "stream compute\nstream unshard\nstream reduce\nstream finish\nstream offload\n");
  const std::string before = notes();
  device.trace().start();
  std::string inside;
  Event event;
  device.stream(StreamRole::unshard).enqueue({"all_gather:blocks.3"}, [&](ExecContext&) {
    inside = notes_since(before);
  });
  device.stream(StreamRole::unshard).record(event);
  device.stream(StreamRole::compute).wait(event);
  device.stream(StreamRole::compute).enqueue({"linear"}, [](ExecContext&) {});
  device.synchronize();
  CHECK(inside == "push all_gather:blocks.3\n");  // the work's calls of the driver lie within
  std::string expected;
  for (const TraceEntry& entry : device.trace().entries()) {
    if (entry.kind == TraceEntry::Kind::op) expected += "push " + entry.op.name + "\npop\n";
  }
  CHECK(notes_since(before) == expected);
}

TEST_CASE("a range ends where its work fails, and what is skipped has none", "[attached]") {
  EmulatedDriver driver;
  CudaDevice device(patient(), libraries(driver));
  const std::string before = notes();
  Stream& stream = device.stream(StreamRole::compute);
  stream.enqueue({"bad"}, [](ExecContext&) { throw std::runtime_error("as planned"); });
  stream.enqueue({"skipped"}, [](ExecContext&) {});
  CHECK_THROWS_WITH(device.synchronize(), "as planned");
  CHECK(notes_since(before) == "push bad\npop\n");
}

TEST_CASE("without a tool, or with one that cannot be used, there is none", "[none]") {
  CHECK(Nvtx::of_process() == nullptr);
  EmulatedDriver driver;
  CudaDevice device(patient(), libraries(driver));
  bool has_run = false;
  device.stream(StreamRole::compute).enqueue({"op"}, [&](ExecContext&) { has_run = true; });
  device.synchronize();
  CHECK(has_run);
}

}  // namespace nvtx_test
