#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/shard/checkpoint/checkpoint.h"

namespace zs::test {

/// Ends every change of the disk from the n-th on, on all ranks, as the death of the job would.
class Killed final : public FileWatch {
 public:
  explicit Killed(int at) : left_(at) {}
  void before(FileOp, const std::string&) override {
    if (left_.fetch_sub(1) <= 0) throw std::runtime_error("killed");
  }
  bool was_reached() const { return left_ < 0; }

 private:
  std::atomic<int> left_;
};

/// Fails the n-th change only, as a disk would.
class Failing final : public FileWatch {
 public:
  explicit Failing(int at) : left_(at) {}
  void before(FileOp op, const std::string& path) override {
    if (left_.fetch_sub(1) == 0) throw Error(ExitCode::io, name_of(op), path, "injected");
  }
  bool was_reached() const { return left_ < 0; }

 private:
  std::atomic<int> left_;
};

class Recording final : public FileWatch {
 public:
  void before(FileOp op, const std::string& path) override {
    const std::lock_guard lock(mutex_);
    ops.emplace_back(op, path);
  }
  std::vector<std::pair<FileOp, std::string>> ops;
  std::ptrdiff_t find(FileOp op, const std::string& ending) const {
    const auto at = std::find_if(
        ops.begin(), ops.end(), [&](const auto& entry) { return entry.first == op && entry.second.ends_with(ending); });
    REQUIRE(at != ops.end());
    return at - ops.begin();
  }

 private:
  std::mutex mutex_;
};

}  // namespace zs::test
