#include "model/train/session/step_replay.h"

namespace zs {
namespace {

/// Name by which errors, profilers and the watchdog call a step that is one operation.
constexpr const char* kName = "step (graph)";

}  // namespace

StepReplay::StepReplay(Device& device, World& world, OrderCheck& order)
    : device_(device), gpu_(dynamic_cast<CudaDevice*>(&device)) {
  if (gpu_ == nullptr) return;
  if (transport_of(world) == Transport::staged) throw graphs_are_refused({});
  agreement_.emplace(world, order);
}

std::string StepReplay::obstacle() const {
  if (device_.trace().is_recording()) return "its order is recorded";
  return device_.profile().is_recording() ? "its operations are timed" : "";
}

void StepReplay::run(std::uint64_t key, const std::function<void()>& enqueue) {
  const Kind kind{key, device_.memory().layout()};
  if (gpu_ == nullptr) return enqueue_as_ever(kind, enqueue);
  // Resources that libraries ask for lazily must be there before a capture, down to what they choose by the operands'
  // addresses.
  const StepChoice choice = agreement_->choose(enqueued_ == kind, captured_ == kind ? name_ : 0, obstacle());
  if (!choice.obstacle.empty() && !std::exchange(has_told_obstacle_, true))
    message_ = "not captured as a CUDA graph: " + choice.obstacle;
  if (choice.way == StepWay::enqueue) return enqueue_as_ever(kind, enqueue);
  if (choice.way == StepWay::capture) capture(kind, enqueue);
  peak_bytes_ = graph_peak_bytes_;
  enqueued_.reset();
  ++replays_;
  gpu_->replay(*graph_, kName);
}

void StepReplay::enqueue_as_ever(const Kind& kind, const std::function<void()>& enqueue) {
  enqueued_.reset();
  enqueue();
  enqueued_ = kind;
  peak_bytes_ = device_.memory().peak_bytes();
}

void StepReplay::capture(const Kind& kind, const std::function<void()>& enqueue) {
  captured_.reset();
  enqueued_.reset();
  gpu_->synchronize();  // the graph that goes away may be under way
  graph_.reset();
  graph_ = gpu_->capture([&] { agreement_->enqueue(enqueue); });
  name_ = agreement_->confirm();
  // The host's view of memory is then what it was before, so that it holds for the next replay too.
  if (device_.memory().layout() == kind.layout) captured_ = kind;
  graph_peak_bytes_ = device_.memory().peak_bytes();
  if (++captures_ == 1) message_ = "captured as a CUDA graph, which steps replay from here on";
}

}  // namespace zs
