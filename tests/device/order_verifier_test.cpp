#include <catch2/catch.hpp>

#include "runtime/base/random.h"
#include "runtime/device/device.h"

namespace order_verifier_test {

using namespace zs;

namespace {

/// Records programs on the meta device.
struct Program {
  Program() { device->trace().start(); }
  std::unique_ptr<Device> device = Device::create(DeviceKind::meta, {});
  Stream& compute = device->stream(StreamRole::compute);
  Stream& unshard = device->stream(StreamRole::unshard);
  Stream& reduce = device->stream(StreamRole::reduce);
  std::vector<TraceEntry>& entries() { return device->trace().entries(); }
  std::vector<OrderViolation> violations() { return verify_order(entries()); }

  static void op(Stream& stream, std::string name, std::vector<Buffer> reads, std::vector<Buffer> writes) {
    stream.enqueue({std::move(name), std::move(reads), std::move(writes)}, [](ExecContext&) {});
  }
  static void order(Stream& first, Stream& second) {
    Event event;
    first.record(event);
    second.wait(event);
  }
  Buffer buffer(std::int64_t bytes) {
    return {device->allocator().allocate(bytes), bytes, DType::u8, DeviceKind::meta};
  }
};

/// A few sharded steps in small: gather into a pool block, use it, reduce gradients, update the shard. Every wait is
/// needed.
void add_steps(Program& p, int steps, int units) {
  std::vector<Buffer> shards;
  for (int unit = 0; unit < units; ++unit) shards.push_back(p.buffer(256));
  std::vector<Event> updated(static_cast<std::size_t>(units));
  for (int step = 0; step < steps; ++step)
    for (int unit = 0; unit < units; ++unit) {
      p.unshard.wait(updated[unit]);
      Memory full = p.device->pool().acquire(1024, p.unshard, "full");
      const Buffer whole = full.buffer(DType::u8, 1024), grad = p.buffer(512);
      Program::op(p.unshard, "gather", {shards[unit]}, {whole});
      Program::order(p.unshard, p.compute);
      for (int view = 0; view < 4; ++view)
        Program::op(p.compute, "use", {whole.slice(256 * view, 256)}, {grad.slice(128 * view, 128)});
      full.release(p.compute);
      Program::order(p.compute, p.reduce);
      Program::op(p.reduce, "reduce", {grad}, {grad.slice(0, 128)});
      Program::op(p.reduce, "update", {grad.slice(0, 128)}, {shards[unit]});
      p.reduce.record(updated[unit]);
    }
}

}  // namespace

TEST_CASE("work on one stream is in order") {
  Program p;
  const Buffer x = p.buffer(64);
  Program::op(p.compute, "write", {}, {x});
  Program::op(p.compute, "read", {x}, {x});
  CHECK(p.violations().empty());
}

TEST_CASE("a write and a read on two streams without an event are reported, with both names and the bytes") {
  Program p;
  const Buffer x = p.buffer(256);
  Program::op(p.unshard, "gather", {}, {x});
  Program::op(p.compute, "matmul", {x.slice(192, 64), x.slice(64, 32)}, {});
  const auto found = p.violations();
  REQUIRE(found.size() == 1);
  CHECK(found[0].first == 0);
  CHECK(found[0].second == 1);
  CHECK_THAT(found[0].message, Catch::Contains("'gather' (entry 0, stream 'unshard')"));
  CHECK_THAT(found[0].message, Catch::Contains("'matmul' (entry 1, stream 'compute')"));
  CHECK_THAT(found[0].message, Catch::Contains(fmt::format("at {:#x}", reinterpret_cast<std::uintptr_t>(x.data) + 64)));
}

TEST_CASE("every kind of conflict is reported, and two reads are none") {
  const auto [first_writes, second_writes] =
      GENERATE(table<bool, bool>({{true, true}, {true, false}, {false, true}, {false, false}}));
  Program p;
  const std::vector<Buffer> x{p.buffer(64)}, none;
  Program::op(p.unshard, "first", first_writes ? none : x, first_writes ? x : none);
  Program::op(p.compute, "second", second_writes ? none : x, second_writes ? x : none);
  CHECK(p.violations().size() == (first_writes || second_writes ? 1 : 0));
}

TEST_CASE("an event orders what was enqueued before its record, and nothing after") {
  Program p;
  const Buffer x = p.buffer(64), y = p.buffer(64);
  Event event;
  Program::op(p.unshard, "before", {}, {x});
  p.unshard.record(event);
  Program::op(p.unshard, "after", {}, {y});
  p.compute.wait(event);
  Program::op(p.compute, "reads x", {x}, {});
  CHECK(p.violations().empty());
  Program::op(p.compute, "reads y", {y}, {});
  CHECK(p.violations().size() == 1);
}

TEST_CASE("order is transitive over streams") {
  Program p;
  const Buffer x = p.buffer(64);
  Program::op(p.unshard, "write", {}, {x});
  Program::order(p.unshard, p.compute);
  Program::order(p.compute, p.reduce);
  Program::op(p.reduce, "read", {x}, {});
  CHECK(p.violations().empty());
}

TEST_CASE("an event waited for after being recorded again orders the second point") {
  Program p;
  const Buffer x = p.buffer(64);
  Event event;
  p.unshard.record(event);
  Program::op(p.unshard, "write", {}, {x});
  const bool is_recorded_again = GENERATE(true, false);
  if (is_recorded_again) p.unshard.record(event);
  p.compute.wait(event);
  Program::op(p.compute, "read", {x}, {});
  CHECK(p.violations().empty() == is_recorded_again);
}

TEST_CASE("the host's synchronize orders all later work, on every stream") {
  Program p;
  const Buffer x = p.buffer(64);
  Program::op(p.unshard, "write", {}, {x});
  p.unshard.synchronize();
  Program::op(p.compute, "read", {x}, {});
  CHECK(p.violations().empty());
  Program::op(p.reduce, "late write", {}, {x});  // not ordered after compute's read, but after unshard's write
  const auto found = p.violations();
  REQUIRE(found.size() == 1);
  CHECK(found[0].first == 2);
}

TEST_CASE("a wait for a record from before the trace orders nothing inside it") {
  Program p;
  p.device->trace().stop();
  Event event;
  p.unshard.record(event);
  p.device->trace().start();
  const Buffer x = p.buffer(64);
  Program::op(p.unshard, "write", {}, {x});
  p.compute.wait(event);
  Program::op(p.compute, "read", {x}, {});
  CHECK(p.violations().size() == 1);
}

TEST_CASE("ranges that only touch do not conflict, and overlapping ones do by a single byte") {
  Program p;
  const Buffer x = p.buffer(256);
  Program::op(p.unshard, "low", {}, {x.slice(0, 100)});
  Program::op(p.compute, "high", {}, {x.slice(100, 100)});
  CHECK(p.violations().empty());
  Program::op(p.reduce, "one byte of each", {x.slice(99, 2)}, {});
  const auto found = p.violations();
  REQUIRE(found.size() == 2);
  CHECK_THAT(found[0].message, Catch::Contains("both use 1 bytes"));
}

TEST_CASE("the message gives the bytes that both use") {
  Program p;
  const Buffer x = p.buffer(256);
  Program::op(p.unshard, "write", {}, {x});
  Program::op(p.compute, "read", {x.slice(16, 100)}, {});
  Program::op(p.reduce, "read the start", {x.slice(0, 10)}, {});
  const auto found = p.violations();
  REQUIRE(found.size() == 2);
  const auto at = reinterpret_cast<std::uintptr_t>(x.data);
  CHECK_THAT(found[0].message, Catch::Contains(fmt::format("both use 100 bytes at {:#x}", at + 16)));
  CHECK_THAT(found[1].message, Catch::Contains(fmt::format("both use 10 bytes at {:#x}", at)));
}

TEST_CASE("all unordered pairs are reported, each once") {
  Program p;
  const Buffer x = p.buffer(256);
  for (int i = 0; i < 3; ++i) Program::op(p.unshard, "write", {}, {x, x.slice(0, 10)});
  for (int i = 0; i < 2; ++i) Program::op(p.compute, "read", {x.slice(8, 4), x}, {});
  CHECK(p.violations().size() == 6);
}

TEST_CASE("memory that streams hand over through the pool is in order, and not when the wait is missing") {
  Program p;
  for (Stream* stream : {&p.unshard, &p.compute}) {
    Memory block = p.device->pool().acquire(64, *stream, "block");
    Program::op(*stream, "use", {}, {block.buffer(DType::u8, 64)});
  }
  REQUIRE(p.violations().empty());
  std::erase_if(p.entries(), [](const TraceEntry& entry) { return entry.kind == TraceEntry::Kind::wait; });
  CHECK(p.violations().size() == 4);  // a use and a release of each
}

TEST_CASE("a block belongs to its user until it is released, used to the end or not") {
  Program p;
  Memory block = p.device->pool().acquire(64, p.unshard, "full_param");
  const Buffer x = block.buffer(DType::u8, 64), y = p.buffer(64), z = p.buffer(64);
  Program::op(p.unshard, "gather", {}, {x});
  Program::order(p.unshard, p.compute);
  Program::op(p.compute, "last use", {x}, {});
  Program::order(p.compute, p.unshard);
  Program::op(p.unshard, "elsewhere", {}, {z});
  Program::op(p.compute, "something else", {y}, {});
  block.release(p.compute);
  const Memory again = p.device->pool().acquire(64, p.unshard, "full_param");
  Program::op(p.unshard, "gather again", {}, {x});
  CHECK(p.violations().empty());
  const auto last_wait = std::find_if(p.entries().rbegin(), p.entries().rend(),
                                      [](const auto& e) { return e.kind == TraceEntry::Kind::wait; });
  p.entries().erase(std::next(last_wait).base());
  const auto found = p.violations();
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0].message,
             Catch::Contains(
                 "no event orders the release of 'full_param' (entry 10, stream 'compute') before 'gather again'"));
}

