// The order in which the mpi transport offers and accepts large payloads (comm/mpi/mpi_exchange.h), seen between it and
// MPI: run by mpirun, with two ranks and more. Exit 0: as it should be.
#include <mpi.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "comm/mpi/mpi_exchange.h"
#include "tests/comm/arrays.h"
#include "tests/comm/conformance.h"
#include "tests/comm/over_mpi.h"

using namespace zs;
using namespace zs::test;

namespace {

/// What happened with one peer, by the number of the call that did it; 0: not yet.
struct Peer {
  const MPI_Request* tag = nullptr;  ///< of the receive of its first message, which tells what it is about to do
  int saw_tag = 0, offered = 0, accepted = 0;
};

std::mutex mutex;
std::map<int, Peer> peers;
int calls = 0;
bool is_recording = false;

bool is_large(int bytes) { return bytes > MpiExchange::kEagerBytes; }

void start_recording() {
  const std::lock_guard lock(mutex);
  peers.clear();
  calls = 0;
  is_recording = true;
}

std::map<int, Peer> stop_recording() {
  const std::lock_guard lock(mutex);
  is_recording = false;
  return peers;
}

}  // namespace

// MPI's own entry points for who wants to look on.

int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  {
    const std::lock_guard lock(mutex);
    ++calls;
    if (is_recording && is_large(count) && peers[peer].offered == 0) peers[peer].offered = calls;
  }
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  {
    const std::lock_guard lock(mutex);
    ++calls;
    if (is_recording && is_large(count) && peers[peer].accepted == 0) peers[peer].accepted = calls;
    if (is_recording && count == kFirstMessageBytes) peers[peer].tag = request;
  }
  return PMPI_Irecv(data, count, type, peer, tag, comm, request);
}

int MPI_Testsome(int count, MPI_Request* requests, int* completed, int* indices, MPI_Status* statuses) {
  const int code = PMPI_Testsome(count, requests, completed, indices, statuses);
  const std::lock_guard lock(mutex);
  ++calls;
  for (int i = 0; is_recording && code == MPI_SUCCESS && *completed != MPI_UNDEFINED && i < *completed; ++i) {
    for (auto& [rank, peer] : peers) {
      if (peer.tag == requests + indices[i] && peer.saw_tag == 0) peer.saw_tag = calls;
    }
  }
  return code;
}

namespace {

template <class Operation>
void expect_order(World& world, Stream& stream, std::string_view name, int late, const Operation& operation) {
  if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  start_recording();
  operation();
  stream.synchronize();
  const std::map<int, Peer> seen = stop_recording();
  expect(std::ssize(seen) == world.size() - 1, "{}: {} peers", name, seen.size());
  for (const auto& [rank, peer] : seen) {
    expect(peer.saw_tag > 0 && peer.saw_tag < peer.offered,
           "{}: rank {} was offered data in call {}, its tag came in call {}", name, rank, peer.offered, peer.saw_tag);
    expect(peer.offered < peer.accepted, "{}: rank {} was offered data in call {}, its own was accepted in call {}",
           name, rank, peer.offered, peer.accepted);
  }
}

void large_payloads_are_offered_before_any_is_accepted(World& world) {
  constexpr std::int64_t kElems = 100'000;
  const auto device = Device::create(DeviceKind::cpu, {});
  Stream& stream = device->stream(StreamRole::unshard);
  const auto comm = world.communicator();
  Array<float> full(*comm, kElems * world.size()), other(*comm, kElems * world.size()), shard(*comm, kElems);
  full.fill([&](std::int64_t i) { return static_cast<float>(i % 7); });
  shard.fill([&](std::int64_t i) { return static_cast<float>(i % 5); });
  for (int late = 0; late < world.size(); ++late) {
    expect_order(world, stream, "all_gather", late,
                 [&] { comm->all_gather(stream, "unit", shard.buffer(), full.buffer()); });
    expect_order(world, stream, "reduce_scatter", late,
                 [&] { comm->reduce_scatter(stream, "unit", full.buffer(), shard.buffer(), ReduceInto::overwrite); });
    expect_order(world, stream, "all_to_all", late,
                 [&] { comm->all_to_all(stream, "unit", full.buffer(), other.buffer()); });
  }
}

}  // namespace

int main() { return run_over_mpi(large_payloads_are_offered_before_any_is_accepted); }
