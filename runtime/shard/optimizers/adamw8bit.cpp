#include "runtime/shard/optimizers/adamw8bit.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace zs {
namespace {

constexpr StateForm kCodeForm{DType::u8, 1}, kScaleForm{DType::f32, kCodeBlockElems};
/// Places in Slice::state: the scales that there are, and after them the scales after a step.
enum StatePlace : std::size_t { kM, kV, kMScale, kVScale, kNewMScale, kNewVScale };

/// The blocks of a parameter of which more than one rank has elements.
std::set<std::int64_t> shared_blocks(const UnitLayout& layout, std::size_t view) {
  std::set<std::int64_t> shared;
  if (layout.views()[view].is_whole || layout.ranks() == 1) return shared;
  for (int slice = 0; slice < layout.ranks(); ++slice) {
    for (const ShardSegment& segment : layout.segments(slice)) {
      if (segment.view != view || segment.count == 0) continue;
      const ElementRuns part{segment.view_offset, segment.run, segment.stride};
      const std::int64_t first = first_block_of(part), last = first + blocks_of(part, segment.count) - 1;
      const std::int64_t end = segment.view_offset + segment.count;
      if (segment.runs() > 1) {
        for (std::int64_t block = first; block <= last; ++block) shared.insert(block);
        continue;
      }
      if (segment.view_offset % kCodeBlockElems != 0) shared.insert(first);
      if (end % kCodeBlockElems != 0 && end != layout.views()[view].numel) shared.insert(last);
    }
  }
  return shared;
}

}  // namespace

AdamW8bit::AdamW8bit(Executor& executor, const AdamWConfig& config)
    : Optimizer(executor,
                {.name = "AdamW8bit",
                 .state = {"m", "v", "m_scale", "v_scale"},
                 .settings = {{"AdamW8bit's beta1", fmt::to_string(config.beta1)},
                              {"AdamW8bit's beta2", fmt::to_string(config.beta2)},
                              {"AdamW8bit's eps", fmt::to_string(config.eps)}},
                 .forms = {kCodeForm, kCodeForm, kScaleForm, kScaleForm},
                 .is_apart = [](const FlatView&) { return true; },
                 .correction = {StepCorrection::Kind::adamw, config.beta1, config.beta2}},
                shared_options(checked_adamw("AdamW8bit", config))),
      config_(config) {
  plan_exchanges();
}

/// Plans the exchanges, with the same numbers on every rank.
void AdamW8bit::plan_exchanges() {
  const auto& units = executor().units();
  std::map<const Placement*, std::size_t> firsts;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    first_.push_back(has_window(unit) ? unit : firsts.try_emplace(units[unit].placement.get(), unit).first->second);
    const UnitLayout& layout = *units[unit].layout;
    auto& of_unit = shared_.emplace_back(layout.views().size());
    if (units[unit].is_frozen || layout.ranks() == 1) continue;
    const std::vector<ShardSegment> held = units[unit].held_segments();
    for (std::size_t view = 0; view < layout.views().size(); ++view) {
      const std::set<std::int64_t> blocks = shared_blocks(layout, view);
      if (blocks.empty()) continue;
      std::int64_t& slots = exchanges_[first_.back()].slots;
      const auto segment = std::find_if(held.begin(), held.end(), [&](const auto& one) { return one.view == view; });
      for (const std::int64_t block : blocks) {
        const std::int64_t slot = slots++;
        if (segment == held.end()) continue;
        const ElementRuns part{segment->view_offset, segment->run, segment->stride};
        const std::int64_t of_part = block - first_block_of(part);
        if (of_part < 0 || of_part >= blocks_of(part, segment->count)) continue;
        std::vector<Shared>& own = of_unit[view];
        if (!own.empty() && own.back().of_part + own.back().count == of_part)
          ++own.back().count;
        else
          own.push_back({of_part, slot, 1});
      }
    }
  }
}

BlockwiseAdamW AdamW8bit::args_of(const Slice& slice) {
  return {.master = slice.master,
          .copy = slice.copy,
          .grad = slice.grad,
          .scalars = slice.scalars,
          .m = slice.state[kM],
          .v = slice.state[kV],
          .m_scales = slice.state[kMScale],
          .v_scales = slice.state[kVScale],
          .new_m_scales = slice.state[kNewMScale],
          .new_v_scales = slice.state[kNewVScale],
          .part = slice.part,
          .weight_decay = slice.weight_decay};
}

std::vector<AdamW8bit::Work> AdamW8bit::works(std::vector<Apart> units) {
  Context& context = executor().context();
  std::vector<Work> works;
  for (auto& [unit, parts] : units) {
    Work& work = works.emplace_back(Work{unit, std::move(parts), {}});
    std::int64_t blocks = 0;
    for (const Part& part : work.parts) blocks += part.slice.state[kMScale].elems;
    if (blocks == 0) continue;
    work.scales = context.pool().acquire(2 * blocks * size_of(DType::f32), context.stream(), "scales");
    Buffer rest = work.scales.buffer(DType::f32, 2 * blocks);
    for (Part& part : work.parts) {
      const std::int64_t own = part.slice.state[kMScale].elems;
      for (const std::int64_t offset : {std::int64_t{0}, own}) part.slice.state.push_back(rest.slice(offset, own));
      rest = rest.slice(2 * own, rest.elems - 2 * own);
    }
  }
  return works;
}