TEST_CASE("a use of a block that was given back is reported, on its last user's stream too") {
  Program p;
  const MemoryOwner owner(p.device->memory(), "blocks.1");
  Memory block = p.device->pool().acquire(256, p.compute, "full_param");
  const Buffer x = block.buffer(DType::u8, 256);
  Program::op(p.compute, "use", {x}, {});
  block.reset();
  Program::op(p.compute, "late use", {x.slice(128, 64)}, {});
  const auto found = p.violations();
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0].message,
             Catch::Contains("'late use' (entry 4, stream 'compute') uses 64 bytes of 'full_param' of blocks.1 at 0x"));
  CHECK_THAT(found[0].message, Catch::Contains("after the release of 'full_param' (entry 3, stream 'compute')"));
  const Memory again = p.device->pool().acquire(256, p.compute, "full_param");
  Program::op(p.compute, "use", {x}, {});
  CHECK(p.violations().size() == 1);
}

TEST_CASE("a block given back as of an earlier event is its user's until that event only") {
  Program p;
  Memory block = p.device->pool().acquire(64, p.reduce, "full_grad");
  const Buffer x = block.buffer(DType::u8, 64), y = p.buffer(64);
  Program::op(p.reduce, "reduce", {x}, {});
  Event reduced;
  p.reduce.record(reduced);
  Program::op(p.reduce, "another", {y}, {});
  block.release(p.reduce, reduced);
  const Memory again = p.device->pool().acquire(64, p.compute, "full_grad");
  Program::op(p.compute, "fill", {}, {x});
  CHECK(p.violations().empty());
}

