#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "comm/nccl/nccl_library.h"
#include "tests/gpu/emulation/emulated_driver.h"
#include "tests/gpu/emulation/fake_registry.h"

namespace zs::test {

struct FakeClique;

/// NCCL for tests, between emulated GPUs whose ranks are threads. It never blocks: every call may be under way for some
/// looks, and only then is anything on the stream. An operation ends when all ranks of its communicator have come to it
/// with the same; else it never does, as with the real one. What a stream is given while it captures becomes part of
/// the graph, and each replay comes to it again: it ends when all ranks replay it, from the same capture. A
/// communicator that ends waits for graphs that have captured it. Refused are: two ranks on one GPU, a blocking
/// configuration, a communicator that is under way, was aborted or destroyed, a split while operations are under way,
/// and what FakeRegistry refuses. An operation whose buffers are registered on some ranks only never ends. Sums are not
/// in rank order. One at a time.
class FakeNccl {
 public:
  FakeNccl(EmulatedDriver& driver, std::uint64_t seed);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  std::shared_ptr<const NcclLibrary> table() const { return table_; }
  /// The next call of this function ("ncclAllGather") returns `status` and does nothing.
  void fail(const std::string& function, int status);
  /// This rank's communicators of `size` ranks learn of an error that no call has returned.
  void fail_behind(int size, int rank, int status);
  int calls(const std::string& function) const;
  /// Communicators that were aborted while a graph held them, which nobody destroyed for long.
  int held_too_long() const;
  /// Communicators that nobody has destroyed or aborted.
  int live() const;
  /// Read after the ranks have ended.
  const FakeRegistry& registry() const { return registry_; }
  /// Collectives on registered memory so far, and those of them whose ranks have it at different places.
  struct Registered {
    int collectives, displaced;
  };
  Registered registered() const;

 private:
  friend struct FakeNcclFunctions;
  EmulatedDriver& driver_;
  std::mt19937_64 random_;
  FakeRegistry registry_;
  std::shared_ptr<const NcclLibrary> table_;
  FunctionCalls calls_;
  std::map<std::string, std::shared_ptr<FakeClique>> started_;  // by id
  std::vector<std::unique_ptr<ncclComm>> comms_;
  int ids_ = 0, held_too_long_ = 0;
};

}  // namespace zs::test
