#pragma once

#include <map>
#include <set>
#include <string>

namespace zs::test {

/// How often each function of an emulated library was called, and what the next call of it returns.
class FunctionCalls {
 public:
  /// Counts the call; its status if it shall fail, else 0.
  int enter(const std::string& function) {
    ++calls_[function];
    const auto failure = failures_.find(function);
    if (failure == failures_.end()) return 0;
    const int status = failure->second;
    failures_.erase(failure);
    return status;
  }
  void fail(const std::string& function, int status) { failures_[function] = status; }
  int count(const std::string& function) const {
    const auto found = calls_.find(function);
    return found == calls_.end() ? 0 : found->second;
  }
  std::set<std::string> functions() const {
    std::set<std::string> names;
    for (const auto& [name, count] : calls_) names.insert(name);
    return names;
  }

 private:
  std::map<std::string, int> failures_, calls_;
};

}  // namespace zs::test
