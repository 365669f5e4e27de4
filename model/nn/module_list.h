#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/nn/module.h"
#include "runtime/base/usage_error.h"

namespace zs {

/// Modules of one kind by their numbers, "0", "1" ... below its path. It owns them.
template <class M>
class ModuleList : public Module {
 public:
  explicit ModuleList(std::string path) : Module(std::move(path)) {}

  /// Adds a module after those that are there. args: of M's constructor, after the path.
  template <class... Args>
  M& add(Args&&... args) {
    modules_.push_back(&make_child<M>(std::to_string(modules_.size()), std::forward<Args>(args)...));
    return *modules_.back();
  }
  std::size_t size() const { return modules_.size(); }
  /// UsageError where there is none of that number.
  M& operator[](std::size_t i) const {
    ZS_REQUIRE(i < modules_.size(), "module {} of {}, which has {}", i, path(), modules_.size());
    return *modules_[i];
  }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

 private:
  std::vector<M*> modules_;
};

/// Modules, and functions of a tensor, one after the other. Modules are called by their numbers, functions counted.
class Sequential : public Layer<Sequential> {
 public:
  explicit Sequential(std::string path) : Layer(std::move(path)) {}

  /// An M, whose forward takes and gives a tensor. args: of its constructor, after the path.
  template <class M, class... Args>
  Sequential& add(Args&&... args) {
    M& module = make_child<M>(std::to_string(steps_.size()), std::forward<Args>(args)...);
    return add([&module](const Tensor& x) {
      if constexpr (requires { module(x); }) {
        return module(x);
      } else {
        return module.forward(x);
      }
    });
  }
  Sequential& add(std::function<Tensor(const Tensor&)> function) {
    steps_.push_back(std::move(function));
    return *this;
  }
  Tensor forward(Tensor x) {
    for (const auto& step : steps_) x = step(x);
    return x;
  }

 private:
  std::vector<std::function<Tensor(const Tensor&)>> steps_;
};

}  // namespace zs
