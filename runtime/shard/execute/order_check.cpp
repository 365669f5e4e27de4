#include "runtime/shard/execute/order_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "comm/inline_stream.h"
#include "runtime/base/random.h"
#include "runtime/shard/execute/executor.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

constexpr std::int64_t kHashes = 2;
constexpr std::int64_t kNothing = -1;
constexpr std::int64_t kWriteBack = 0x80, kScatter = 0x81, kEnter = 0x82;  // beside Action::Kind
constexpr const char* kSame = "give every rank the same; nothing of the step was applied";

bool is_communication(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::wait_gathered:
    case Action::Kind::free_full:
    case Action::Kind::defer_free:
    case Action::Kind::free_deferred:
    case Action::Kind::begin_gradient:
    case Action::Kind::park_gradient:
    case Action::Kind::reload_gradient:
    case Action::Kind::resume_gradient:
    case Action::Kind::park_sum:
    case Action::Kind::reload_sum:
    case Action::Kind::release_gradient: return false;
    default: return true;
  }
}

DType dtype_of(Action::Kind kind, const FlatParameter& unit) {
  switch (kind) {
    case Action::Kind::reduce: return unit.precision.reduce;
    case Action::Kind::finish: return DType::f32;
    default: return unit.gathered_dtype;
  }
}

/// Fact about a unit that ranks must have alike.
struct Fact {
  const char* name;
  std::string (*text)(std::int64_t value);  // null: a hash, which says nothing
};

std::string number(std::int64_t value) { return fmt::to_string(value); }
std::string dtype(std::int64_t value) { return std::string(name_of(static_cast<DType>(value))); }
std::string gather_format(std::int64_t value) {
  if (value == 0) return "exact";
  for (const GatherFormat* const known : {int8_format(), fp8_format()})
    if (known->fingerprint() == static_cast<std::uint64_t>(value)) return std::string(known->name());
  return fmt::format("format {:x}", static_cast<std::uint64_t>(value));
}
std::string held_format(std::int64_t value) {
  if (value == 0) return "numbers";
  for (const FrozenFormat* const known : {frozen_int8(), frozen_nf4()})
    if (known->fingerprint() == static_cast<std::uint64_t>(value)) return std::string(known->name);
  return fmt::format("format {:x}", static_cast<std::uint64_t>(value));
}
std::string wire(std::int64_t value) { return static_cast<CommDType>(value) == CommDType::int8 ? "int8" : "exact"; }
std::string validation(std::int64_t value) { return value != 0 ? "f32" : "as in training"; }

constexpr std::array kFacts = {Fact{"name", nullptr},
                               Fact{"parameters", dtype},
                               Fact{"gradients", dtype},
                               Fact{"validation", validation},
                               Fact{"gathers travel", gather_format},
                               Fact{"weights are held as", held_format},
                               Fact{"gradients travel", wire},
                               Fact{"elements", number},
                               Fact{"elements of a shard", number},
                               Fact{"names and shapes of its parameters, and where they are cut", nullptr},
                               Fact{"initial values and decay of its parameters", nullptr},
                               Fact{"ranks that gather it", number},
                               Fact{"ranks that gather it after forward", number},
                               Fact{"ranks of the first step of its reduction", number},
                               Fact{"ranks of the second step of its reduction", number}};

std::uint64_t hash_of_views(const UnitLayout& layout) {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t value) { hash = mix64(hash ^ value); };
  for (const FlatView& view : layout.views()) {
    add(hash_name(view.name));
    for (const std::int64_t dim : view.shape.dims()) add(static_cast<std::uint64_t>(dim));
    for (const std::int64_t rows : view.matrix_rows) add(static_cast<std::uint64_t>(rows));
    add(static_cast<std::uint64_t>(view.dim) << 1 | static_cast<std::uint64_t>(view.is_whole));
    if (!view.part.is_whole())
      add(static_cast<std::uint64_t>(view.part.dim) << 32 | static_cast<std::uint64_t>(view.part.count));
  }
  return hash;
}

std::uint64_t hash_of_values(const UnitLayout& layout) {
  std::uint64_t hash = 0;
  for (const FlatView& view : layout.views()) {
    for (const float number : {view.init.normal_std, view.init.constant, view.init.uniform_bound})
      hash = mix64(hash ^ std::bit_cast<std::uint32_t>(number));
    hash = mix64(hash ^ (view.init.function ? 2u : 0u) ^ (view.has_decay ? 1u : 0u));
  }
  return hash;
}

