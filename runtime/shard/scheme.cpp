#include "runtime/shard/scheme.h"

#include <algorithm>
#include <array>

#include "runtime/base/check.h"

namespace zs {
namespace {

constexpr std::array kNames = {"ddp", "zero1", "zero2", "zero3", "grad_op", "hsdp", "nested"};

// Axes: ranks of a small group, and groups. A scheme without groups has one axis.
const std::string kData = "data", kShard = "shard", kReplica = "replica", kNode = "node", kGroup = "group", kInner = "inner",
                  kOuter = "outer";

bool has_group_size(Strategy strategy) { return strategy == Strategy::hsdp || strategy == Strategy::nested; }
bool has_sharded_parameters(Strategy strategy) {
  return strategy == Strategy::zero3 || strategy == Strategy::grad_op || has_group_size(strategy);
}

/// `size` ranks a group in a job of `ranks`.
void check_divides(std::string_view what, std::int64_t size, int ranks) {
  if (size >= 1 && size <= ranks && ranks % size == 0) return;
  std::string sizes;
  for (int divisor = 1; divisor <= ranks; ++divisor)
    if (ranks % divisor == 0) sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", divisor);
  throw Error(ExitCode::config, fmt::format("{} {} does not divide the job's {} ranks", what, size, ranks), {}, "use one of " + sizes);
}

/// What only makes sense with some strategies is normalised or refused here.
SchemeOptions checked(SchemeOptions options, int ranks) {
  if (has_group_size(options.strategy)) {
    if (options.group_size == 0) {
      throw Error(ExitCode::config, fmt::format("shard.strategy \"{}\" needs a shard.group_size", name_of(options.strategy)), {},
                  "give the ranks of a small group, as a rule those of one host");
    }
    check_divides("shard.group_size", options.group_size, ranks);
  } else if (options.group_size != 0) {
    throw Error(ExitCode::config, fmt::format("shard.group_size does not go with shard.strategy \"{}\"", name_of(options.strategy)), {},
                "leave it out, or use hsdp or nested");
  }
  if (!has_sharded_parameters(options.strategy) || options.strategy == Strategy::grad_op) options.reshard_after_forward = false;
  if (options.strategy == Strategy::zero1) options.reduce_every_micro_batch = false;
  if (options.strategy == Strategy::zero2 || options.deterministic) options.reduce_every_micro_batch = true;
  if (options.deterministic) options.all_reduce_every_micro_batch = false;
  if (const std::int64_t group = options.reshard_after_forward.group(); group != 0) {
    if (options.strategy != Strategy::zero3) {
      throw Error(ExitCode::config,
                  fmt::format("shard.reshard_after_forward = {} does not go with shard.strategy \"{}\"", group, name_of(options.strategy)),
                  {}, "a number of ranks goes with zero3; use true or false");
    }
    check_divides("shard.reshard_after_forward", group, ranks);
    if (group == ranks) options.reshard_after_forward = true;
  }
  return options;
}

/// Small groups are of neighbouring ranks. Only where gradients are folded in the order of ranks, that order must be the one of the
/// slices, so that groups are of ranks that lie apart.
Mesh make_mesh(const SchemeOptions& options, int rank, int ranks) {
  const auto grid = [&](const std::string& large, const std::string& small, std::int64_t size, bool is_spread) {
    const MeshAxis outer{large, static_cast<int>(ranks / size)}, inner{small, static_cast<int>(size)};
    return is_spread ? Mesh({inner, outer}, rank, ranks) : Mesh({outer, inner}, rank, ranks);
  };
  if (options.strategy == Strategy::hsdp) return grid(kReplica, kShard, options.group_size, options.deterministic);
  if (options.strategy == Strategy::nested) return grid(kGroup, kNode, options.group_size, options.deterministic);
  if (const std::int64_t group = options.reshard_after_forward.group(); group != 0) return grid(kOuter, kInner, group, false);
  return Mesh({{kData, ranks}}, rank, ranks);
}

}  // namespace

std::string Reshard::str() const { return is_all() ? "true" : is_off() ? "false" : fmt::format("{}", ranks_); }

const char* name_of(Strategy strategy) { return kNames.at(static_cast<std::size_t>(strategy)); }

Strategy strategy_of(std::string_view name) {
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end())
    throw Error(ExitCode::config, fmt::format("there is no strategy {}", name), {},
                "use one of ddp, zero1, zero2, zero3, grad_op, hsdp, nested");
  return static_cast<Strategy>(found - kNames.begin());
}

