#include "tests/gpu/emulation/grid.h"

#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace zs::emulation {
namespace {

constexpr std::size_t kStackBytes = 128 << 10, kLanes = 32;
constexpr std::align_val_t kSharedAlign{128};

/// Where a stack goes on.
#if defined(__SANITIZE_ADDRESS__)  // which takes a jump for the end of the frames in between, so that it needs the
                                   // slower way
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

enum class Wait { none, warp, block };

/// Stacks of fibers that have ended, for the next: 256 new ones would be most of what a launch takes.
class Stacks {
 public:
  std::unique_ptr<char[]> take() {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) return std::unique_ptr<char[]>(new char[kStackBytes]);
    std::unique_ptr<char[]> stack = std::move(spare_.back());
    spare_.pop_back();
    return stack;
  }
  void give_back(std::unique_ptr<char[]> stack) {
    const std::lock_guard lock(mutex_);
    spare_.push_back(std::move(stack));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> spare_;
};

Stacks& stacks() {
  static Stacks all;
  return all;
}

/// One thread of a block, on a stack of its own.
struct Fiber {
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
    if (has_ended) stacks().give_back(std::move(stack));  // else frames are left on it
  }

  std::unique_ptr<char[]> stack = stacks().take();
  Point point;  // once it has begun
  ThreadPlace place;
  bool has_begun = false, has_ended = false;
  Wait waits = Wait::none;
  int meetings = 0, barriers = 0, warp_barriers = 0, waits_for_copies = 0;
  std::vector<Copy> copies;
};

/// A warp's last meeting and the one before it: a lane may come to the next one before another has looked at this one.
struct Meetings {
  Brought brought[2];
  const char* operation[2][kLanes];
};

thread_local Mistake mistake;
thread_local int mistakes = 0;

/// Whether the thread's n-th barrier, or whatever is counted, is to be left out.
bool is_left_out(int n, int mistaken) {
  if (n != mistaken) return false;
  ++mistakes;
  return true;
}

/// 0xff..: NaN in every format.
void poison(std::byte* at, std::size_t bytes) { std::memset(at, 0xff, bytes); }

/// The block that runs on this thread of the host.
class Block {
 public:
  Block(const Launch& launch, const std::function<void()>& kernel)
      : kernel_(kernel),
        launch_(launch),
        fibers_(launch.block.x),
        warps_((launch.block.x + kLanes - 1) / kLanes),
        shared_(launch.shared_bytes == 0 ? nullptr
                                         : static_cast<std::byte*>(::operator new(launch.shared_bytes, kSharedAlign))) {
  }

