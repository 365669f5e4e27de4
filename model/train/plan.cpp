#include "model/train/plan.h"

#include <algorithm>

#include "comm/world.h"
#include "model/train/metrics.h"
#include "model/train/session.h"

namespace zs {
namespace {

void no_samples(const Config& config, std::vector<std::int32_t>& inputs, std::vector<std::int32_t>& targets) {
  inputs.assign(static_cast<std::size_t>(config.train.micro_batch * config.train.sequence), 0);
  targets = inputs;
}

std::string describe_units(const TrainPlan& plan, DType param) {
  std::string text = fmt::format("{:<14}{:>8}{:>14}{:>14}{:>12}{:>12}\n", "unit", "params", "elements", "shard elems", "full", "shard f32");
  std::int64_t elements = 0;
  for (const TrainPlan::Unit& unit : plan.units) elements += unit.numel;
  for (const TrainPlan::Unit& unit : plan.units) {
    text += fmt::format("{:<14}{:>8}{:>14}{:>14}{:>12}{:>12}\n", unit.name, unit.parameters, unit.numel, unit.shard_elems,
                        format_bytes(unit.numel * size_of(param)), format_bytes(unit.shard_elems * size_of(DType::f32)));
  }
  return text + fmt::format("{:<14}{:>8}{:>14}\n", "all", "", elements);
}

std::string describe_memory(const TrainPlan& plan) {
  std::string text;
  for (const auto& [label, bytes] : plan.at_peak) text += fmt::format("  {:<14}{:>16}  {}\n", label, bytes, format_bytes(bytes));
  return text;
}

std::string describe_schedule(const TrainPlan& plan) {
  std::string text;
  for (const Action& action : plan.micro_batch) {
    text += fmt::format("  {:<18}{}\n", name_of(action.kind), plan.units[static_cast<std::size_t>(action.unit)].name);
  }
  return text;
}

}  // namespace

TrainPlan make_plan(const Config& config, int rank, int ranks) {
  const auto device = Device::create(DeviceKind::meta, {});
  const auto world = make_meta_world(rank, ranks);
  Session session(*device, *world, config);
  const ReadSamples read = [&config](std::int64_t, auto& inputs, auto& targets) { no_samples(config, inputs, targets); };

  session.enqueue_step(1, 0, read, false);  // records the order
  TrainPlan plan;
  plan.persistent_bytes = device->memory().live_bytes();
  device->trace().start();
  session.enqueue_step(2, 0, read, false);
  device->trace().stop();
  plan.trace = device->trace().entries();
  plan.step_peak_bytes = plan.peak_bytes = device->memory().peak_bytes();
  plan.at_peak = device->memory().at_peak();
  plan.micro_batch = session.runtime().actions();

  if (config.run.validate_every > 0) {
    device->memory().reset_peak();
    session.enqueue_validation(read);
    plan.peak_bytes = std::max(plan.peak_bytes, device->memory().peak_bytes());
  }
  for (const FlatParameter& unit : session.runtime().executor().units()) {
    plan.units.push_back({unit.name, std::ssize(unit.parameters), unit.layout.numel(), unit.layout.shard_elems()});
  }
  plan.train_order = session.runtime().scheduler().order(Mode::train);
  plan.eval_order = session.runtime().scheduler().order(Mode::eval);
  return plan;
}

std::string describe(const TrainPlan& plan, const Config& config, int ranks) {
  const DType param = config.precision.param == "bf16" ? DType::bf16 : DType::f32;
  std::string text = fmt::format("plan: {} ranks, {} micro-batches of {} x {} tokens a rank and step, {} parameters, prefetch {}\n\n",
                                 ranks, config.train.global_batch / config.train.micro_batch / ranks, config.train.micro_batch,
                                 config.train.sequence, config.precision.param, config.shard.prefetch);
  text += describe_units(plan, param);
  text += fmt::format("\nbytes on this rank at the peak of a step, by kind\n{}", describe_memory(plan));
  text += fmt::format("  {:<14}{:>16}  {}\n", "peak_bytes", plan.step_peak_bytes, format_bytes(plan.step_peak_bytes));
  text += fmt::format("  {:<14}{:>16}  {}\n", "between steps", plan.persistent_bytes, format_bytes(plan.persistent_bytes));
  text += fmt::format("\nschedule of the last micro-batch of a step\n{}", describe_schedule(plan));
  return text;
}

}  // namespace zs