std::array<std::int64_t, kFacts.size()> facts_of(const FlatParameter& unit) {
  const ShardScheme& scheme = unit.placement->scheme;
  const MixedPrecisionPolicy& precision = unit.precision;
  const ShardGroups::Over over = ShardGroups::axes_of(scheme);
  const auto ranks = [&](const ShardScheme::Axes& axes) { return std::int64_t{scheme.slice(axes).count}; };
  return {static_cast<std::int64_t>(hash_name(unit.name)),
          static_cast<std::int64_t>(precision.param),
          static_cast<std::int64_t>(precision.reduce),
          std::int64_t{precision.is_full_in_evaluation},
          static_cast<std::int64_t>(precision.gather_format != nullptr ? precision.gather_format->fingerprint() : 0),
          static_cast<std::int64_t>(unit.is_encoded() ? unit.held_format->fingerprint() : 0),
          static_cast<std::int64_t>(precision.reduce_comm_dtype),
          unit.layout->numel(),
          unit.layout->shard_elems(),
          static_cast<std::int64_t>(hash_of_views(*unit.layout)),
          static_cast<std::int64_t>(hash_of_values(*unit.layout)),
          ranks(over.gather),
          ranks(over.gather_small),
          ranks(over.reduce),
          ranks(over.finish)};
}

}  // namespace

OrderMismatch::OrderMismatch(std::int64_t step, const std::string& what, const char* what_to_do)
    : Error(ExitCode::ranks_disagree, what, {}, what_to_do), step_(step) {}

OrderMismatch::OrderMismatch(std::int64_t step, const std::string& detail)
    : OrderMismatch(step,
                    fmt::format("the ranks disagree on the order of communication in step {}{}", step + 1, detail),
                    "every rank must run the same units, of the same dtypes and sizes, in the same order, in as many "
                    "micro-batches") {}

OrderCheck::OrderCheck(Executor& executor, World& world) : executor_(executor) {
  if (executor.ranks() == 1) return;
  Context& context = executor.context();
  hashes_ = context.pool().acquire(kHashes * size_of(DType::i64), context.stream(), "scalars");
  hosts_ = world.host_communicator();
  host_stream_ = std::make_unique<InlineStream>();
}

OrderCheck::~OrderCheck() = default;

std::int64_t OrderCheck::entry_of(const Action& action, Mode mode) const {
  const FlatParameter& unit = executor_.units()[static_cast<std::size_t>(action.unit)];
  return static_cast<std::int64_t>(dtype_of(action.kind, unit)) << 32 | static_cast<std::int64_t>(mode) << 28 |
         static_cast<std::int64_t>(action.kind) << 20 | action.unit;
}

void OrderCheck::add_operation(std::int64_t entry, int unit) {
  hash_ = mix64(hash_ ^ static_cast<std::uint64_t>(entry)) +
          hash_name(executor_.units()[static_cast<std::size_t>(unit)].name);
  operations_.push_back(entry);
}

void OrderCheck::note(const std::vector<Action>& actions, Mode mode) {
  for (const Action& action : actions) {
    if (is_communication(action.kind)) add_operation(entry_of(action, mode), action.unit);
  }
}

void OrderCheck::note_enter(int unit, std::int64_t options) {
  add_operation(options << 32 | kEnter << 20 | unit, unit);
}

void OrderCheck::note_write_back(int unit) { add_operation(kWriteBack << 20 | unit, unit); }

void OrderCheck::note_scatter(int unit) { add_operation(kScatter << 20 | unit, unit); }

void OrderCheck::note(const FlatParameter& unit) {
  for (const std::int64_t fact : facts_of(unit)) {
    hash_ = mix64(hash_ ^ static_cast<std::uint64_t>(fact));
    units_.push_back(fact);
  }
}

void OrderCheck::set(std::string_view setting, std::string value) {
  const auto known =
      std::find_if(settings_.begin(), settings_.end(), [&](const Setting& other) { return other.name == setting; });
  if (known == settings_.end()) {
    settings_.push_back({std::string(setting), std::move(value)});
  } else {
    known->value = std::move(value);
  }
}

OrderCheck::List OrderCheck::trained() const {
  List trained;
  for (const FlatParameter& unit : executor_.units())
    for (const Parameter* parameter : unit.parameters) trained.push_back(std::int64_t{parameter->is_trainable()});
  return trained;
}