TEST_CASE("each deleted wait of a sharded step is reported") {
  Program p;
  add_steps(p, 2, 3);
  REQUIRE(p.violations().empty());
  std::size_t waits = 0;
  for (std::size_t i = 0; i < p.entries().size(); ++i) {
    if (p.entries()[i].kind != TraceEntry::Kind::wait) continue;
    ++waits;
    std::vector<TraceEntry> without = p.entries();
    without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
    INFO("the wait at entry " << i);
    CHECK_FALSE(verify_order(without).empty());
  }
  CHECK(waits == 2 * 6 + 5 + 3);  // gather -> use, use -> reduce, block -> gather, update -> gather
}

TEST_CASE("the verdict equals that of comparing every pair, on random programs") {
  const std::uint64_t seed = GENERATE(range(0, 60));
  const CounterRng rng(seed);
  std::uint64_t draws = 0;
  const auto draw = [&](std::uint64_t bound) { return static_cast<std::int64_t>(rng.bits(draws++) % bound); };
  Program p;
  const Buffer memory = p.buffer(64);
  std::vector<Event> events(4);
  for (int i = 0; i < 80; ++i) {
    Stream& stream = p.device->stream(static_cast<StreamRole>(draw(kStreamRoles)));
    const std::int64_t what = draw(10), begin = draw(60);
    const Buffer range = memory.slice(begin, 1 + draw(4));
    if (what < 3)
      stream.record(events[draw(4)]);
    else if (what < 6)
      stream.wait(events[draw(4)]);
    else if (what < 7 && draw(4) == 0)
      stream.synchronize();
    else if (what < 9)
      Program::op(stream, "read", {range}, {});
    else
      Program::op(stream, "write", {}, {range});
  }
  // happens[j][i]: entry i is before entry j, by reachability over program order, events and the host's waits.
  const auto& entries = p.entries();
  const std::size_t n = entries.size();
  std::vector<std::vector<bool>> happens(n, std::vector<bool>(n));
  const auto after = [&](std::size_t j, std::size_t i) {
    happens[j][i] = true;
    for (std::size_t k = 0; k < i; ++k)
      if (happens[i][k]) happens[j][k] = true;
  };
  for (std::size_t j = 0; j < n; ++j)
    for (std::size_t i = 0; i < j; ++i) {
      const bool is_same_stream = entries[i].stream == entries[j].stream;
      const bool is_event = entries[i].kind == TraceEntry::Kind::record && entries[j].kind == TraceEntry::Kind::wait &&
                            entries[i].record_id == entries[j].record_id;
      if (is_same_stream || is_event || entries[i].kind == TraceEntry::Kind::sync) after(j, i);
    }
  std::vector<std::pair<std::size_t, std::size_t>> expected, found;
  const auto overlap = [](const std::vector<Buffer>& a, const std::vector<Buffer>& b) {
    return !a.empty() && !b.empty() &&
           static_cast<std::byte*>(a[0].data) < static_cast<std::byte*>(b[0].data) + b[0].bytes() &&
           static_cast<std::byte*>(b[0].data) < static_cast<std::byte*>(a[0].data) + a[0].bytes();
  };
  for (std::size_t j = 0; j < n; ++j)
    for (std::size_t i = 0; i < j; ++i) {
      const OpInfo &a = entries[i].op, &b = entries[j].op;
      const bool conflict = overlap(a.writes, b.writes) || overlap(a.writes, b.reads) || overlap(a.reads, b.writes);
      if (conflict && !happens[j][i]) expected.emplace_back(i, j);
    }
  for (const OrderViolation& violation : p.violations()) found.emplace_back(violation.first, violation.second);
  std::sort(found.begin(), found.end(),
            [](auto a, auto b) { return std::pair(a.second, a.first) < std::pair(b.second, b.first); });
  CHECK(found == expected);
}

