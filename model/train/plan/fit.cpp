#include "model/train/plan/fit.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "model/train/config/config_schema.h"
#include "model/train/plan/fit_settings.h"
#include "model/train/plan/resident_choice.h"

namespace zs {
namespace {

/// Keys that a setting may change.
constexpr const char* kFitKeys[] = {
    "train.micro_batch", "train.sequence",      "train.recompute", "shard.strategy",      "offload.weights",
    "offload.gradients", "offload.accumulator", "offload.moments", "offload.activations", "offload.resident_units"};

std::vector<std::string> differences(Config config, Config configured) {
  std::vector<std::string> changes;
  for (const char* name : kFitKeys) {
    const ConfigKey& key = *find_config_key(name);
    const ConfigSlot slot = key.slot(config);
    std::string value = toml_value(slot);
    if (value == toml_value(key.slot(configured))) continue;
    if (auto* const* list = std::get_if<std::vector<std::string>*>(&slot); list != nullptr && (*list)->size() == 1)
      value = toml_value(&(*list)->front());
    changes.push_back(fmt::format("{}={}", name, value));
  }
  return changes;
}

/// A setting as planned, whether it fits or not.
struct Planned {
  RankBytes bytes;
  std::int64_t peak_bytes = 0;
  double share = 0;
  bool fits() const { return share <= 1; }
};

double largest_share(const MemoryDemand& demand, const RankBytes& bytes, const std::vector<MemoryBudget>& budgets) {
  double share = 0;
  for (const MemoryBudget& budget : budgets)
    share = std::max(share, static_cast<double>(needed_bytes(demand, bytes, budget)) /
                                static_cast<double>(std::max<std::int64_t>(budget.bytes, 1)));
  return share;
}

class Search {
 public:
  explicit Search(const FitRequest& request)
      : request_(request), configured_(request.demand.config), settings_(fit_settings(request.demand)) {
    const std::int64_t batch = configured_.train.global_batch,
                       ranks = data_shares(configured_, request.demand.plan.ranks);
    const std::int64_t shared = batch % ranks == 0 ? batch / ranks : batch;  // else some micro-batch is empty anyway
    for (std::int64_t size = 1; size * ranks <= batch; ++size)
      if (shared % size == 0) sizes_.push_back(size);
  }

  std::vector<FitRow> rows() {
    std::vector<std::size_t> settings(settings_.size());
    std::iota(settings.begin(), settings.end(), std::size_t{0});
    std::vector<std::size_t> kept = fill(configured_.train.sequence, settings);
    if (kept.empty()) kept = {settings.back()};
    for (const std::int64_t sequence : other_sequences()) fill(sequence, kept);
    const auto size = [](const FitRow& row) {
      const Config::Train& train = row.demand.config.train;
      return std::pair(train.micro_batch * train.sequence, train.sequence);
    };
    std::stable_sort(rows_.begin(), rows_.end(), [&](const FitRow& a, const FitRow& b) { return size(a) > size(b); });
    return std::move(rows_);
  }

 private:
  /// Sequence lengths whose positions the model knows, and the data has samples for.
  std::vector<std::int64_t> other_sequences() const {
    if (!request_.tokens) return {};
    constexpr std::int64_t kLeast = 16;
    const std::int64_t set = configured_.train.sequence, context = configured_.model.context;
    const auto [train, validation] = *request_.tokens;
    std::vector<std::int64_t> others;
    for (const std::int64_t length : {context, std::min(2 * set, context), set / 2, set / 4}) {
      const bool has_samples = length < train && (validation == 0 || length < validation);
      const bool is_new = length != set && std::find(others.begin(), others.end(), length) == others.end();
      if (length >= kLeast && has_samples && is_new) others.push_back(length);
    }
    return others;
  }

  MemoryDemand demand_of(std::size_t setting, std::int64_t sequence, std::int64_t size) const {
    MemoryDemand demand = request_.demand;
    demand.config = settings_[setting].config;
    demand.config.train.sequence = sequence;
    demand.config.train.micro_batch = size;
    if (request_.tokens && request_.tokens->validation > 0)
      demand.plan.validation_windows = (request_.tokens->validation - 1) / sequence;
    return demand;
  }

  const Planned& planned(std::size_t setting, std::int64_t sequence, std::int64_t size) {
    const auto [found, is_new] = planned_.try_emplace(std::tuple(setting, sequence, size));
    if (!is_new) return found->second;
    MemoryDemand demand = demand_of(setting, sequence, size);
    limit_validation(demand.config, demand.plan.validation_windows);
    try {
      const TrainPlan plan = make_plan(demand.config, demand.plan);
      found->second = {plan.rank_bytes(), plan.step_peak_bytes,
                       largest_share(demand, plan.rank_bytes(), request_.budgets)};
    } catch (const Error& error) {  // thrown by a setting that does not go with the model
      if (settings_[setting].is_configured || error.code() != ExitCode::config) throw;
      found->second.share = std::numeric_limits<double>::infinity();
    }
    return found->second;
  }

