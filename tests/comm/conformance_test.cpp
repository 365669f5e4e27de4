#include "tests/comm/conformance.h"

#include <catch2/catch.hpp>

#include "tests/comm/host_cases.h"

namespace conformance_test {

using namespace zs;
using namespace zs::test;

namespace {

void run_case(World& world, const ConformanceCase& one) {
  const auto device = Device::create(DeviceKind::cpu, {});
  one.run(world, *device);
}

/// How many ranks a case is tried with; only `few` under a sanitizer, where all of them take minutes.
std::vector<int> rank_counts([[maybe_unused]] std::vector<int> few) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return few;
#else
  return {1, 2, 3, 4, 5, 8};
#endif
}

}  // namespace

TEST_CASE("the single transport does what every transport does") {
  for (const ConformanceCase& one : operation_cases()) {
    DYNAMIC_SECTION(one.name) {
      const auto world = make_single_world({});
      REQUIRE_NOTHROW(run_case(*world, one));
    }
  }
}

TEST_CASE("the local transport does what every transport does") {
  const int ranks = GENERATE_COPY(from_range(rank_counts({3})));
  for (const ConformanceCase& one : operation_cases()) {
    DYNAMIC_SECTION(ranks << " ranks: " << one.name) {
      REQUIRE_NOTHROW(run_local_world(ranks, {}, [&](World& world) { run_case(world, one); }));
    }
  }
}

TEST_CASE("the local transport moves more than 2^31 bytes", "[.huge]") {
  REQUIRE_NOTHROW(run_local_world(2, {}, [](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {});
    huge_buffers_arrive(world, *device);
  }));
}

TEST_CASE("the local transport does so on private copies too") {
  const int ranks = GENERATE_COPY(from_range(rank_counts({3})));
  WorldOptions options;
  options.race_check_delay_ms = 0.5;
  for (const ConformanceCase& one : operation_cases()) {
    DYNAMIC_SECTION(ranks << " ranks: " << one.name) {
      REQUIRE_NOTHROW(run_local_world(ranks, options, [&](World& world) { run_case(world, one); }));
    }
  }
}

TEST_CASE("the local transport catches ranks that disagree") {
  const int ranks = GENERATE(2, 3, 8);
  for (const ConformanceCase& one : disagreement_cases()) {
    DYNAMIC_SECTION(ranks << " ranks: " << one.name) {
      REQUIRE_NOTHROW(run_local_world(ranks, {}, [&](World& world) { run_case(world, one); }));
    }
  }
}

TEST_CASE("the local transport names a rank that never comes") {
  const int ranks = GENERATE(2, 3);
  const double timeout_s = 1;
  const auto body = [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {});
    expect_lost_peer_is_named(world, *device, timeout_s);
  };
  REQUIRE_NOTHROW(run_local_world(ranks, {timeout_s}, body));
}

}  // namespace conformance_test