TEST_CASE("what has arrived with an op is written as of then, and not before what was read is done with") {
  Program p;
  const Buffer x = p.buffer(64);
  const bool is_awaited = GENERATE(true, false), are_readers = GENERATE(true, false);
  Program::op(p.compute, "earlier", {x}, {});
  if (are_readers) Program::order(p.compute, p.unshard);
  p.unshard.enqueue({.name = "publish", .arrivals = {x}}, [](ExecContext&) {});
  if (is_awaited) Program::order(p.unshard, p.compute);
  Program::op(p.compute, "later", {x}, {});
  CHECK(p.violations().size() == std::size_t{!is_awaited} + std::size_t{!are_readers});
}

TEST_CASE("a trace of 20,000 entries is verified in the time of a test") {
  Program p;
  add_steps(p, 50, 32);
  CHECK(p.entries().size() > 20000);
  CHECK(p.violations().empty());
}

TEST_CASE("cpu and meta record the same trace of one program") {
  const auto trace_of = [](DeviceKind kind) {
    auto device = Device::create(kind, {});
    device->trace().start();
    Stream &a = device->stream(StreamRole::unshard), &b = device->stream(StreamRole::compute);
    Event event;
    Memory block = device->pool().acquire(64, a, "block");
    a.enqueue({"write", {}, {block.buffer(DType::u8, 64)}}, [](ExecContext&) {});
    a.record(event);
    b.wait(event);
    b.wait(event);
    a.wait(event);
    block.release(b);
    b.synchronize();
    a.wait(event);
    std::string text;
    for (const TraceEntry& e : device->trace().entries())
      text += fmt::format("{} {} {} {};", int(e.kind), name_of(e.stream), e.op.name, e.record_id);
    device->synchronize();
    return text;
  };
  CHECK(trace_of(DeviceKind::cpu) == trace_of(DeviceKind::meta));
}

}  // namespace order_verifier_test