std::uint64_t OrderCheck::hash() const {
  std::uint64_t hash = hash_;
  for (const auto& [name, value] : settings_) hash = mix64(hash ^ hash_name(name)) ^ hash_name(value);
  for (const std::int64_t is_trained : trained()) hash = mix64(hash ^ static_cast<std::uint64_t>(is_trained));
  return hash;
}

std::shared_ptr<const OrderCheck::Compared> OrderCheck::take_step() {
  last_ = std::make_shared<const Compared>(
      Compared{steps_, names(), units_, settings_, trained(), std::exchange(operations_, {})});
  steps_ += std::exchange(has_ended_, false) ? 1 : 0;
  is_due_ = false;
  return last_;
}

void OrderCheck::compare_if_due() {
  if (!is_due_) return;
  const auto hash = static_cast<std::int64_t>(this->hash());
  const std::shared_ptr<const Compared> compared = take_step();
  if (executor_.ranks() == 1 || defers_) return;
  Context& context = executor_.context();
  const Buffer hashes = hashes_.buffer(DType::i64, kHashes);
  context.launch({"order_hash", {}, {hashes}}, upload_of(context.kernels(), hashes, std::vector{hash, ~hash}));
  executor_.compute_comm().all_reduce(context.stream(), "order", hashes, ReduceOp::max);
  launch_on_host(context, {"order_check", {hashes}, {}},
                 [this, compared](ExecContext&, const std::vector<Buffer>& reads) {
                   const auto* const found = reads[0].as<std::int64_t>();
                   if (found[0] != ~found[1]) explain(*compared);
                 });
}

void OrderCheck::compare_replayed(bool are_equal) {
  has_ended_ = true;
  take_step();
  settle(are_equal);
}

void OrderCheck::settle(bool are_equal) {
  if (!are_equal) explain(*last_);
}

void OrderCheck::begin_micro_batch() {
  compare_if_due();  // compares a step that nobody took the gradients of
  before_micro_batch_ = {hash_, operations_.size()};
}

void OrderCheck::forget() {
  hash_ = before_micro_batch_.hash;
  operations_.resize(before_micro_batch_.operations);
}

std::shared_ptr<const OrderCheck::Names> OrderCheck::names() {
  if (names_ && names_->units.size() == executor_.units().size()) return names_;
  Names names;
  for (const FlatParameter& unit : executor_.units()) {
    names.units.push_back(unit.name);
    for (const Parameter* parameter : unit.parameters) names.parameters.push_back(parameter->name());
  }
  return names_ = std::make_shared<const Names>(std::move(names));
}

std::string OrderCheck::text_of(std::int64_t entry, const Names& names) {
  if (entry == kNothing) return "nothing more";
  const std::int64_t kind = entry >> 20 & 0xff;
  const std::string unit = names.unit(static_cast<std::size_t>(entry & 0xfffff));
  if (kind == kWriteBack) return fmt::format("write_back({})", unit);
  if (kind == kScatter) return fmt::format("scatter({})", unit);
  if (kind == kEnter) return fmt::format("enter_scope({}) with options {:#x}", unit, entry >> 32);
  const bool is_eval = (entry >> 28 & 1) != 0;
  return fmt::format("{}({}) {}{}", name_of(static_cast<Action::Kind>(kind)), unit,
                     name_of(static_cast<DType>(entry >> 32)), is_eval ? " in a validation" : "");
}

OrderCheck::List OrderCheck::gather(const List& own) {
  const std::int64_t count = std::ssize(own);
  List all(own.size() * static_cast<std::size_t>(hosts_->size()));
  const Buffer lists{all.data(), std::ssize(all), DType::i64, DeviceKind::cpu},
      mine = lists.slice(hosts_->rank() * count, count);
  std::copy(own.begin(), own.end(), mine.as<std::int64_t>());
  hosts_->all_gather(*host_stream_, "order_lists", mine, lists);
  return all;
}

/// Every rank's list, padded to one length with kNothing.
std::vector<OrderCheck::List> OrderCheck::exchange(const List& own) {
  const List lengths = gather({std::ssize(own)});
  const auto length =
      static_cast<std::size_t>(std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end())));
  List padded = own;
  padded.resize(length, kNothing);
  const List all = gather(padded);
  std::vector<List> lists;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * length);
    lists.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
  }
  return lists;
}

