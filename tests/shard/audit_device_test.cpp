// The audit itself.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "tests/shard/audit_device.h"

namespace zs::test::audit_device_test {
namespace {

/// What an audit says of one op of the test.
std::string finding_about(
    const std::function<void(Stream&, const Buffer& a, const Buffer& b, const Buffer& c)>& enqueue) {
  AuditDevice device(1 << 20);
  Stream& stream = device.stream(StreamRole::compute);
  std::vector<Memory> memory;
  std::vector<Buffer> buffers;
  for (int i = 0; i < 3; ++i) {
    memory.push_back(device.pool().acquire(256, stream, "x"));
    buffers.push_back(memory.back().buffer(DType::f32, 64));
    stream.enqueue({"fill", {}, {buffers.back()}}, [out = buffers.back(), i](ExecContext&) {
      for (std::int64_t at = 0; at < out.elems; ++at) out.as<float>()[at] = static_cast<float>(at + i + 1);
    });
  }
  enqueue(stream, buffers[0], buffers[1], buffers[2]);
  return fmt::format("{}", fmt::join(device.findings(), "; "));
}

void add(const Buffer& out, const Buffer& a, const Buffer& b) {
  for (std::int64_t i = 0; i < out.elems; ++i) out.as<float>()[i] = a.as<float>()[i] + b.as<float>()[i];
}

}  // namespace

TEST_CASE("a true declaration is not complained about") {
  CHECK(finding_about([](Stream& stream, const Buffer& a, const Buffer& b, const Buffer& c) {
          stream.enqueue({"add", {a, b}, {c}}, [a, b, c](ExecContext&) { add(c, a, b); });
          stream.enqueue({"add_to", {a, c}, {c}}, [a, c](ExecContext&) { add(c, a, c); });
        }) == "");
}

TEST_CASE("each way to declare wrongly is found") {
  const int way = GENERATE(range(0, 6));
  const char* const expected[] = {"'op' reads what it does not declare",
                                  "'op' writes what it does not declare",
                                  "'op' writes what it declares as read only",
                                  "'op' declares as read, and does not read, buffer 1",
                                  "'op' declares as written, and does not write, buffer 1",
                                  "'op' reads, or leaves as it was, a part of what it declares as written only"};
  CAPTURE(way);
  CHECK(finding_about([way](Stream& stream, const Buffer& a, const Buffer& b, const Buffer& c) {
          OpInfo info{"op", {a, b}, {c}};
          if (way == 0) info.reads = {a};
          if (way == 1) info.writes = {c.slice(0, 32)};
          if (way == 2) info = {"op", {a, b, c.slice(0, 32)}, {c.slice(32, 32)}};
          if (way == 4) info = {"op", {a, b}, {c, b}};
          stream.enqueue(info, [a, b, c, way](ExecContext&) {
            const std::int64_t count = way == 5 ? 63 : 64;
            if (way == 3) return add(c, a, a);
            add(c.slice(0, count), a.slice(0, count), b.slice(0, count));
          });
        }).find(expected[way]) != std::string::npos);
}

}  // namespace zs::test::audit_device_test
