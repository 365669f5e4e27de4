// Touching a buffer while an operation uses it is found, whoever does it and however the operation would have ended.
#include <catch2/catch.hpp>

#include <cmath>
#include <thread>

#include "comm/health/watchdog.h"
#include "comm/world.h"
#include "tests/comm/arrays.h"
#include "tests/skip.h"

namespace buffer_race_check_test {

using namespace zs;
using namespace zs::test;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kCountsRaces = true;  // and these are some
#else
constexpr bool kCountsRaces = false;
#endif

/// What comes of an operation during which rank 1 does `meddle` with the buffers.
template <class Enqueue, class Meddle>
std::string outcome(const Enqueue& enqueue, const Meddle& meddle) {
  WorldOptions options{.timeout_s = 30};
  options.race_check_delay_ms = 400;
  std::string message;
  try {
    run_local_world(2, options, [&](World& world) {
      const auto comm = world.communicator();
      const auto device = Device::create(DeviceKind::cpu, {});
      Array<float> full(*comm, 8), shard(*comm, 4);
      for (Array<float>* array : {&full, &shard}) array->fill([](std::int64_t i) { return static_cast<float>(i); });
      Stream& stream = device->stream(StreamRole::unshard);
      enqueue(*comm, stream, shard.buffer(), full.buffer());
      const StatusPage& page = world.watchdog()->page();
      while (page.started == 0) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // its buffers are copied by then; its end is far off
      if (world.rank() == 1) meddle(shard.buffer().as<float>(), full.buffer().as<float>());
      stream.synchronize();
    });
  } catch (const Error& error) {
    message = error.what();
  }
  return message;
}

void gather(Communicator& comm, Stream& stream, Buffer shard, Buffer full) {
  comm.all_gather(stream, "unit", shard, full);
}
void reduce(Communicator& comm, Stream& stream, Buffer shard, Buffer full) {
  comm.reduce_scatter(stream, "unit", full, shard, ReduceInto::overwrite);
}
void reduce_all(Communicator& comm, Stream& stream, Buffer, Buffer full) {
  comm.all_reduce(stream, "unit", full, ReduceOp::sum);
}
void publish(Communicator& comm, Stream& stream, Buffer, Buffer full) {
  comm.publish(stream, "unit", full.slice(comm.rank() * 4, 4), full);
}
void publish_apart(Communicator& comm, Stream& stream, Buffer shard, Buffer full) {
  comm.publish(stream, "unit", shard, full);
}

void gather_in_place(Communicator& comm, Stream& stream, Buffer, Buffer full) {
  comm.all_gather(stream, "unit", full.slice(comm.rank() * 4, 4), full);
}
void reduce_in_place(Communicator& comm, Stream& stream, Buffer, Buffer full) {
  comm.reduce_scatter(stream, "unit", full, full.slice(comm.rank() * 4, 4), ReduceInto::overwrite);
}
/// From rank `root`.
template <int root>
void send(Communicator& comm, Stream& stream, Buffer, Buffer full) {
  comm.broadcast(stream, "unit", full, root);
}
/// The first half of `full` goes to `shard`.
void exchange(Communicator& comm, Stream& stream, Buffer shard, Buffer full) {
  comm.all_to_all(stream, "unit", full.slice(0, 4), shard);
}
void exchange_in_place(Communicator& comm, Stream& stream, Buffer, Buffer full) {
  comm.all_to_all(stream, "unit", full, full);
}
void exchange_parts(Communicator& comm, Stream& stream, Buffer shard, Buffer full) {
  static constexpr std::int64_t kSent[][2] = {{1, 3}, {1, 1}}, kReceived[][2] = {{1, 1}, {3, 1}};
  const auto rank = static_cast<std::size_t>(comm.rank());
  const std::int64_t received = kReceived[rank][0] + kReceived[rank][1], sent = kSent[rank][0] + kSent[rank][1];
  comm.all_to_all_v(stream, "unit", {full.slice(0, sent), kSent[rank]}, {shard.slice(0, received), kReceived[rank]});
}

void reduce_packed(Communicator& comm, Stream& stream, Buffer shard, Buffer full) {
  comm.reduce_scatter(stream, "unit", full, shard, ReduceInto::overwrite, CommDType::int8);
}

}  // namespace

TEST_CASE("an input that is written while an operation uses it is found") {
  if (kCountsRaces) return skip("a race on purpose");
  CHECK_THAT(outcome(gather, [](float* shard, float*) { shard[1] = 9; }),
             Catch::Contains("an input of all_gather(unit) was written while the operation used it, at byte 6"));
  CHECK_THAT(outcome(reduce, [](float*, float* full) { full[7] = 9; }),
             Catch::Contains("an input of reduce_scatter(unit) into f32 was written"));
  CHECK_THAT(outcome(publish, [](float*, float* full) { full[5] = 9; }),
             Catch::Contains("an input of publish(unit) was written"));
}

