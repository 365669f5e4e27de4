#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/buffer.h"

namespace zs::test {

/// Says of every rank of a job that is about to end whether its weights and its optimizer's moments are those of before
/// the step, also of ranks that wait for ever in an operation: a thread of each process looks when it is asked. The
/// ranks share a file of kBytes, which is zero at first.
class Witness {
 public:
  static constexpr std::int64_t kBytes = 4096;

  Witness(const char* path, int rank, int ranks) : ranks_(ranks) {
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void* const memory = file < 0 ? MAP_FAILED : mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED || close(file) != 0) throw std::runtime_error(std::string("cannot map ") + path);
    board_ = static_cast<Board*>(memory);
    own_ = &board_->ranks.at(static_cast<std::size_t>(rank));
    thread_ = std::jthread([this](const std::stop_token& stop) { answer(stop); });
  }
  ~Witness() {
    thread_ = {};
    munmap(board_, kBytes);
  }
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  /// The rank's streams are idle, and it is about to begin this step. `state`: what only the optimizer may write.
  void begin_step(int step, std::vector<Buffer> state) {
    const std::lock_guard lock(mutex_);
    state_ = std::move(state);
    before_.clear();
    for (const Buffer& buffer : state_) before_.emplace_back(bytes_of(buffer), bytes_of(buffer) + buffer.bytes());
    own_->step = step;
  }
  /// The rank does nothing more.
  void stop() { own_->has_stopped = true; }

  /// Asks all ranks, once each has come to the step `from` and has had time to go on if it does: "3 of 3 ranks are as
  /// before step 2, which none has passed". Any thread of any rank.
  std::string ask(int from, int to) {
    const auto all = [this](const auto& is) {
      return std::all_of(board_->ranks.begin(), board_->ranks.begin() + ranks_, is);
    };
    wait(10, [&] { return all([from](const Page& page) { return page.step >= from; }); });
    wait(0.3, [&] { return all([](const Page& page) { return page.has_stopped.load(); }); });
    board_->is_asked = true;
    wait(10, [&] { return all([](const Page& page) { return page.answer != Answer::none; }); });
    std::string text;
    int right = 0;
    for (int rank = 0; rank < ranks_; ++rank) {
      const Page& page = board_->ranks[static_cast<std::size_t>(rank)];
      const bool is_right = page.answer == Answer::as_before && page.step >= from && page.step <= to;
      right += is_right;
      const char* const says = page.answer == Answer::none      ? "SAYS NOTHING"
                               : page.answer == Answer::changed ? "CHANGED"
                                                                : "unchanged";
      if (!is_right)
        text += "; rank " + std::to_string(rank) + " " + says + " since before step " + std::to_string(page.step);
    }
    return std::to_string(right) + " of " + std::to_string(ranks_) + " ranks are as before" + text;
  }

 private:
  enum class Answer : int { none, as_before, changed };
  struct Page {
    std::atomic<int> step;
    std::atomic<bool> has_stopped;
    std::atomic<Answer> answer;
  };
  struct Board {
    std::atomic<bool> is_asked;
    std::array<Page, 8> ranks;
  };
  static_assert(sizeof(Board) <= kBytes && std::atomic<Answer>::is_always_lock_free);

  static const std::byte* bytes_of(const Buffer& buffer) { return static_cast<const std::byte*>(buffer.data); }

  template <class Done>
  static void wait(double limit_s, const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
    while (!done() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  void answer(const std::stop_token& stop) {
    wait(1e6, [&] { return stop.stop_requested() || board_->is_asked.load(); });
    if (stop.stop_requested()) return;
    const std::lock_guard lock(mutex_);
    bool is_equal = true;
    for (std::size_t i = 0; i < state_.size(); ++i)
      is_equal = is_equal && std::equal(before_[i].begin(), before_[i].end(), bytes_of(state_[i]));
    own_->answer = is_equal ? Answer::as_before : Answer::changed;
  }

  int ranks_;
  Board* board_ = nullptr;
  Page* own_ = nullptr;
  std::mutex mutex_;
  std::vector<Buffer> state_;
  std::vector<std::vector<std::byte>> before_;
  std::jthread thread_;
};

}  // namespace zs::test
