#include "bench/step/traffic_table.h"

#include <algorithm>

#include "model/train/plan/plan.h"
#include "runtime/base/units.h"

namespace zs::bench {
namespace {

struct Variant {
  std::string name, strategy;
  bool has_group = false, reduces_each = true, reshards_to_group = false;
};

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {{"ddp", "ddp"},
                                           {"zero1", "zero1", false, false},
                                           {"zero2", "zero2"},
                                           {"zero3", "zero3"},
                                           {"zero3, reduce once", "zero3", false, false},
                                           {"zero3, reshard k", "zero3", false, true, true},
                                           {"shard_grad_op", "shard_grad_op", false, false},
                                           {"hsdp", "hsdp", true},
                                           {"nested, reduce once", "nested", true, false},
                                           {"nested", "nested", true}};
  return all;
}

Config config_of(const StepOptions& step, const TrafficOptions& options, const Variant& variant) {
  Config config = step_config(step, static_cast<int>(options.ranks));
  config.shard.strategy = variant.strategy;
  config.shard.zero_copy = "off";  // the formulas are for ranks of several hosts
  config.shard.group_size = variant.has_group ? options.group : 0;
  config.shard.reduce_every_micro_batch = variant.reduces_each;
  config.shard.reshard_after_forward = true;
  if (variant.reshards_to_group) config.shard.reshard_after_forward = Reshard::over(options.group);
  check_ranks(config, static_cast<int>(options.ranks));
  return config;
}

/// Of what rank 0 sends to the ranks that share `axes`, the part for those beyond its group of `group` neighbours.
std::int64_t leaving(const ShardScheme& scheme, const ShardScheme::Axes& axes, std::int64_t group, std::int64_t sent) {
  const std::vector<int> ranks = scheme.ranks_over(axes);
  const auto others = std::ssize(ranks) - 1,
             beyond = std::count_if(ranks.begin(), ranks.end(), [&](int rank) { return rank >= group; });
  return others == 0 ? 0 : sent * beyond / others;
}

TrafficRow row_of(const StepOptions& step, const TrafficOptions& options, const Variant& variant) {
  const Config config = config_of(step, options, variant);
  const TrainPlan plan =
      make_plan(config, {.rank = 0, .ranks = static_cast<int>(options.ranks), .has_every_micro_batch = true});
  const ShardScheme scheme(scheme_options(config), 0, static_cast<int>(options.ranks));
  TrafficRow row{.strategy = variant.name,
                 .parameters_sent = plan.sent.parameter_bytes(),
                 .gradients_sent = plan.sent.gradient_bytes(),
                 .between_steps = plan.persistent_bytes,
                 .peak = plan.step_peak_bytes};
  const ShardGroups::Over over = ShardGroups::axes_of(scheme);
  const std::pair<const ShardScheme::Axes*, const CommTraffic*> parts[] = {
      {&over.gather, &plan.sent.gather},
      {&over.gather_small, &plan.sent.gather_small},
      {&over.reduce, &plan.sent.reduce},
      {&over.finish, &plan.sent.finish},
      {&over.whole, &plan.sent.whole}};
  for (const auto& [axes, traffic] : parts)
    row.left_group += leaving(scheme, *axes, options.group, traffic->sent_bytes());
  return row;
}

}  // namespace

std::vector<TrafficRow> traffic_rows(const StepOptions& step, const TrafficOptions& options) {
  if (options.ranks % options.group != 0) {
    throw Error(ExitCode::usage, fmt::format("groups of {} do not divide {} ranks", options.group, options.ranks),
                "--traffic-group", "give a divisor of --traffic-ranks");
  }
  std::vector<TrafficRow> rows;
  for (const Variant& variant : variants()) rows.push_back(row_of(step, options, variant));
  return rows;
}

std::string traffic_table(const StepOptions& step, const TrafficOptions& options) {
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1024.0 * 1024.0); };
  std::string text = fmt::format(
      "{}, {}: MiB a rank and step, {} in groups of {}, {} of {} x {} tokens\n\n{:<20}{:>12}{:>12}{:>14}{:>15}{:>10}\n",
      step.preset, step.dtype, format_number(options.ranks, "rank"), options.group,
      fmt::format("{} micro-batch{}", step.micro_batches, step.micro_batches == 1 ? "" : "es"), step.micro_batch,
      step.sequence, "strategy", "parameters", "gradients", "beyond group", "between steps", "peak");
  for (const TrafficRow& row : traffic_rows(step, options)) {
    text += fmt::format("{:<20}{:>12.1f}{:>12.1f}{:>14.1f}{:>15.1f}{:>10.1f}\n", row.strategy, mib(row.parameters_sent),
                        mib(row.gradients_sent), mib(row.left_group), mib(row.between_steps), mib(row.peak));
  }
  text += "\nparameters, gradients: sent by each rank; beyond group: of both, to ranks of other groups.\n";
  return text + "between steps, peak: memory that a rank holds.";
}

}  // namespace zs::bench
