#include <algorithm>
#include <vector>

#include "tests/comm/arrays.h"
#include "tests/comm/conformance.h"

namespace zs::test {
namespace {

constexpr std::int64_t kElems = 1000, kRounds = 8;

/// Each rank writes its slice and reads the others', over and over. Every other time what it writes is elsewhere.
void write_and_read(const std::shared_ptr<void>& memory, Communicator& comm, Device& device) {
  Stream& stream = device.stream(StreamRole::unshard);
  const Buffer window{memory.get(), kElems * comm.size(), DType::f32, DeviceKind::cpu},
      slice = window.slice(comm.rank() * kElems, kElems);
  std::vector<float> elsewhere(kElems);
  std::int64_t wrong = 0;
  for (std::int64_t round = 0; round < kRounds; ++round) {
    const Buffer own = round % 2 == 0 ? slice : Buffer{elsewhere.data(), kElems, DType::f32, DeviceKind::cpu};
    stream.enqueue({"write", {}, {own}}, [own, round, rank = comm.rank()](ExecContext&) {
      for (std::int64_t i = 0; i < kElems; ++i) own.as<float>()[i] = whole<float>(rank, i + round);
    });
    comm.publish(stream, "unit", own, window);
    stream.enqueue({"read", {window}, {}}, [window, round, &wrong](ExecContext&) {
      for (std::int64_t i = 0; i < window.elems; ++i)
        wrong += window.as<float>()[i] != whole<float>(static_cast<int>(i / kElems), i % kElems + round);
    });
    comm.barrier(stream, "readers");
  }
  stream.synchronize();
  expect(wrong == 0, "rank {} read {} wrong elements", comm.rank(), wrong);
}

/// Those that are on one host have a window, where the transport has any; a meta world that stands for this one knows
/// it.
void try_group(World& world, Device& device, const std::vector<int>& ranks) {
  const auto hosts = world.hosts();
  const bool is_one_host = std::all_of(ranks.begin(), ranks.end(), [&](int r) {
    return hosts.at(static_cast<std::size_t>(r)) == hosts.at(static_cast<std::size_t>(ranks[0]));
  });
  const bool expected =
      is_one_host && world.transport() != "mpi" && world.transport() != "nccl" && world.transport() != "staged";
  const auto comm = world.group(ranks);
  if (ranks.size() == 1) {  // nobody to share with
    world.agree(0, "");
    return;
  }
  const std::int64_t bytes = kElems * comm->size() * size_of(DType::f32);
  auto memory = comm->shared_window(bytes);
  expect((memory != nullptr) == expected, "transport {} {} a window of {} ranks", world.transport(),
         expected ? "lacks" : "has", ranks.size());
  const auto meta = make_meta_world(world.rank(), world.size(), transport_info_of(world));
  expect((meta->group(ranks)->shared_window(bytes) != nullptr) == expected, "a plan of transport {} {} a window",
         world.transport(), expected ? "lacks" : "has");
  if (memory != nullptr) write_and_read(memory, *comm, device);
  // What goes back is used again.
  const void* const address = memory.get();
  memory.reset();
  world.agree(0, "");
  memory = comm->shared_window(bytes);
  expect(world.transport() == "local" || memory.get() == address, "rank {}: the window did not go back", comm->rank());
}

}  // namespace

void a_window_is_everybodys(World& world, Device& device) {
  const auto hosts = world.hosts();
  std::vector<int> everybody, mates;
  for (int r = 0; r < world.size(); ++r) {
    everybody.push_back(r);
    if (hosts.at(static_cast<std::size_t>(r)) == hosts.at(static_cast<std::size_t>(world.rank()))) mates.push_back(r);
  }
  try_group(world, device, everybody);
  if (mates.size() < everybody.size()) try_group(world, device, mates);
}

}  // namespace zs::test
