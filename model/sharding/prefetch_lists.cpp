#include "model/sharding/prefetch_lists.h"

#include <algorithm>
#include <utility>

namespace zs {
namespace {

/// Units that one module's forward opens.
struct Entry {
  Module* hook;
  std::size_t pattern;  // index in Plan::apply
  std::vector<std::size_t> units;
};

class EntryOrder {
 public:
  explicit EntryOrder(const ResolvedPlan& plan) : plan_(plan) {
    for (const std::string& text : plan.plan.apply) patterns_.emplace_back(text);
    for (std::size_t unit = 0; unit < plan.units.size(); ++unit) add(unit);
    is_placed_.resize(entries_.size());
    std::stable_sort(entries_.begin(), entries_.end(),
                     [](const Entry& a, const Entry& b) { return a.pattern < b.pattern; });
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (!is_placed_[i]) place(i);
  }

  const std::vector<Entry>& forward() const { return order_; }
  /// The other way round, but parents before what is in them.
  std::vector<Entry> backward() const {
    std::vector<Entry> order;
    for (auto entry = order_.rbegin(); entry != order_.rend(); ++entry) {
      const auto inner = std::find_if(order.begin(), order.end(),
                                      [&](const Entry& placed) { return is_within(*placed.hook, *entry->hook); });
      order.insert(inner, *entry);
    }
    return order;
  }

 private:
  void add(std::size_t number) {
    const ResolvedPlan::Unit& unit = plan_.units[number];
    if (unit.pattern.empty()) return;
    auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.hook == unit.hook; });
    if (entry == entries_.end())
      entry = entries_.insert(entries_.end(), {unit.hook, last_match(*unit.hook, unit.pattern), {}});
    entry->units.push_back(number);
  }
  /// A hook that is no unit has the place of the first one in it.
  std::size_t last_match(const Module& hook, const std::string& of_unit) const {
    for (std::size_t i = patterns_.size(); i-- > 0;)
      if (patterns_[i].matches(hook.path())) return i;
    const auto found = std::find(plan_.plan.apply.rbegin(), plan_.plan.apply.rend(), of_unit);
    return static_cast<std::size_t>(plan_.plan.apply.rend() - found) - 1;
  }
  void place(std::size_t i) {
    is_placed_[i] = true;
    order_.push_back(entries_[i]);
    for (std::size_t later = i + 1; later < entries_.size(); ++later) {
      const bool is_inner =
          entries_[later].pattern > entries_[i].pattern && is_within(*entries_[later].hook, *entries_[i].hook);
      if (is_inner && !is_placed_[later]) place(later);
    }
  }

  const ResolvedPlan& plan_;
  std::vector<NamePattern> patterns_;
  std::vector<Entry> entries_, order_;
  std::vector<bool> is_placed_;
};

/// Children before parents, else as they are.
std::vector<std::size_t> children_first(const ResolvedPlan& plan, const Entry& entry) {
  std::vector<std::size_t> order;
  for (auto unit = entry.units.rbegin(); unit != entry.units.rend(); ++unit) {  // parents come before children in it
    const auto inner = std::find_if(order.begin(), order.end(), [&](std::size_t placed) {
      return !is_within(*plan.units[placed].module, *plan.units[*unit].module);
    });
    order.insert(inner, *unit);
  }
  return order;
}

void set_lists(ResolvedPlan& plan, const std::vector<Entry>& order, int ahead,
               std::optional<std::vector<std::size_t>> ResolvedPlan::Unit::*list, bool is_forward) {
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (const std::size_t unit : order[i].units) (plan.units[unit].*list).emplace();
    const std::vector<std::size_t> members = children_first(plan, order[i]);
    std::vector<std::size_t>& targets = *(plan.units[is_forward ? members.front() : members.back()].*list);
    for (std::size_t next = i + 1; next < order.size() && next - i <= static_cast<std::size_t>(ahead); ++next)
      targets.insert(targets.end(), order[next].units.begin(), order[next].units.end());
  }
}

}  // namespace

bool is_within(const Module& inner, const Module& outer) {
  if (&inner == &outer) return true;
  const auto& children = outer.children();
  return std::any_of(children.begin(), children.end(), [&](const Module* child) { return is_within(inner, *child); });
}

void set_prefetch_lists(ResolvedPlan& plan) {
  const EntryOrder order(plan);
  using Unit = ResolvedPlan::Unit;
  if (plan.plan.forward_prefetch > 0)
    set_lists(plan, order.forward(), plan.plan.forward_prefetch, &Unit::forward, true);
  if (plan.plan.backward_prefetch > 0)
    set_lists(plan, order.backward(), plan.plan.backward_prefetch, &Unit::backward, false);
}

}  // namespace zs