ShardScheme::ShardScheme(const SchemeOptions& options, int rank, int ranks)
    : options_(checked(options, ranks)), rank_(rank), mesh_(make_mesh(options_, rank, ranks)) {
  set_roles();
}

bool ShardScheme::shards_parameters() const { return has_sharded_parameters(options_.strategy); }

void ShardScheme::set_roles() {
  Axes all;
  for (const MeshAxis& axis : mesh_.axes()) all.push_back(axis.name);
  switch (options_.strategy) {
    case Strategy::ddp: replicate = all; break;
    case Strategy::zero1:
    case Strategy::zero2: master = all; break;
    case Strategy::zero3:
    case Strategy::grad_op: runtime = master = all; break;
    case Strategy::hsdp:
      runtime = master = {kShard};
      replicate = {kReplica};
      break;
    case Strategy::nested:
      runtime = {kNode};
      master = {kNode, kGroup};
      break;
  }
  const Reshard reshard = options_.reshard_after_forward;
  if (reshard.is_all()) between = runtime;
  if (reshard.group() != 0) between = {kInner};
  // An axis of one rank shards nothing: nested groups of all ranks are zero3, groups of one rank zero2.
  for (Axes* axes : {&all, &runtime, &between, &master, &replicate}) {
    std::erase_if(*axes, [&](const std::string& axis) { return mesh_.size(axis) == 1; });
  }

  const bool is_hierarchical = !runtime.empty() && runtime != master;
  reduced = is_hierarchical ? runtime : master;
  if (options_.deterministic) reduced = all;
  if (options_.reduce_every_micro_batch) accumulator = reduced;
}

ShardScheme::Slice ShardScheme::slice(const Axes& axes) const {
  Slice slice;
  for (const std::string& axis : axes) {
    slice.index = slice.index * mesh_.size(axis) + mesh_.coordinate(axis);
    slice.count *= mesh_.size(axis);
  }
  return slice;
}

std::vector<int> ShardScheme::ranks_over(const Axes& axes) const {
  std::vector<int> ranks{rank_};
  for (const std::string& axis : axes) {
    std::vector<int> more;
    for (const int rank : ranks)
      for (const int along : mesh_.ranks_along(axis)) more.push_back(rank + along - rank_);
    ranks = std::move(more);
  }
  return ranks;
}

ShardScheme::Axes ShardScheme::without(const Axes& all, const Axes& some) {
  Axes rest;
  for (const std::string& axis : all)
    if (std::find(some.begin(), some.end(), axis) == some.end()) rest.push_back(axis);
  return rest;
}

int ShardScheme::finest() const {
  int most = 1;
  for (const Axes* axes : {&runtime, &between, &reduced, &master}) most = std::max(most, slice(*axes).count);
  return most;
}

SchedulerOptions ShardScheme::schedule(const Pacing& pacing) const {
  SchedulerOptions options{
      .prefetch = pacing.prefetch, .max_reductions_in_flight = pacing.max_reductions_in_flight, .keep_ends = pacing.keep_ends};
  options.limit = pacing.limit;
  options.prefetch_after_backward = pacing.prefetch_after_backward;
  options.delays_reductions = pacing.delays_reductions;
  options.reduces_unused = pacing.reduces_unused;
  options.reshard_after_forward = !options_.reshard_after_forward.is_off();
  options.reduce_every_micro_batch = options_.reduce_every_micro_batch;
  options.is_resident = runtime.empty() && !master.empty();
  if (between != runtime && !between.empty()) {
    options.kept = SchedulerOptions::Kept::of_forward;
  } else if (!runtime.empty() && runtime != master) {
    options.kept = SchedulerOptions::Kept::of_gather;
  }
  using Final = SchedulerOptions::Final;
  options.final_step = !has_final_step()                                             ? Final::none
                       : options_.all_reduce_every_micro_batch && !replicate.empty() ? Final::every
                                                                                     : Final::last;
  return options;
}

std::string ShardScheme::describe() const {
  const auto over = [&](const Axes& axes) {
    const int count = slice(axes).count;
    return count == 1 ? std::string("whole") : fmt::format("over {} ranks", count);
  };
  std::string text =
      fmt::format("{}: parameters {}, between forward and backward {}, gradients between micro-batches {}, optimizer state {}",
                  name_of(options_.strategy), over(runtime), over(between), over(accumulator), over(master));
  if (const int copies = slice(replicate).count; copies > 1) text += fmt::format(", {} replicas", copies);
  return text;
}

}  // namespace zs
