#include "tests/gpu/emulation/fake_clique.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "runtime/base/dtype.h"

namespace zs::test {
namespace {

std::size_t size_of_number(int dtype) {
  switch (dtype) {
    case nccl::kU8: return 1;
    case nccl::kBf16: return 2;
    case nccl::kI32:
    case nccl::kF32: return 4;
    default: return 8;
  }
}

template <class T>
T combined(T a, T b, int op) {
  if (op == nccl::kMax) return a > b ? a : b;
  if (op == nccl::kMin) return a < b ? a : b;
  return static_cast<T>(a + b);
}
template <>
BFloat16 combined(BFloat16 a, BFloat16 b, int op) {
  return BFloat16(combined(static_cast<float>(a), static_cast<float>(b), op));
}

template <class T>
void combine(std::byte* into, const std::byte* with, std::size_t count, int op) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, with + i * sizeof(T), sizeof(T));
    a = combined(a, b, op);
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}

void combine(std::vector<std::byte>& into, const std::byte* with, std::size_t count, int dtype, int op) {
  switch (dtype) {
    case nccl::kF32: return combine<float>(into.data(), with, count, op);
    case nccl::kBf16: return combine<BFloat16>(into.data(), with, count, op);
    case nccl::kF64: return combine<double>(into.data(), with, count, op);
    case nccl::kI32: return combine<std::int32_t>(into.data(), with, count, op);
    case nccl::kI64: return combine<std::int64_t>(into.data(), with, count, op);
    default: throw std::logic_error("a sum of bytes");
  }
}

/// Of elements [begin, begin + count) of every rank's, from the rank behind `last` round to `last`.
std::vector<std::byte> reduced(const FakeOperation& meeting, int last, std::size_t begin, std::size_t count) {
  const int ranks = static_cast<int>(meeting.arrived.size());
  const FakeOp& op = meeting.arrived.at(0);
  const std::size_t size = size_of_number(op.dtype);
  const auto part = [&](int r) { return meeting.arrived.at(r).from + begin * size; };
  const std::byte* const first = part((last + 1) % ranks);
  std::vector<std::byte> sum(first, first + count * size);
  for (int step = 2; step <= ranks; ++step) combine(sum, part((last + step) % ranks), count, op.dtype, op.number);
  return sum;
}

/// All read before anything is written: operations in place.
bool run_collective(const FakeOperation& meeting) {
  const FakeOp& op = meeting.arrived.at(0);
  const std::size_t bytes = op.count * size_of_number(op.dtype);
  std::map<int, std::vector<std::byte>> results;
  std::vector<std::byte> all;
  for (const auto& [rank, own] : meeting.arrived) {
    if (!own.goes_with(op)) return false;
    if (op.kind == "all_gather") all.insert(all.end(), own.from, own.from + bytes);
    if (op.kind == "reduce_scatter")
      results[rank] = reduced(meeting, rank, static_cast<std::size_t>(rank) * op.count, op.count);
  }
  if (op.kind == "all_reduce") all = reduced(meeting, 0, 0, op.count);
  if (op.kind == "broadcast") {
    const std::byte* const from = meeting.arrived.at(op.number).from;
    all.assign(from, from + bytes);
  }
  for (const auto& [rank, own] : meeting.arrived) {
    const auto& result = op.kind == "reduce_scatter" ? results[rank] : all;
    if (!result.empty()) std::memcpy(own.to, result.data(), result.size());
  }
  return true;
}

/// Those of a pair go together in their order, if they have the same size.
void match(FakePair& pair) {
  while (!pair.sent.empty() && !pair.received.empty()) {
    const FakeLetter sent = pair.sent.front(), received = pair.received.front();
    const bool go_together = sent.op.count == received.op.count && sent.op.dtype == received.op.dtype &&
                             (sent.op.captured == 0) == (received.op.captured == 0);
    if (!go_together) return;  // both wait for ever
    std::memcpy(received.op.to, sent.op.from, sent.op.count * size_of_number(sent.op.dtype));
    for (const auto& exchange : {sent.exchange, received.exchange}) {
      if (--exchange->open == 0) *exchange->done = true;
    }
    pair.sent.pop_front();
    pair.received.pop_front();
  }
}

}  // namespace

void arrive(FakeClique& clique, int rank, const FakeOp& op, const std::shared_ptr<bool>& done) {
  const std::size_t number = clique.next[static_cast<std::size_t>(rank)]++;
  if (clique.meetings.size() <= number) clique.meetings.resize(number + 1);
  FakeOperation& meeting = clique.meetings[number];
  meeting.arrived[rank] = op;
  meeting.done[rank] = done;
  if (meeting.arrived.size() < clique.members.size() || !run_collective(meeting))
    return;  // if they differ, they wait for ever
  for (const auto& [r, ended] : meeting.done) *ended = true;
  if (op.place() < 0) return;
  ++clique.registered;
  for (const auto& [r, other] : meeting.arrived) {
    if (other.place() != op.place()) {
      ++clique.displaced;
      return;
    }
  }
}

void arrive(FakeClique& clique, int rank, const std::vector<FakeOp>& ops,
            const std::shared_ptr<FakeExchange>& exchange) {
  for (const FakeOp& op : ops) {
    const bool sends = op.kind == "send";
    FakePair& pair = sends ? clique.pairs[{rank, op.number}] : clique.pairs[{op.number, rank}];
    (sends ? pair.sent : pair.received).push_back({op, exchange});
    match(pair);
  }
}

}  // namespace zs::test
