#include <algorithm>
#include <numeric>
#include <vector>

#include "comm/host/host_map.h"
#include "tests/comm/arrays.h"
#include "tests/comm/host_cases.h"

namespace zs::test {
namespace {

using Counts = std::vector<std::int64_t>;
/// How many elements rank `from` of `size` sends to rank `to`.
using Pattern = std::int64_t (*)(int from, int to, int size);

constexpr Pattern kPatterns[] = {
    [](int, int, int) { return std::int64_t{0}; },
    [](int, int, int) { return std::int64_t{5}; },
    [](int from, int to, int) { return std::int64_t{(from * 31 + to * 17) % 7}; },  // odd ones, zeros between
    [](int from, int to, int) {
      return (from + to) % 3 == 0 ? std::int64_t{0} : std::int64_t{700 * from + to};
    },  // more than a message
    [](int from, int to, int size) {
      return from == size - 1 ? std::int64_t{100'003 / (to + 1)} : std::int64_t{0};
    },                                                                                                 // one sends all
    [](int from, int to, int) { return to == 0 ? std::int64_t{40'001 + from} : std::int64_t{from}; },  // one gets most
};

template <class T>
void exchange_of(Communicator& comm, Stream& stream, Pattern pattern) {
  const int rank = comm.rank(), size = comm.size();
  Counts sent, expected;
  for (int r = 0; r < size; ++r) {
    sent.push_back(pattern(rank, r, size));
    expected.push_back(pattern(r, rank, size));
  }
  const auto sum = [](const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); };
  Array<T> in(comm, sum(sent)), out(comm, sum(expected));
  in.fill([&](std::int64_t i) { return whole<T>(rank, i); });
  const std::int64_t before = comm.traffic().sent_bytes();
  comm.all_to_all_v(stream, "unit", {in.buffer(), sent}, {out.buffer(), expected});
  const std::int64_t counted = comm.traffic().sent_bytes() - before;
  stream.synchronize();
  std::vector<T> wanted;
  for (int from = 0; from < size; ++from) {
    std::int64_t begin = 0;  // of this rank's part in what `from` sends
    for (int r = 0; r < rank; ++r) begin += pattern(from, r, size);
    for (std::int64_t i = 0; i < expected[static_cast<std::size_t>(from)]; ++i)
      wanted.push_back(whole<T>(from, begin + i));
  }
  out.expect_is("all_to_all_v", rank, [&](std::int64_t i) { return wanted[static_cast<std::size_t>(i)]; });
  in.expect_is("all_to_all_v's input", rank, [&](std::int64_t i) { return whole<T>(rank, i); });
  Array<T> both(comm, std::max(sum(sent), sum(expected)));
  both.fill([&](std::int64_t i) { return whole<T>(rank, i); });
  comm.all_to_all_v(stream, "unit", {both.buffer().slice(0, sum(sent)), sent},
                    {both.buffer().slice(0, sum(expected)), expected});
  stream.synchronize();
  both.expect_is("all_to_all_v in place", rank, [&](std::int64_t i) {
    return i < sum(expected) ? wanted[static_cast<std::size_t>(i)] : whole<T>(rank, i);
  });
  const std::int64_t others = (sum(sent) - sent[static_cast<std::size_t>(rank)]) * static_cast<std::int64_t>(sizeof(T));
  expect(counted == others, "{} bytes were counted, {} are for others", counted, others);
}

}  // namespace

void parts_of_any_size_arrive(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  for (const Pattern pattern : kPatterns) {
    of_every_dtype([&]<class T>(T) { exchange_of<T>(*comm, stream, pattern); });
  }
}

/// The last rank expects an element more of the first than that sends. Every rank gets to know, and none gets data.
void parts_that_differ_are_caught(World& world, Device& device) {
  const auto comm = world.communicator();
  Stream& stream = device.stream(StreamRole::compute);
  const int last = comm->size() - 1;
  const std::int64_t n = 20'000;
  Counts sent(static_cast<std::size_t>(comm->size()), n), expected = sent;
  if (comm->rank() == last) ++expected[0];
  Array<float> in(*comm, n * comm->size()),
      out(*comm, std::accumulate(expected.begin(), expected.end(), std::int64_t{0}));
  in.fill([](std::int64_t) { return 1.0f; });
  out.fill([](std::int64_t) { return 2.0f; });
  comm->all_to_all_v(stream, "unit", {in.buffer(), sent}, {out.buffer(), expected});
  std::string message = "nothing was thrown";
  try {
    stream.synchronize();
  } catch (const Error& error) {
    message = error.code() == ExitCode::ranks_disagree ? error.what() : fmt::format("wrong code: {}", error.what());
  }
  const std::string wanted =
      fmt::format("rank 0 sends 20000 elements to rank {} in all_to_all_v(unit), which expects 20001", last);
  expect(message.find(wanted) != message.npos, "rank {}: \"{}\" is not \"{}\"", comm->rank(), message, wanted);
  out.expect_is("what ranks that disagree get", comm->rank(), [](std::int64_t) { return 2.0f; });
  world.agree(0, "");  // nobody frees its buffer before all have looked at theirs
}

}  // namespace zs::test