TEST_CASE("an output that is written while an operation uses it is found") {
  if (kCountsRaces) return skip("a race on purpose");
  CHECK_THAT(outcome(gather, [](float*, float* full) { full[0] = 9; }),
             Catch::Contains("an output of all_gather(unit) was written"));
  CHECK_THAT(outcome(reduce, [](float* shard, float*) { shard[3] = 9; }),
             Catch::Contains("an output of reduce_scatter(unit)"));
  CHECK_THAT(outcome(reduce_all, [](float*, float* full) { full[2] = 9; }),
             Catch::Contains("an output of all_reduce(unit)"));
  CHECK_THAT(outcome(publish_apart, [](float*, float* full) { full[5] = 9; }),
             Catch::Contains("an output of publish(unit) was written"));
}

TEST_CASE("what is done in place is watched as well: this rank's own part as an input, the rest as it is used") {
  if (kCountsRaces) return skip("a race on purpose");
  CHECK_THAT(outcome(gather_in_place, [](float*, float* full) { full[0] = 9; }),
             Catch::Contains("an output of all_gather(unit)"));
  CHECK_THAT(outcome(gather_in_place, [](float*, float* full) { full[5] = 9; }),
             Catch::Contains("an input of all_gather(unit)"));
  CHECK_THAT(outcome(reduce_in_place, [](float*, float* full) { full[0] = 9; }),
             Catch::Contains("an input of reduce_scatter(unit)"));
  CHECK_THAT(outcome(reduce_in_place, [](float*, float* full) { full[5] = 9; }),
             Catch::Contains("an output of reduce_scatter(unit)"));
  CHECK_THAT(outcome(exchange_in_place, [](float*, float* full) { full[1] = 9; }),
             Catch::Contains("an output of all_to_all(unit)"));
  CHECK(outcome(exchange_in_place, [](float*, float*) {}) == "");
  CHECK(outcome(gather_in_place, [](float*, float*) {}) == "");
  CHECK(outcome(reduce_in_place, [](float*, float*) {}) == "");
}

TEST_CASE("what is sent by one rank, or by each to each, is watched as well") {
  if (kCountsRaces) return skip("a race on purpose");
  CHECK_THAT(outcome(send<0>, [](float*, float* full) { full[3] = 9; }),
             Catch::Contains("an output of broadcast(unit) root 0 was written"));
  CHECK_THAT(outcome(send<1>, [](float*, float* full) { full[3] = 9; }),
             Catch::Contains("an input of broadcast(unit) root 1 was written"));
  CHECK_THAT(outcome(exchange, [](float*, float* full) { full[1] = 9; }),
             Catch::Contains("an input of all_to_all(unit) was written"));
  CHECK_THAT(outcome(exchange, [](float* shard, float*) { shard[1] = 9; }),
             Catch::Contains("an output of all_to_all(unit) was written"));
  CHECK_THAT(outcome(exchange_parts, [](float*, float* full) { full[1] = 9; }),
             Catch::Contains("an input of all_to_all_v(unit) was written"));
  CHECK_THAT(outcome(exchange_parts, [](float* shard, float*) { shard[3] = 9; }),
             Catch::Contains("an output of all_to_all_v(unit) was written"));
  CHECK(outcome(send<0>, [](float*, float*) {}) == "");
  CHECK(outcome(exchange, [](float*, float* full) { full[6] = 9; }) == "");  // no part of it
  CHECK(outcome(exchange_parts, [](float*, float* full) { full[6] = 9; }) == "");
}

TEST_CASE("what travels packed is watched as well") {
  if (kCountsRaces) return skip("a race on purpose");
  CHECK_THAT(outcome(reduce_packed, [](float*, float* full) { full[7] = 9; }),
             Catch::Contains("an input of reduce_scatter(unit)"));
  CHECK_THAT(outcome(reduce_packed, [](float* shard, float*) { shard[3] = 9; }),
             Catch::Contains("an output of reduce_scatter(unit)"));
  CHECK(outcome(reduce_packed, [](float*, float*) {}) == "");
}

TEST_CASE("who reads an output too early gets what is not a number") {
  if (kCountsRaces) return skip("a race on purpose");
  float early = 0;
  for (const auto& enqueue : {gather, publish_apart}) {
    CHECK(outcome(enqueue, [&](float*, float* full) { early = full[5]; }) == "");
    CHECK(std::isnan(early));
  }
}

TEST_CASE("who touches nothing is left alone") {
  CHECK(outcome(gather, [](float*, float*) {}) == "");
  CHECK(outcome(reduce, [](float*, float*) {}) == "");
  CHECK(outcome(reduce_all, [](float*, float*) {}) == "");
  CHECK(outcome(publish, [](float*, float* full) { full[1] = 9; }) ==
        "");  // another rank's, which that rank may have written by then
}

}  // namespace buffer_race_check_test
