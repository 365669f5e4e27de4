#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "tests/gpu/emulation/emulated_driver.h"

// The driver's handles: what they point to is its own affair, and here this.
struct CUctx_st {
  int gpu;
};

struct CUevent_st {
  bool has_time;
  std::shared_ptr<bool> latest;   // of the last record: passed?
  std::shared_ptr<double> at_ms;  // and when
  int captured_in = 0;            // the number of the capture in which it was recorded last; 0: in none
  std::set<std::size_t> after{};  // then: the nodes before it
};

struct CUfunc_st {
  const zs::test::EmulatedKernel* kernel;
  unsigned most_shared_bytes = 48 << 10;
};

struct CUmod_st {
  std::map<std::string, CUfunc_st> functions;
};

struct CUstream_st {
  struct Entry {
    std::function<bool()> may_run;  // null: at once
    std::function<void()> run;
  };
  int priority;
  int number;  // in the order of making
  std::deque<Entry> queue;
};

namespace zs::test {

/// Of a stream's entry: once somebody has set it.
inline std::function<bool()> when(std::shared_ptr<bool> passed) {
  return [passed = std::move(passed)] { return *passed; };
}

/// Of an emulated GPU: its end is where a sanitizer sees it.
inline std::shared_ptr<void> plain_memory(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  const auto block = std::make_shared<std::vector<std::byte>>(bytes + kAlignment);
  void* address = block->data();
  std::size_t room = block->size();
  return {block, std::align(kAlignment, bytes, address, room)};
}

/// Closed to the host until it is opened.
inline std::shared_ptr<void> guarded_memory(std::size_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  return {address, [bytes](void* begin) { munmap(begin, bytes); }};
}

}  // namespace zs::test
