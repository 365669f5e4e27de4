#include "tests/gpu/emulation/grid.h"

#include <ucontext.h>

#include <csetjmp>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace zs::emulation {
namespace {

constexpr std::size_t kStackBytes = 128 << 10;

/// Where a stack goes on.
#if defined(__SANITIZE_ADDRESS__)  // which takes a jump for the end of the frames in between, so that it needs the slower way
using Point = ucontext_t;
void go(Point& from, Point& to) {
  if (swapcontext(&from, &to) != 0) std::terminate();
}
void go_first(Point& from, ucontext_t& to) { go(from, to); }
#else
struct Point {
  std::jmp_buf at;
};
void go(Point& from, Point& to) {
  if (_setjmp(from.at) == 0) _longjmp(to.at, 1);
}
void go_first(Point& from, ucontext_t& to) {
  if (_setjmp(from.at) == 0 && setcontext(&to) != 0) std::terminate();
}
#endif

/// One thread of a block, on a stack of its own.
struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  Point point;  // once it has begun
  ThreadPlace place;
  bool has_begun = false, has_ended = false, waits = false;
};

/// The block that runs on this thread of the host.
class Block {
 public:
  Block(unsigned threads, const std::function<void()>& kernel) : kernel_(kernel), fibers_(threads) {}

  void run(const Dim& at, const Dim& block, const Dim& grid, bool backwards) {
    for (std::size_t i = 0; i < fibers_.size(); ++i) start(fibers_[i], {{static_cast<unsigned>(i), 0, 0}, at, block, grid});
    for (bool has_run = true; has_run;) {
      has_run = false;
      for (std::size_t i = 0; i < fibers_.size(); ++i) {
        Fiber& fiber = fibers_[backwards ? fibers_.size() - 1 - i : i];
        if (fiber.has_ended || fiber.waits) continue;
        resume(fiber);
        has_run = true;
      }
      if (!has_run) has_run = open_barrier();
    }
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void wait() {
    current_->waits = true;
    leave(*current_);
  }
  const ThreadPlace& place() const { return current_->place; }

 private:
  static void start(Fiber& fiber, const ThreadPlace& place) {
    fiber.place = place;
    fiber.has_ended = fiber.waits = false;
  }

  bool open_barrier() {
    bool has_waiting = false;
    for (Fiber& fiber : fibers_) has_waiting = std::exchange(fiber.waits, false) || has_waiting;
    return has_waiting;
  }

  static void enter();
  /// A fiber's whole life: one thread after the other, of one block after the other.
  [[noreturn]] void body() {
    arrived();
    for (;;) {
      try {
        kernel_();
      } catch (...) {
        if (!error_) error_ = std::current_exception();
      }
      current_->has_ended = true;
      leave(*current_);
    }
  }

  void resume(Fiber& fiber) {
    current_ = &fiber;
    going_to(fiber.stack.get(), kStackBytes);
    if (std::exchange(fiber.has_begun, true))
      go(host_, fiber.point);
    else
      begin(fiber);
    came_back();
  }

  void begin(Fiber& fiber) {
    ucontext_t context;
    if (getcontext(&context) != 0) throw std::runtime_error("getcontext");
    context.uc_stack.ss_sp = fiber.stack.get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, &Block::enter, 0);
    go_first(host_, context);
  }

  void leave(Fiber& fiber) {
    going_to(host_stack_, host_stack_bytes_);
    go(fiber.point, host_);
    arrived();
  }

  // AddressSanitizer wants to know on which stack the thread is.
#if defined(__SANITIZE_ADDRESS__)
  static void going_to(const void* stack, std::size_t bytes) { __sanitizer_start_switch_fiber(nullptr, stack, bytes); }
  static void came_back() { __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr); }
  void arrived() { __sanitizer_finish_switch_fiber(nullptr, &host_stack_, &host_stack_bytes_); }
#else
  static void going_to(const void*, std::size_t) {}
  static void came_back() {}
  static void arrived() {}
#endif

  const std::function<void()>& kernel_;
  std::vector<Fiber> fibers_;
  Fiber* current_ = nullptr;
  Point host_;
  std::exception_ptr error_;
  [[maybe_unused]] const void* host_stack_ = nullptr;
  [[maybe_unused]] std::size_t host_stack_bytes_ = 0;
};

thread_local Block* running = nullptr;
thread_local ThreadPlace alone;  // of a thread that meets no other

void Block::enter() { running->body(); }

/// What runs on this thread of the host while it lives.
class Running {
 public:
  explicit Running(Block* block) { running = block; }
  ~Running() { running = nullptr; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

void run_alone(const Dim& grid, const Dim& block, bool backwards, const std::function<void()>& kernel) {
  const std::uint64_t threads = std::uint64_t{grid.x} * block.x;
  for (std::uint64_t i = 0; i < threads; ++i) {
    const std::uint64_t at = backwards ? threads - 1 - i : i;
    alone = {{static_cast<unsigned>(at % block.x), 0, 0}, {static_cast<unsigned>(at / block.x), 0, 0}, block, grid};
    kernel();
  }
}

}  // namespace

const ThreadPlace& place() { return running != nullptr ? running->place() : alone; }

void sync_block() {
  if (running == nullptr) throw std::logic_error("a barrier in a kernel that is said to have none");
  running->wait();
}

void run_grid(const Dim& grid, const Dim& block, bool meets, bool backwards, const std::function<void()>& kernel) {
  if (block.y != 1 || block.z != 1 || grid.y != 1 || grid.z != 1) throw std::logic_error("a grid of more than one dimension");
  if (!meets) return run_alone(grid, block, backwards, kernel);
  Block fibers(block.x, kernel);
  const Running guard(&fibers);
  for (unsigned i = 0; i < grid.x; ++i) fibers.run({backwards ? grid.x - 1 - i : i, 0, 0}, block, grid, backwards);
}

}  // namespace zs::emulation
