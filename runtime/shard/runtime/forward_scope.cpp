// While a unit's parameters are unsharded.
#include <exception>

#include "runtime/shard/runtime/sharded_runtime.h"

namespace zs {

void ForwardScope::enter() {
  if (!units_.empty()) runtime_->context().check_thread("the forward of a module");
  for (const int unit : units_) runtime_->before_forward(unit);
  if (!units_.empty()) owner_.emplace(runtime_->context().device().memory(), runtime_->name(units_.front()));
}

ForwardScope::~ForwardScope() noexcept(false) {
  if (std::uncaught_exceptions() != exceptions_) return;
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) runtime_->after_forward(*unit);
}

void ShardedRuntime::UnshardHandle::wait() const {
  model_.check("a wait for an unshard by hand");
  runtime_->run(runtime_->scheduler().wait_unshard(unit_));
}

}  // namespace zs
