#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/gpu/emulation/emulated_driver.h"

struct ncclComm;

namespace zs::test {

/// Memory of the NCCL for tests, and what of it is registered with which communicator. Refused, and remembered as a
/// mistake, are: memory that is not NCCL's, or more than there is; what is not registered, or not any more, taken back;
/// memory given back while it is registered; a communicator that is destroyed with something registered. Not for
/// several threads at a time.
class FakeRegistry {
 public:
  explicit FakeRegistry(EmulatedDriver& driver) : driver_(driver) {}

  int allocate(void** address, std::size_t bytes);
  int give_back(void* address);
  int enroll(const ncclComm* comm, void* address, std::size_t bytes, void** handle);
  int discharge(const ncclComm* comm, void* handle);
  /// The communicator has ended; one that is aborted lets go of what it has.
  int end(const ncclComm* comm, bool is_aborted);
  /// Where in the memory that is registered with it; -1: nowhere.
  std::int64_t place_of(const ncclComm* comm, const void* address) const;

  const std::vector<std::string>& mistakes() const { return mistakes_; }
  /// That are registered now.
  std::size_t blocks() const { return registered_.size(); }

 private:
  struct Registered {
    const ncclComm* comm;
    const std::byte* begin;
    std::size_t bytes;
  };
  int mistake(const std::string& what);
  EmulatedDriver& driver_;
  std::map<const std::byte*, std::size_t> memory_;
  std::map<std::uintptr_t, Registered> registered_;  // by handle
  std::uintptr_t handles_ = 0;
  std::vector<std::string> mistakes_;
};

}  // namespace zs::test
