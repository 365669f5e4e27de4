#include "runtime/shard/placement/scheme.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/base/check.h"

namespace zs {
namespace {

constexpr std::array kNames = {"ddp", "zero1", "zero2", "zero3", "shard_grad_op", "hsdp", "nested"};

// Axes: ranks of a small group, and groups. A scheme without groups has one axis.
const std::string kData = "data", kShard = "shard", kReplica = "replica", kNode = "node", kGroup = "group",
                  kInner = "inner", kOuter = "outer";

bool has_group_size(Strategy strategy) { return strategy == Strategy::hsdp || strategy == Strategy::nested; }
bool has_sharded_parameters(Strategy strategy) {
  return strategy == Strategy::zero3 || strategy == Strategy::shard_grad_op || has_group_size(strategy);
}

void refuse_reshard(const SchemeOptions& options, std::string_view why) {
  throw Error(
      ExitCode::config,
      fmt::format("shard.reshard_after_forward = {} does not go with {}", options.reshard_after_forward.str(), why), {},
      "a number of ranks goes with zero3 and hsdp; use true or false");
}

void check_group_size(const SchemeOptions& options, int ranks) {
  if (has_group_size(options.strategy)) {
    if (options.group_size == 0) {
      throw Error(ExitCode::config,
                  fmt::format("shard.strategy \"{}\" needs a shard.group_size", name_of(options.strategy)), {},
                  "give the ranks of a small group, as a rule those of one host");
    }
    check_divides("shard.group_size", options.group_size, ranks);
  } else if (options.group_size != 0) {
    throw Error(ExitCode::config,
                fmt::format("shard.group_size does not go with shard.strategy \"{}\"", name_of(options.strategy)), {},
                "leave it out, or use hsdp or nested");
  }
}

/// Number of ranks that shard what is unsharded.
int sharding_ranks(const SchemeOptions& options, int ranks) {
  return options.strategy == Strategy::hsdp ? options.group_size : ranks;
}

void check_reshard(SchemeOptions& options, int ranks) {
  const std::int64_t group = options.reshard_after_forward.group();
  if (group == 0) return;
  if (options.strategy != Strategy::zero3 && options.strategy != Strategy::hsdp) {
    refuse_reshard(options, fmt::format("shard.strategy \"{}\"", name_of(options.strategy)));
  }
  check_divides("shard.reshard_after_forward", group, ranks);
  const int sharding = sharding_ranks(options, ranks);
  if (sharding % group != 0) {
    throw Error(ExitCode::config,
                fmt::format("shard.reshard_after_forward {} does not divide shard.group_size {}", group, sharding), {},
                "use a divisor of it, true or false");
  }
  if (group == sharding) options.reshard_after_forward = true;
}

/// Normalises or refuses options that only make sense with some strategies.
SchemeOptions checked(SchemeOptions options, int ranks) {
  if (options.deterministic) options.all_reduce_every_micro_batch = false;
  if (options.mesh) {
    if (options.group_size != 0) {
      throw Error(ExitCode::config, "a mesh of one's own does not go with shard.group_size", {},
                  "give the mesh's axes their sizes");
    }
    if (options.reshard_after_forward.group() != 0) refuse_reshard(options, "a mesh of one's own");
    if (options.deterministic) options.reduce_every_micro_batch = true;
    return options;
  }
  check_group_size(options, ranks);
  if (!has_sharded_parameters(options.strategy) || options.strategy == Strategy::shard_grad_op)
    options.reshard_after_forward = false;
  if (options.strategy == Strategy::zero1) options.reduce_every_micro_batch = false;
  if (options.strategy == Strategy::zero2 || options.deterministic) options.reduce_every_micro_batch = true;
  check_reshard(options, ranks);
  return options;
}

/// The grid that a strategy makes. Small groups are of neighbouring ranks. Only where gradients are folded in the order
/// of ranks, that order must be the one of the slices, so that groups are of ranks that lie apart.
MeshLayout layout_of(const SchemeOptions& options, int ranks) {
  if (options.mesh) return *options.mesh;
  MeshLayout layout;
  const std::int64_t kept = options.reshard_after_forward.group();
  const int sharding = has_group_size(options.strategy) ? options.group_size : ranks;
  std::vector<MeshAxis> small{{options.strategy == Strategy::nested ? kNode
                               : options.strategy == Strategy::hsdp ? kShard
                                                                    : kData,
                               sharding}};
  if (kept != 0) {
    small = {{kOuter, static_cast<int>(sharding / kept)}, {kInner, static_cast<int>(kept)}};
    layout.between = MeshAxes{kInner};
  }
  MeshAxes over;
  for (const MeshAxis& axis : small) over.push_back(axis.name);
  layout.axes = std::move(small);
  if (has_group_size(options.strategy)) {
    const std::string large = options.strategy == Strategy::nested ? kGroup : kReplica;
    layout.axes.insert(options.deterministic ? layout.axes.end() : layout.axes.begin(),
                       MeshAxis{large, ranks / sharding});
  }
  switch (options.strategy) {
    case Strategy::ddp: layout.replicate = over; break;
    case Strategy::zero1:
    case Strategy::zero2: layout.master = over; break;
    case Strategy::zero3:
    case Strategy::shard_grad_op: layout.runtime = layout.master = over; break;
    case Strategy::hsdp:
      layout.runtime = layout.master = over;
      layout.replicate = {kReplica};
      break;
    case Strategy::nested:
      layout.runtime = layout.master = over;
      layout.master.push_back(kGroup);
      break;
  }
  return layout;
}

/// Mesh of all ranks: the axes beside a sub-grid, and within each of its groups the layout's.
Mesh mesh_of(const MeshLayout& layout, const SubGrid& grid) {
  std::vector<MeshAxis> axes = grid.beside;
  axes.insert(axes.end(), layout.axes.begin(), layout.axes.end());
  std::vector<int> order = grid.order;
  for (std::size_t i = 0; i < order.size() && !layout.order.empty(); ++i) {
    const std::size_t size = layout.order.size(), first = i / size * size;
    order[i] = grid.order[first + static_cast<std::size_t>(layout.order[i % size])];
  }
  return {std::move(axes), grid.rank, grid.ranks, std::move(order)};
}

bool has(const MeshAxes& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

bool begins_with(const MeshAxes& axes, const MeshAxes& first) {
  return first.size() <= axes.size() && std::equal(first.begin(), first.end(), axes.begin());
}

[[noreturn]] void refuse_roles(const std::string& what, const char* what_to_do) {
  throw Error(ExitCode::config, "a mesh of one's own: " + what, {}, what_to_do);
}

}  // namespace

std::string Reshard::str() const { return is_all() ? "true" : is_off() ? "false" : fmt::format("{}", ranks_); }

const char* name_of(Strategy strategy) { return kNames.at(static_cast<std::size_t>(strategy)); }

std::string group_sizes_of(int ranks) {
  std::string sizes;
  for (int divisor = 1; divisor <= ranks; ++divisor)
    if (ranks % divisor == 0) sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", divisor);
  return sizes;
}

void check_divides(std::string_view what, std::int64_t size, int ranks) {
  if (size >= 1 && size <= ranks && ranks % size == 0) return;
  throw Error(ExitCode::config,
              fmt::format("{} {} does not divide the job's {} rank{}", what, size, ranks, ranks == 1 ? "" : "s"), {},
              (ranks == 1 ? "use " : "use one of ") + group_sizes_of(ranks));
}

Strategy strategy_of(std::string_view name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end())
    throw Error(ExitCode::config, fmt::format("there is no strategy {}", name), {},
                "use one of ddp, zero1, zero2, zero3, shard_grad_op, hsdp, nested");
  return static_cast<Strategy>(found - kNames.begin());
}

SchemeOptions with_host_groups(SchemeOptions options, const std::vector<int>& host_of_rank) {
  if (options.mesh || !has_group_size(options.strategy) || options.group_size != 0) return options;
  const auto next =
      std::find_if(host_of_rank.begin(), host_of_rank.end(), [&](int host) { return host != host_of_rank.front(); });
  const auto size = next - host_of_rank.begin();
  bool are_alike = std::ssize(host_of_rank) % size == 0;
  for (std::ptrdiff_t rank = 0; are_alike && rank < std::ssize(host_of_rank); ++rank) {
    const auto at = host_of_rank.begin() + rank;
    are_alike = rank % size == 0 ? std::find(host_of_rank.begin(), at, *at) == at : *at == *(at - 1);
  }
  if (!are_alike) {
    throw Error(ExitCode::config,
                fmt::format("shard.strategy \"{}\" without a shard.group_size: the hosts have not equally many ranks, "
                            "one after the other",
                            name_of(options.strategy)),
                {}, "give a shard.group_size, or start the job with the same number of ranks on each host");
  }
  options.group_size = static_cast<int>(size);
  return options;
}

SchemeOptions with_host_groups(const SchemeOptions& options, const std::vector<int>& host_of_rank,
                               const RankGrid& grid) {
  std::vector<int> hosts;
  for (const int rank : grid.loss_ranks()) hosts.push_back(host_of_rank[static_cast<std::size_t>(rank)]);
  return with_host_groups(options, hosts);
}

ShardScheme::ShardScheme(const SchemeOptions& options, const SubGrid& grid)
    : ShardScheme(checked(options, grid.size), layout_of(checked(options, grid.size), grid.size), grid) {}

ShardScheme::ShardScheme(SchemeOptions options, const MeshLayout& layout, const SubGrid& grid)
    : partition(grid.partition),
      options_(std::move(options)),
      data_mesh_(layout.axes, grid.index, grid.size, layout.order),
      mesh_(mesh_of(layout, grid)),
      shares_(grid.shares) {
  for (const MeshAxis& axis : grid.beside) beside.push_back(axis.name);
  set_roles(layout);
  if (options_.mesh) check_roles();
}

ShardScheme ShardScheme::at(int rank) const {
  ShardScheme other = *this;
  other.mesh_ = mesh_.at(rank);
  return other;
}

bool ShardScheme::shards_parameters() const {
  return options_.mesh ? !options_.mesh->runtime.empty() : has_sharded_parameters(options_.strategy);
}

std::string_view ShardScheme::name() const { return options_.mesh ? "mesh" : name_of(options_.strategy); }

void ShardScheme::set_roles(const MeshLayout& layout) {
  runtime = layout.runtime;
  master = layout.master;
  replicate = layout.replicate;
  if (!options_.reshard_after_forward.is_off()) between = layout.between.value_or(runtime);
  Axes all;
  for (const MeshAxis& axis : data_mesh_.axes()) all.push_back(axis.name);
  // An axis of one rank shards nothing: nested groups of all ranks are zero3, groups of one rank zero2.
  for (Axes* axes : {&all, &runtime, &between, &master, &replicate}) {
    std::erase_if(*axes, [&](const std::string& axis) { return mesh_.size(axis) == 1; });
  }

  const bool is_hierarchical = !runtime.empty() && runtime != master;
  reduced = is_hierarchical ? runtime : master;
  if (options_.deterministic) reduced = all;
  if (options_.reduce_every_micro_batch) accumulator = reduced;
}

/// Checks the roles; those that a strategy makes hold anyway.
void ShardScheme::check_roles() const {
  for (const Axes* axes : {&runtime, &between, &master, &replicate}) {
    for (std::size_t i = 0; i < axes->size(); ++i) {
      if (std::find(axes->begin(), axes->begin() + static_cast<std::ptrdiff_t>(i), (*axes)[i]) ==
          axes->begin() + static_cast<std::ptrdiff_t>(i))
        continue;
      refuse_roles(fmt::format("a list has axis {} twice", (*axes)[i]), "name each axis once");
    }
  }
  for (const MeshAxis& axis : data_mesh_.axes()) {  // along the axes beside nothing is exchanged
    if (axis.size == 1 || has(master, axis.name) != has(replicate, axis.name)) continue;
    refuse_roles(fmt::format("axis {} is in {} of `master` and `replicate`", axis.name,
                             has(master, axis.name) ? "both" : "neither"),
                 "name it in one: masters are cut over it, or its ranks are replicas");
  }
  if (!begins_with(master, runtime)) {
    refuse_roles(fmt::format("`runtime` ({}) is not the beginning of `master` ({})", fmt::join(runtime, ", "),
                             fmt::join(master, ", ")),
                 "parameters are cut over none, all, or the first of the masters' axes");
  }
  const bool is_hierarchical = !runtime.empty() && runtime != master;
  if (is_hierarchical && !replicate.empty()) {
    refuse_roles("masters are cut finer than parameters, and there are replicas", "do without one of the two");
  }
  const auto is_sharded = [this](const std::string& axis) { return has(runtime, axis); };
  if (!std::all_of(between.begin(), between.end(), is_sharded)) {
    refuse_roles(fmt::format("`between` ({}) has an axis that `runtime` has not", fmt::join(between, ", ")),
                 "use axes of `runtime`");
  }
  if (is_hierarchical && between != runtime && !between.empty()) {
    refuse_roles("masters are cut finer than parameters, and those otherwise between forward and backward",
                 "do without one of the two");
  }
  if (options_.deterministic && (!data_mesh_.is_in_rank_order() || !begins_with(reduced, master))) {
    refuse_roles("gradients are not folded in the order of ranks as these axes lie",
                 "for a deterministic training list the axes of `master` first in the mesh, and give no order");
  }
}

ShardScheme::Slice ShardScheme::slice(const Axes& axes) const {
  Slice slice;
  for (const std::string& axis : axes) {
    slice.index = slice.index * mesh_.size(axis) + mesh_.coordinate(axis);
    slice.count *= mesh_.size(axis);
  }
  return slice;
}

ShardScheme::Axes ShardScheme::without(const Axes& all, const Axes& some) {
  Axes rest;
  for (const std::string& axis : all)
    if (std::find(some.begin(), some.end(), axis) == some.end()) rest.push_back(axis);
  return rest;
}

ShardScheme::Axes ShardScheme::holders() const {
  Axes axes = partition;
  axes.insert(axes.end(), master.begin(), master.end());
  return axes;
}

int ShardScheme::finest() const {
  int finest = 1;
  for (const Axes* axes : {&runtime, &between, &reduced, &master}) finest = std::lcm(finest, slice(*axes).count);
  return finest;
}

UnitSchedule ShardScheme::unit_schedule() const {
  UnitSchedule unit{.reshard_after_forward = !options_.reshard_after_forward.is_off(),
                    .reduce_every_micro_batch = options_.reduce_every_micro_batch,
                    .keep_unsharded = runtime.empty() && !master.empty()};
  if (between != runtime && !between.empty()) {
    unit.kept = UnitSchedule::Kept::of_forward;
  } else if (!runtime.empty() && runtime != master) {
    unit.kept = UnitSchedule::Kept::of_gather;
  }
  using Final = UnitSchedule::Final;
  unit.final_step = !has_final_step()                                             ? Final::none
                    : options_.all_reduce_every_micro_batch && !replicate.empty() ? Final::every
                                                                                  : Final::last;
  return unit;
}

std::string ShardScheme::describe() const {
  const auto over = [&](const Axes& axes) {
    const int count = slice(axes).count;
    return count == 1 ? std::string("whole") : fmt::format("over {} ranks", count);
  };
  std::string text = fmt::format(
      "{}: parameters {}, between forward and backward {}, gradients between micro-batches {}, optimizer state {}",
      name(), over(runtime), over(between), over(accumulator), over(master));
  if (const int copies = slice(replicate).count; copies > 1) text += fmt::format(", {} replicas", copies);
  if (!beside.empty()) text += fmt::format(", beside {}", fmt::join(beside, ", "));
  return text;
}

}  // namespace zs
