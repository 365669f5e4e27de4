// How often the mpi transport looks for data that is slow to come
// (docs/decisions/0043-slow-links-are-polled-less-often.md), seen between it and MPI: run by mpirun with two ranks, the
// second of which sends. Exit 0: as it should be.
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "comm/mpi/mpi_exchange.h"
#include "tests/comm/arrays.h"
#include "tests/comm/conformance.h"
#include "tests/comm/over_mpi.h"

using namespace zs;
using namespace zs::test;
using namespace std::chrono_literals;

namespace {

constexpr auto kWait = 60ms;

std::atomic<bool> is_link_slow = false;
std::atomic<int> looks = 0;

}  // namespace

// MPI's own entry points for who wants to look on.

int MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  if (is_link_slow && count > MpiExchange::kEagerBytes) std::this_thread::sleep_for(kWait);
  return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

int MPI_Testsome(int count, MPI_Request* requests, int* completed, int* indices, MPI_Status* statuses) {
  ++looks;
  return PMPI_Testsome(count, requests, completed, indices, statuses);
}

namespace {

class Sender {
 public:
  explicit Sender(World& world) : world_(world), comm_(world.communicator()), data_(*comm_, kElems) {
    data_.fill([](std::int64_t i) { return static_cast<float>(i % 7); });
  }

  /// What the operation took in looks. With `is_late` the sender begins it late, with `is_slow` its data is.
  int send(std::int64_t elems, bool is_late, bool is_slow) {
    Stream& stream = device_->stream(StreamRole::unshard);
    comm_->barrier(stream, "together");
    stream.synchronize();
    is_link_slow = is_slow;
    looks = 0;
    if (is_late && world_.rank() == 1) std::this_thread::sleep_for(kWait);
    comm_->broadcast(stream, "unit", data_.buffer().slice(0, elems), 1);
    stream.synchronize();
    return looks;
  }

  static constexpr std::int64_t kElems = 512 * 1024;  // of f32, 2 MiB

 private:
  World& world_;
  std::unique_ptr<Device> device_ = Device::create(DeviceKind::cpu, {});
  std::unique_ptr<Communicator> comm_;
  Array<float> data_;
};

void slow_data_is_looked_for_less_often(World& world) {
  Sender sender(world);
  int after_quick = 0, after_slow = 1 << 30, small = 0, after_late = 0;
  for (int attempt = 0; attempt < 3; ++attempt) {  // of a rank that has to wait for a processor looks say little
    sender.send(Sender::kElems, false, false);
    after_quick = std::max(after_quick, sender.send(Sender::kElems, false, true));
    after_slow = std::min(after_slow, sender.send(Sender::kElems, false, true));
    small = std::max(small, sender.send(Sender::kElems / 8, false, true));
    sender.send(Sender::kElems, true, false);
    after_late = std::max(after_late, sender.send(Sender::kElems, false, true));
  }
  if (world.rank() != 0) return;
  expect(after_quick > 3 * after_slow, "{} looks for slow data after quick data, {} after slow data", after_quick,
         after_slow);
  expect(small > 3 * after_slow, "{} looks for a little slow data after slow data, {} for much of it", small,
         after_slow);
  expect(after_late > 3 * after_slow, "{} looks for slow data after quick data that was sent late, {} after slow data",
         after_late, after_slow);
}

}  // namespace

int main() { return run_over_mpi(slow_data_is_looked_for_less_often); }
