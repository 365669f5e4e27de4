#include "runtime/device/step_verifier.h"

#include <map>
#include <utility>

namespace zs {

void throw_if_out_of_order(const std::vector<OrderViolation>& violations, const std::string& where) {
  if (violations.empty()) return;
  const std::string others = violations.size() == 1 ? "" : fmt::format(" ({} such pairs in all)", violations.size());
  throw Error(ExitCode::internal, violations.front().message + others, where,
              "this is a defect of zshard or of an op that declares too little");
}

StepVerifier::StepVerifier(Device& device) : device_(device) {
  device_.trace().clear();
  device_.trace().start();
}

StepVerifier::~StepVerifier() {
  device_.trace().stop();
  device_.trace().clear();
}

VerifiedOrder StepVerifier::check(const std::string& where) {
  VerifiedOrder order;
  for (const TraceEntry& entry : device_.trace().entries()) {
    order.ops += entry.kind == TraceEntry::Kind::op;
    order.waits += entry.kind == TraceEntry::Kind::wait;
  }
  const std::vector<OrderViolation> violations = verify_order(device_.trace().entries());
  forget_all_but_live_blocks();
  throw_if_out_of_order(violations, where);
  return order;
}

void StepVerifier::forget_all_but_live_blocks() {
  std::vector<TraceEntry>& entries = device_.trace().entries();
  std::map<const void*, TraceEntry> live;
  for (TraceEntry& entry : entries) {
    if (entry.kind != TraceEntry::Kind::acquire && entry.kind != TraceEntry::Kind::release) continue;
    const void* const block = entry.op.writes.front().data;
    if (entry.kind == TraceEntry::Kind::release) {
      live.erase(block);
    } else {
      live.insert_or_assign(block, std::move(entry));
    }
  }
  entries.clear();
  for (auto& [block, entry] : live) entries.push_back(std::move(entry));
}

}  // namespace zs
