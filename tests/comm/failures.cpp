#include <chrono>
#include <thread>

#include "tests/comm/arrays.h"
#include "tests/comm/conformance.h"
#include "tests/comm/host_cases.h"

namespace zs::test {
namespace {

/// `enqueue` is an operation on which the last rank and the others do not agree.
void expect_disagreement(World& world, Device& device, void (*enqueue)(Communicator&, Stream&, bool odd_one, Buffer),
                         const char* common, const char* odd) {
  Stream& stream = device.stream(StreamRole::unshard);
  const auto comm = world.communicator();
  Array<float> data(*comm, 100'000);
  data.fill([](std::int64_t) { return 1.0f; });
  enqueue(*comm, stream, comm->rank() == comm->size() - 1, data.buffer());
  std::string message = "nothing was thrown";
  ExitCode code = ExitCode::ok;
  try {
    stream.synchronize();
  } catch (const Error& error) {
    message = error.what();
    code = error.code();
  }
  expect(code == ExitCode::ranks_disagree, "rank {}: {}", comm->rank(), message);
  expect(message.find(common) != message.npos && message.find(odd) != message.npos,
         "rank {}: \"{}\" does not name {} and {}", comm->rank(), message, common, odd);
  data.expect_is("data of ranks that disagree", comm->rank(), [](std::int64_t) { return 1.0f; });
  world.agree(0, "");  // nobody frees its buffer before all have looked at theirs
}

void a_different_unit_is_caught(World& world, Device& device) {
  expect_disagreement(
      world, device,
      [](Communicator& comm, Stream& stream, bool odd, Buffer data) {
        comm.all_reduce(stream, odd ? "blocks.4" : "blocks.3", data, ReduceOp::sum);
      },
      "all_reduce(blocks.3)", fmt::format("rank {} all_reduce(blocks.4)", world.size() - 1).c_str());
}

void a_different_count_is_caught(World& world, Device& device) {
  expect_disagreement(
      world, device,
      [](Communicator& comm, Stream& stream, bool odd, Buffer data) {
        comm.all_reduce(stream, "unit", data.slice(0, odd ? 10 : 90'000), ReduceOp::sum);
      },
      "n=90000", "n=10");
}

void a_different_operation_is_caught(World& world, Device& device) {
  expect_disagreement(
      world, device,
      [](Communicator& comm, Stream& stream, bool odd, Buffer data) {
        odd ? comm.barrier(stream, "unit") : comm.broadcast(stream, "unit", data, 0);
      },
      "broadcast(unit) root 0", "barrier(unit)");
}

void a_different_root_is_caught(World& world, Device& device) {
  expect_disagreement(
      world, device,
      [](Communicator& comm, Stream& stream, bool odd, Buffer data) {
        comm.broadcast(stream, "unit", data, odd ? 1 : 0);
      },
      "broadcast(unit) root 0", "broadcast(unit) root 1");
}

void long_unit_names_keep_their_ends(World& world, Device& device) {
  expect_disagreement(
      world, device,
      [](Communicator& comm, Stream& stream, bool odd, Buffer data) {
        comm.all_reduce(stream, std::string(100, 'm') + (odd ? ".9" : ".8"), data, ReduceOp::sum);
      },
      "mm.8)", "mm.9)");
}

void a_different_window_is_caught(World& world, Device&) {
  const auto comm = world.communicator();
  const int last = comm->size() - 1;
  std::string message = "nothing was thrown";
  try {
    const auto window = comm->shared_window(comm->rank() == last ? 128 : 64);
    if (window == nullptr) return;  // this transport has none
  } catch (const Error& error) {
    message = error.what();
  }
  const std::string wanted = fmt::format("rank 0 shares a window of 64 bytes, rank {} one of 128", last);
  expect(message.find(wanted) != message.npos || message.find("because another rank failed") != message.npos,
         "rank {}: \"{}\"", comm->rank(), message);
  const World::Agreement seen = world.agree(message.find(wanted) != message.npos ? 1 : 0, "");
  expect(seen.code == 1, "rank {}: nobody named both ranks", comm->rank());
}

}  // namespace

std::span<const ConformanceCase> disagreement_cases() {
  static constexpr ConformanceCase kCases[] = {
      {"a different unit is caught", a_different_unit_is_caught},
      {"a different count is caught", a_different_count_is_caught},
      {"a different operation is caught", a_different_operation_is_caught},
      {"a different root is caught", a_different_root_is_caught},
      {"a different window is caught", a_different_window_is_caught},
      {"long unit names keep their ends", long_unit_names_keep_their_ends},
      {"parts that differ are caught", parts_that_differ_are_caught},
  };
  return kCases;
}

void expect_lost_peer_is_named(World& world, Device& device, double timeout_s) {
  const auto comm = world.communicator();
  const int last = world.size() - 1;
  if (world.rank() == last) {
    std::this_thread::sleep_for(std::chrono::duration<double>(timeout_s));
  } else {
    Stream& stream = device.stream(StreamRole::reduce);
    comm->barrier(stream, "blocks.3");
    std::string message = "nothing was thrown";
    try {
      stream.synchronize();
    } catch (const Error& error) {
      message = error.code() == ExitCode::peer_lost ? error.what() : fmt::format("wrong code: {}", error.what());
    }
    expect(message.find("barrier(blocks.3)") != message.npos &&
               message.find(fmt::format("for rank {} (", last)) != message.npos,
           "rank {}: {}", world.rank(), message);
  }
  world.agree(0, "");
}

}  // namespace zs::test
