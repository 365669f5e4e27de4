#include "comm/nccl_handle.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <latch>
#include <thread>

#include "tests/gpu/emulation/fake_nccl.h"

using namespace zs;
using namespace zs::test;

TEST_CASE("whoever looks after NCCL never waits for a call that is under way") {
  EmulatedDriver driver;
  FakeNccl nccl(driver, 1);
  NcclHandle handle(nccl.table(), "rank 0 of 1", 20);
  std::latch is_calling(1), may_return(1);
  std::atomic<bool> has_looked{false};
  std::thread caller([&] {
    handle.run("ncclAllGather", "all_gather(blocks.3)", [&](ncclComm*) {
      is_calling.count_down();
      may_return.wait();
      return zs::nccl::kSuccess;
    });
  });
  is_calling.wait();
  std::thread looker([&] {
    handle.look();
    has_looked = true;
  });
  for (int i = 0; i < 2000 && !has_looked; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(has_looked);
  may_return.count_down();
  caller.join();
  looker.join();
}