void AdamW8bit::find_scales(const Work& work) {
  if (!work.scales) return;
  OpInfo info{"adamw8bit_scales:" + executor().units()[work.unit].name, {}, {}};
  std::vector<Slice> slices;
  for (const Part& part : work.parts) {
    const std::vector<Buffer>& state = part.slice.state;
    info.reads.insert(info.reads.end(), {part.slice.grad, part.slice.scalars});
    info.reads.insert(info.reads.end(), state.begin(), state.begin() + kNewMScale);
    info.writes.insert(info.writes.end(), {state[kNewMScale], state[kNewVScale]});
    slices.push_back(part.slice);
  }
  executor().context().launch(
      std::move(info), [&kernels = kernels(), config = config_, slices = std::move(slices)](ExecContext& exec) {
        for (const Slice& slice : slices)
          kernels.blockwise_adamw_scales(exec, args_of(slice), {config.beta1, config.beta2, config.eps});
      });
}

void AdamW8bit::copy_shared(const Work& work, const Exchange& exchange, bool to_exchange) {
  OpInfo info{to_exchange ? "share_scales" : "take_scales", {}, {}};
  std::vector<std::pair<Buffer, Buffer>> copies;  // to, from
  const Buffer all = exchange.scales.buffer(DType::f32, 2 * exchange.slots);
  for (const Part& part : work.parts) {
    for (const Shared& shared : shared_[work.unit][part.view]) {
      for (const auto& [own, at] : {std::pair(part.slice.state[kNewMScale], shared.slot),
                                    std::pair(part.slice.state[kNewVScale], exchange.slots + shared.slot)}) {
        const Buffer mine = own.slice(shared.of_part, shared.count), everyones = all.slice(at, shared.count);
        copies.emplace_back(to_exchange ? everyones : mine, to_exchange ? mine : everyones);
        info.writes.push_back(copies.back().first);
        info.reads.push_back(copies.back().second);
      }
    }
  }
  if (copies.empty()) return;
  executor().context().launch(std::move(info), [&kernels = kernels(), copies = std::move(copies)](ExecContext& exec) {
    for (const auto& [to, from] : copies) kernels.copy(exec, to, from);
  });
}

/// Exchanges scales in an order that all ranks have.
void AdamW8bit::exchange_scales(const std::vector<Work>& works) {
  std::set<std::size_t> firsts;
  for (const Work& work : works) firsts.insert(first_[work.unit]);
  for (const std::size_t first : firsts)
    if (exchanges_.contains(first)) exchange_scales(works, first);
}

/// Exchanges the scales; those that a rank has no part of count as 0.
void AdamW8bit::exchange_scales(const std::vector<Work>& works, std::size_t first) {
  Context& context = executor().context();
  Exchange& exchange = exchanges_.at(first);
  exchange.scales = context.pool().acquire(2 * exchange.slots * size_of(DType::f32), context.stream(), "scales");
  const Buffer all = exchange.scales.buffer(DType::f32, 2 * exchange.slots);
  context.launch({"zero_scales", {}, {all}},
                 [&kernels = kernels(), all](ExecContext& exec) { kernels.zero(exec, all); });
  const auto copy = [&](bool to_exchange) {
    for (const Work& work : works)
      if (first_[work.unit] == first) copy_shared(work, exchange, to_exchange);
  };
  copy(true);
  executor().transfer().masters(executor().units()[first]).all_reduce(context.stream(), "scales", all, ReduceOp::max);
  copy(false);
  exchange.scales.release(context.stream());
}

void AdamW8bit::apply(Work& work) {
  if (!work.scales) return;
  OpInfo info{"adamw8bit:" + executor().units()[work.unit].name, {}, {}};
  for (const Part& part : work.parts) {
    const std::vector<Buffer>& state = part.slice.state;
    info.reads.insert(info.reads.end(), {part.slice.master, part.slice.grad, part.slice.scalars});
    info.reads.insert(info.reads.end(), state.begin(), state.end());
    info.writes.push_back(part.slice.master);
    info.writes.insert(info.writes.end(), state.begin(), state.begin() + kNewMScale);
  }
  launch_parts(std::move(info), std::move(work.parts),
               of_each([&kernels = kernels(), config = config_](ExecContext& exec, const Slice& slice) {
                 kernels.blockwise_adamw(exec, args_of(slice), {config.beta1, config.beta2, config.eps});
                 kernels.copy(exec, slice.state[kMScale], slice.state[kNewMScale]);
                 kernels.copy(exec, slice.state[kVScale], slice.state[kNewVScale]);
               }));
}

void AdamW8bit::update_apart(std::vector<Apart> units) {
  std::vector<Work> all = works(std::move(units));
  for (const Work& work : all) find_scales(work);
  exchange_scales(all);
  for (Work& work : all) apply(work);
}

}  // namespace zs
