#include "comm/nccl/nccl_handle.h"

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <latch>
#include <thread>

#include "tests/gpu/emulation/fake_nccl.h"

namespace nccl_handle_test {

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

namespace {

/// An NCCL whose split never ends, and which still looks at the split's target when the communicator is aborted.
struct SlowSplit {
  ncclComm** target = nullptr;
  ncclComm* found = nullptr;
  NcclLibrary::Config config;
  std::latch may_look{1};

  static inline SlowSplit* only = nullptr;
  static ncclComm* comm(std::uintptr_t which) { return reinterpret_cast<ncclComm*>(which); }
  static std::shared_ptr<const NcclLibrary> table() {
    auto made = std::make_shared<NcclLibrary>();
    made->error_text = [](int) { return "no words"; };
    made->last_error = [](ncclComm*) { return ""; };
    made->init = [](ncclComm** comm, int, NcclLibrary::Id, int, NcclLibrary::Config* config) {
      only->config = *config;
      *comm = SlowSplit::comm(1);
      return zs::nccl::kSuccess;
    };
    made->async_error = [](ncclComm*, int* status) {
      *status = zs::nccl::kInProgress;
      return zs::nccl::kSuccess;
    };
    made->split = [](ncclComm*, int, int, ncclComm** made_by_split, NcclLibrary::Config*) {
      only->target = made_by_split;
      *made_by_split = SlowSplit::comm(2);
      return zs::nccl::kInProgress;
    };
    made->abort = [](ncclComm*) {
      only->may_look.wait();
      only->found = *only->target;
      return zs::nccl::kSuccess;
    };
    return made;
  }
};

/// Leaves something else where the frames of earlier calls were.
__attribute__((noinline)) int overwrite_the_stack() {
  std::array<volatile unsigned char, 1 << 16> frame;
  for (auto& byte : frame) byte = 0x5a;
  return frame[frame.size() / 2];
}

}  // namespace

TEST_CASE(
    "a split that was given up has a place to write to for as long as NCCL may, and communicators leave processors to "
    "products") {
  SlowSplit nccl;
  SlowSplit::only = &nccl;
  {
    NcclHandle handle(SlowSplit::table(), "rank 0 of 2", 0.05), part(SlowSplit::table(), "rank 0 of 1", 0.05);
    handle.init(2, {}, 0);
    CHECK(nccl.config.blocking == 0);
    CHECK(nccl.config.max_ctas == 16);
    handle.note_captured();  // from then on a thread of its own aborts it, and nothing waits for that thread
    CHECK_THROWS_WITH(handle.split_into(part, 0, 0),
                      Catch::StartsWith("split waited 0.05 s for NCCL in ncclCommSplit"));
    CHECK(overwrite_the_stack() == 0x5a);
    nccl.may_look.count_down();
  }
  CHECK(nccl.found == SlowSplit::comm(2));
}

}  // namespace nccl_handle_test