  /// True if the row is to say for how many units the device keeps what the setting moves elsewhere: where it is not as
  /// configured what moves, or that number is "auto".
  bool chooses_units(const Config& config) const {
    const Config::Offload &now = config.offload, &set = configured_.offload;
    return now.has_any_of_units() &&
           (set.resident_units.is_auto || std::tie(now.weights, now.gradients, now.accumulator, now.moments) !=
                                              std::tie(set.weights, set.gradients, set.accumulator, set.moments));
  }

  /// Row of a setting; where it chooses units, with as many of them on the device as fit.
  FitRow row_of(std::size_t setting, std::int64_t sequence, std::int64_t size) {
    const Planned& plan = planned(setting, sequence, size);
    FitRow row{demand_of(setting, sequence, size), plan.bytes, plan.peak_bytes, plan.share};
    if (chooses_units(row.demand.config)) {
      MemoryDemand demand = row.demand;
      limit_validation(demand.config, demand.plan.validation_windows);
      const std::int64_t units = choose_resident_units(demand, request_.budgets);
      demand.config.offload.resident_units = row.demand.config.offload.resident_units = {.value = units};
      const TrainPlan more = make_plan(demand.config, demand.plan);
      row.bytes = more.rank_bytes();
      row.peak_bytes = more.step_peak_bytes;
      row.share = largest_share(demand, row.bytes, request_.budgets);
    }
    row.changes = differences(row.demand.config, configured_);
    return row;
  }

  /// The index of the largest micro-batch that fits, from that of `least` on. A step of a single micro-batch may need
  /// less than one of two: it is looked at by itself.
  std::optional<std::size_t> largest(std::size_t setting, std::int64_t sequence, std::size_t least) {
    const auto at = [&](std::size_t i) -> const Planned& { return planned(setting, sequence, sizes_[i]); };
    std::size_t fits = least, exceeds = sizes_.size() - 1;
    if (at(exceeds).fits()) return exceeds;
    if (fits == exceeds || !at(fits).fits()) return std::nullopt;
    while (exceeds - fits > 1) {  // bytes grow about as the micro-batch does
      const double slope = (at(exceeds).share - at(fits).share) / static_cast<double>(sizes_[exceeds] - sizes_[fits]);
      const double guess = static_cast<double>(sizes_[fits]) + (1 - at(fits).share) / slope;
      std::size_t next = fits + 1;
      while (next + 1 < exceeds && static_cast<double>(sizes_[next + 1]) <= guess) ++next;
      (at(next).fits() ? fits : exceeds) = next;
    }
    return fits;
  }

  /// Rows of one sequence length: of those settings that allow a larger micro-batch than all cheaper ones do, and of
  /// the configured. Which these are.
  std::vector<std::size_t> fill(std::int64_t sequence, const std::vector<std::size_t>& settings) {
    std::vector<std::size_t> kept;
    std::size_t least = 0;
    for (const std::size_t setting : settings) {
      const std::size_t from = settings_[setting].is_configured ? 0 : least;
      if (from == sizes_.size()) continue;
      const auto found = largest(setting, sequence, from);
      if (!found) continue;
      rows_.push_back(row_of(setting, sequence, sizes_[*found]));
      kept.push_back(setting);
      least = std::max(least, *found + 1);
    }
    return kept;
  }

  const FitRequest& request_;
  const Config& configured_;
  std::vector<FitSetting> settings_;
  std::vector<std::int64_t> sizes_;  // that a micro-batch may have, ascending
  std::map<std::tuple<std::size_t, std::int64_t, std::int64_t>, Planned> planned_;
  std::vector<FitRow> rows_;
};

}  // namespace

std::vector<FitRow> find_fits(const FitRequest& request) { return Search(request).rows(); }

std::size_t nearest(const std::vector<FitRow>& rows) {
  ZS_CHECK(!rows.empty(), "the nearest of no settings");
  // Another micro-batch is the same training; another sequence length is not.
  const auto distance = [](const FitRow& row) {
    return std::count_if(row.changes.begin(), row.changes.end(),
                         [](const std::string& change) { return !change.starts_with("train.micro_batch="); });
  };
  const auto least = std::min_element(rows.begin(), rows.end(), [&](const FitRow& a, const FitRow& b) {
    const auto is_other = [](const FitRow& row) {
      return std::any_of(row.changes.begin(), row.changes.end(),
                         [](const std::string& change) { return change.starts_with("train.sequence="); });
    };
    return std::pair(is_other(a), distance(a)) < std::pair(is_other(b), distance(b));
  });
  return static_cast<std::size_t>(least - rows.begin());
}

}  // namespace zs
