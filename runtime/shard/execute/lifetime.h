#pragma once

#include <memory>
#include <string>

#include "runtime/base/usage_error.h"

namespace zs {

/// Life of a model, to which optimizers, micro-batches and scopes refer without owning it: they keep a Watch, and ask
/// it before they touch the model. One host thread uses it.
class Lifetime {
 public:
  class Watch {
   public:
    explicit Watch(const Lifetime& life) : ended_(life.ended_) {}
    bool has_ended() const { return *ended_; }
    /// UsageError of `call` where the model has ended.
    void check(const std::string& call) const {
      if (has_ended())
        throw UsageError(call + " after its model has ended", "let the model live longer: declare it before");
    }

   private:
    std::shared_ptr<const bool> ended_;
  };

  Lifetime() = default;
  ~Lifetime() { *ended_ = true; }
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

 private:
  std::shared_ptr<bool> ended_ = std::make_shared<bool>(false);
};

}  // namespace zs