template <class Found>
void OrderCheck::find_difference(const List& own, const Found& found) {
  const std::vector<List> lists = exchange(own);
  for (std::size_t at = 0; at < lists[0].size(); ++at) {
    for (std::size_t rank = 1; rank < lists.size(); ++rank) {
      if (lists[rank][at] != lists[0][at]) found(at, rank, lists[0][at], lists[rank][at]);
    }
  }
}

void OrderCheck::explain_units(const Compared& compared) {
  find_difference(compared.units, [&](std::size_t at, std::size_t rank, std::int64_t first, std::int64_t other) {
    const Fact& fact = kFacts[at % kFacts.size()];
    const std::string unit = fmt::format(", unit {}, {}: ", compared.names->unit(at / kFacts.size()), fact.name);
    if (fact.text == nullptr && first != kNothing && other != kNothing)
      throw OrderMismatch(compared.step, fmt::format("{}rank {} differs from rank 0", unit, rank));
    const auto text = [&](std::int64_t value) -> std::string {
      if (value == kNothing) return "no such unit";
      return fact.text == nullptr ? "one" : fact.text(value);
    };
    throw OrderMismatch(compared.step, fmt::format("{}rank 0 {}, rank {} {}", unit, text(first), rank, text(other)));
  });
}

/// Place of the first setting of any rank that another has not, or has otherwise; by name, in the order of rank 0.
std::optional<OrderCheck::Difference> OrderCheck::find_setting(const std::vector<Setting>& settings) {
  List own;
  for (const auto& [name, value] : settings)
    own.insert(own.end(),
               {static_cast<std::int64_t>(hash_name(name) >> 1), static_cast<std::int64_t>(hash_name(value) >> 1)});
  const std::vector<List> lists = exchange(own);
  const auto value_of = [](const List& list, std::int64_t name) {
    for (std::size_t at = 0; at + 1 < list.size(); at += 2)
      if (list[at] == name) return list[at + 1];
    return kNothing;
  };
  for (const List& list : lists) {
    for (std::size_t at = 0; at + 1 < list.size() && list[at] != kNothing; at += 2)
      for (std::size_t rank = 1; rank < lists.size(); ++rank)
        if (value_of(lists[rank], list[at]) != value_of(lists[0], list[at])) return Difference{list[at], rank};
  }
  return std::nullopt;
}

/// Each is exchanged as its characters: only a run that ends gets here.
void OrderCheck::explain_settings(const Compared& compared) {
  const std::optional<Difference> found = find_setting(compared.settings);
  if (!found) return;
  const auto own = std::find_if(compared.settings.begin(), compared.settings.end(), [&](const Setting& setting) {
    return static_cast<std::int64_t>(hash_name(setting.name) >> 1) == found->name;
  });
  const Setting setting = own == compared.settings.end() ? Setting{"", "nothing"} : *own;
  const std::vector<List> names = exchange({setting.name.begin(), setting.name.end()}),
                          values = exchange({setting.value.begin(), setting.value.end()});
  const auto text = [](const List& list) {
    std::string text;
    for (const std::int64_t c : list)
      if (c != kNothing) text += static_cast<char>(c);
    return text;
  };
  const std::size_t rank = found->rank;
  const std::string name = text(names[0]).empty() ? text(names[rank]) : text(names[0]);
  throw OrderMismatch(compared.step,
                      fmt::format("the ranks disagree on the {} in step {}: rank 0 has {}, rank {} has {}", name,
                                  compared.step + 1, text(values[0]), rank, text(values[rank])),
                      kSame);
}

void OrderCheck::explain(const Compared& compared) {
  explain_units(compared);
  explain_settings(compared);
  find_difference(compared.trained, [&](std::size_t at, std::size_t rank, std::int64_t first, std::int64_t other) {
    const auto text = [](std::int64_t is_trained) { return is_trained != 0 ? "trains it" : "has it frozen"; };
    throw OrderMismatch(
        compared.step,
        fmt::format("the ranks disagree on whether parameter {} is trained in step {}: rank 0 {}, rank {} {}",
                    compared.names->parameters.at(at), compared.step + 1, text(first), rank, text(other)),
        kSame);
  });
  find_difference(compared.operations, [&](std::size_t at, std::size_t rank, std::int64_t first, std::int64_t other) {
    throw OrderMismatch(compared.step,
                        fmt::format(", operation {}: rank 0 {}, rank {} {}", at + 1, text_of(first, *compared.names),
                                    rank, text_of(other, *compared.names)));
  });
  throw OrderMismatch(compared.step);
}

}  // namespace zs