  void run(const Dim& at) {
    for (std::size_t i = 0; i < fibers_.size(); ++i)
      start(fibers_[i], {{static_cast<unsigned>(i), 0, 0}, at, launch_.block, launch_.grid});
    if (shared_) poison(shared_.get(), launch_.shared_bytes);
    do {
      for (std::size_t warp = 0; warp < warps_.size(); ++warp)
        run_warp(launch_.backwards ? warps_.size() - 1 - warp : warp);
    } while (!is_stuck_ && open_barrier());
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void wait_for_block() {
    if (is_left_out(current_->barriers++, mistake.barrier)) return;
    wait(Wait::block);
  }

  const Brought& meet(const char* operation, const void* mine, std::size_t bytes) {
    if (bytes > kMostBrought || fibers_.size() % kLanes != 0) throw std::logic_error("no such meeting of a warp");
    Meetings& meetings = warps_[current_->place.thread.x / kLanes];
    const int turn = current_->meetings++ % 2;
    const std::size_t lane = current_->place.thread.x % kLanes;
    meetings.operation[turn][lane] = operation;
    if (bytes != 0) std::memcpy(meetings.brought[turn][lane], mine, bytes);
    wait(Wait::warp);
    for (const char* other : meetings.operation[turn])
      if (std::strcmp(other, operation) != 0)
        throw std::logic_error(std::string("a warp comes to ") + operation + " and to " + other);
    return meetings.brought[turn];
  }
  void sync_warp() {
    if (!is_left_out(current_->warp_barriers++, mistake.warp_barrier)) meet("__syncwarp", nullptr, 0);
  }

  SharedMemory shared() const { return {shared_.get(), launch_.shared_bytes}; }
  void begin_copy(const Copy& copy) {
    poison(copy.to, copy.bytes);
    current_->copies.push_back(copy);
  }
  void finish_copies() {
    if (is_left_out(current_->waits_for_copies++, mistake.wait)) return;
    for (const Copy& copy : current_->copies)
      if (copy.from != nullptr)
        std::memcpy(copy.to, copy.from, copy.bytes);
      else
        std::memset(copy.to, 0, copy.bytes);
    current_->copies.clear();
  }
  const ThreadPlace& place() const { return current_->place; }

 private:
  static void start(Fiber& fiber, const ThreadPlace& place) {
    fiber.place = place;
    fiber.has_ended = false;
    fiber.waits = Wait::none;
    fiber.meetings = fiber.barriers = fiber.warp_barriers = fiber.waits_for_copies = 0;
    fiber.copies.clear();
  }

  /// Until each of its threads has ended or waits for the block.
  void run_warp(std::size_t warp) {
    const std::size_t begin = warp * kLanes, end = std::min(begin + kLanes, fibers_.size());
    while (!is_stuck_) {
      bool has_run = false;
      for (std::size_t i = begin; i < end; ++i) {
        Fiber& fiber = fibers_[launch_.backwards ? begin + end - 1 - i : i];
        if (fiber.has_ended || fiber.waits != Wait::none) continue;
        resume(fiber);
        has_run = true;
      }
      if (!has_run && !open_meeting(begin, end)) return;
    }
  }

  /// Whether the warp's threads wait for each other. Some that do, and others that never will come, are an error.
  bool open_meeting(std::size_t begin, std::size_t end) {
    std::size_t waiting = 0;
    for (std::size_t i = begin; i < end; ++i) waiting += fibers_[i].waits == Wait::warp ? 1 : 0;
    if (waiting == 0) return false;
    is_stuck_ = waiting != end - begin;
    if (is_stuck_ && !error_)
      error_ = std::make_exception_ptr(std::logic_error("some threads of a warp do not come to where others wait"));
    for (std::size_t i = begin; i < end && !is_stuck_; ++i) fibers_[i].waits = Wait::none;
    return !is_stuck_;
  }

  bool open_barrier() {
    bool has_waiting = false;
    for (Fiber& fiber : fibers_) has_waiting = std::exchange(fiber.waits, Wait::none) != Wait::none || has_waiting;
    return has_waiting;
  }

  void wait(Wait for_whom) {
    current_->waits = for_whom;
    leave(*current_);
  }

  static void enter();
  /// A fiber's whole life: one thread after the other, of one block after the other.
  [[noreturn]] void body() {
    arrived();
    for (;;) {
      try {
        kernel_();
        if (!current_->copies.empty()) throw std::logic_error("a thread ends while copies are under way");
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

  struct Release {
    void operator()(std::byte* memory) const { ::operator delete(memory, kSharedAlign); }
  };

  const std::function<void()>& kernel_;
  const Launch launch_;
  std::vector<Fiber> fibers_;
  std::vector<Meetings> warps_;
  const std::unique_ptr<std::byte, Release> shared_;
  Fiber* current_ = nullptr;
  Point host_;
  std::exception_ptr error_;
  bool is_stuck_ = false;
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

void run_alone(const Launch& launch, const std::function<void()>& kernel) {
  const std::uint64_t threads = std::uint64_t{launch.grid.x} * launch.block.x;
  for (std::uint64_t i = 0; i < threads; ++i) {
    const std::uint64_t at = launch.backwards ? threads - 1 - i : i;
    alone = {{static_cast<unsigned>(at % launch.block.x), 0, 0},
             {static_cast<unsigned>(at / launch.block.x), 0, 0},
             launch.block,
             launch.grid};
    kernel();
  }
}

Block& meeting_block() {
  if (running == nullptr) throw std::logic_error("threads meet in a kernel that is said not to");
  return *running;
}

}  // namespace

const ThreadPlace& place() { return running != nullptr ? running->place() : alone; }

void sync_block() { meeting_block().wait_for_block(); }
void sync_warp() { meeting_block().sync_warp(); }
const Brought& meet_warp(const char* operation, const void* mine, std::size_t bytes) {
  return meeting_block().meet(operation, mine, bytes);
}
SharedMemory shared_memory() { return meeting_block().shared(); }
void begin_copy(const Copy& copy) { meeting_block().begin_copy(copy); }
void finish_copies() { meeting_block().finish_copies(); }
void make_mistake(const Mistake& next) {
  mistake = next;
  mistakes = 0;
}
int mistakes_made() { return mistakes; }

void run_grid(const Launch& launch, bool meets, const std::function<void()>& kernel) {
  if (launch.block.y != 1 || launch.block.z != 1 || launch.grid.y != 1 || launch.grid.z != 1)
    throw std::logic_error("a grid of more than one dimension");
  if (!meets) return run_alone(launch, kernel);
  Block fibers(launch, kernel);
  const Running guard(&fibers);
  for (unsigned i = 0; i < launch.grid.x; ++i) fibers.run({launch.backwards ? launch.grid.x - 1 - i : i, 0, 0});
}

}  // namespace zs::emulation
