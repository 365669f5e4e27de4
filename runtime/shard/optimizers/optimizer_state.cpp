// State that an optimizer keeps of each unit, and how it lies.

#include <algorithm>
#include <utility>

#include "runtime/shard/optimizers/optimizer.h"

namespace zs {

Optimizer::Unit Optimizer::make_unit(const FlatParameter& unit) {
  Context& context = executor_.context();
  const MemoryOwner owner(context.device().memory(), unit.name);
  Unit made{
      {}, ranges(unit, unit.held_segments()), {}, {}, std::vector<std::int64_t>(unit.parameters.size(), kNotUpdated)};
  for (const Parameter* parameter : unit.parameters) {
    const ParameterGroup* const group = group_of(parameter->name());
    made.lr_scales.push_back(group != nullptr ? group->lr_scale : 1.0f);
  }
  const Residence& residence = unit.placement->options.residence;
  const bool is_on_host = residence.has_moments_on_host;
  std::vector<Buffer> zeros;
  for (std::size_t i = 0; i < state_names_.size(); ++i) {
    const std::int64_t elems = place_states(made, unit, i), bytes = elems * size_of(form(i).dtype);
    made.state.push_back(elems < 0    ? Memory()
                         : is_on_host ? executor_.link().acquire(bytes, "moments", residence.moments_disk)
                                      : context.pool().acquire(bytes, context.stream(), "moments"));
    if (elems >= 0) zeros.push_back(all_of(i, made.state.back()));
  }
  if (zeros.empty()) return made;
  HostLink::Window window = executor_.link().open(unit.name, is_on_host ? zeros : std::vector<Buffer>{});
  for (std::size_t i = 0; i < window.parts.size(); ++i) zeros[i] = window[i];
  context.launch({"zero_moments", {}, zeros}, [&kernels = context.kernels(), zeros](ExecContext& exec) {
    for (const Buffer& buffer : zeros) kernels.zero(exec, buffer);
  });
  executor_.link().store(std::move(window));
  return made;
}

/// A state that all have lies as the masters do; one that some have, or that has an element for a block, without gaps.
/// Returns how many elements it takes; below 0: this rank has none of it.
std::int64_t Optimizer::place_states(Unit& made, const FlatParameter& unit, std::size_t which) const {
  const std::int64_t align = UnitLayout::kAlignBytes / size_of(form(which).dtype);
  const auto& views = unit.layout->views();
  const bool is_average = which == definition_.state.size();
  std::vector<bool>& has = made.has_state.emplace_back();
  for (const FlatView& view : views)
    has.push_back(!unit.is_frozen && (is_average || !definition_.has_state || definition_.has_state(which, view)));
  const bool is_as_masters = form(which).block_elems == 1 && std::find(has.begin(), has.end(), false) == has.end();
  std::int64_t end = 0;
  for (Range& range : made.held) {
    range.state_offsets.push_back(!has[range.view] ? -1 : is_as_masters ? range.offset : end);
    if (has[range.view]) end += (count_of(which, range) + align - 1) / align * align;
  }
  return is_as_masters ? unit.layout->held_elems() : end > 0 ? end : -1;
}

bool Optimizer::is_of_all(std::size_t which, std::size_t unit) const {
  const std::vector<bool>& has = units_.at(unit).has_state.at(which);
  return form(which) == StateForm{} && std::find(has.begin(), has.end(), false) == has.end();
}

std::int64_t Optimizer::state_bytes(std::size_t unit) const {
  std::int64_t bytes = 0;
  for (const Memory& state : units_.at(unit).state) bytes += state ? state.bytes() : 0;
  return bytes;
}

Buffer Optimizer::state(std::size_t which, std::size_t unit) const {
  ZS_CHECK(is_of_all(which, unit), "some parameters of unit {} have no {}", unit, state_names_.at(which));
  return units_.at(unit).state.at(which).buffer(DType::f32, executor_.units().at(unit).layout->held_elems());
}

Buffer Optimizer::state_of(std::size_t which, std::size_t unit, std::size_t segment, const Buffer& all) const {
  const Range& range = units_.at(unit).held.at(segment);
  const std::int64_t offset = range.state_offsets.at(which);
  return offset < 0 ? Buffer{} : all.slice(offset, count_of(which, range));
}

}  // namespace zs
