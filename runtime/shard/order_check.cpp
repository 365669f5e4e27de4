#include "runtime/shard/order_check.h"

#include <algorithm>
#include <array>

#include "runtime/base/random.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

constexpr std::int64_t kHashes = 2;
constexpr std::size_t kKeptSteps = 4;  // a host that is further ahead of its streams learns no names
constexpr std::int64_t kNothing = -1;

bool is_communication(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::wait_gathered:
    case Action::Kind::free_full:
    case Action::Kind::set_aside:
    case Action::Kind::give_back:
    case Action::Kind::begin_gradient:
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

/// One of what ranks must have alike of a unit.
struct Fact {
  const char* name;
  std::string (*text)(std::int64_t value);  // null: a hash, which says nothing
};

std::string number(std::int64_t value) { return fmt::to_string(value); }
std::string dtype(std::int64_t value) { return std::string(name_of(static_cast<DType>(value))); }
std::string wire(std::int64_t value) { return static_cast<Wire>(value) == Wire::int8 ? "int8" : "exact"; }
std::string validation(std::int64_t value) { return value != 0 ? "f32" : "as in training"; }

constexpr std::array kFacts = {Fact{"name", nullptr},
                               Fact{"parameters", dtype},
                               Fact{"gradients", dtype},
                               Fact{"validation", validation},
                               Fact{"gathers travel", wire},
                               Fact{"gradients travel", wire},
                               Fact{"elements", number},
                               Fact{"elements of a shard", number},
                               Fact{"names and shapes of its parameters, and where they are cut", nullptr},
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
    add(static_cast<std::uint64_t>(view.dim) << 1 | static_cast<std::uint64_t>(view.is_whole));
  }
  return hash;
}

std::array<std::int64_t, kFacts.size()> facts_of(const FlatParameter& unit, const ShardScheme& scheme) {
  const Precision& precision = unit.precision;
  const ShardGroups::Over over = ShardGroups::axes_of(scheme);
  const auto ranks = [&](const ShardScheme::Axes& axes) { return std::int64_t{scheme.slice(axes).count}; };
  return {static_cast<std::int64_t>(hash_name(unit.name)),
          static_cast<std::int64_t>(precision.param),
          static_cast<std::int64_t>(precision.reduce),
          std::int64_t{precision.is_full_in_evaluation},
          static_cast<std::int64_t>(precision.gather_wire),
          static_cast<std::int64_t>(precision.reduce_wire),
          unit.layout->numel(),
          unit.layout->shard_elems(),
          static_cast<std::int64_t>(hash_of_views(*unit.layout)),
          ranks(over.gather),
          ranks(over.gather_small),
          ranks(over.reduce),
          ranks(over.finish)};
}

}  // namespace

OrderMismatch::OrderMismatch(std::int64_t step, const std::string& detail)
    : Error(ExitCode::ranks_disagree, fmt::format("the ranks disagree on the order of communication in step {}{}", step + 1, detail), {},
            "every rank must run the same units, of the same dtypes and sizes, in the same order, in as many micro-batches"),
      step_(step) {}

OrderCheck::OrderCheck(Executor& executor) : executor_(executor) {
  if (executor.ranks() == 1) return;
  Context& context = executor.context();
  hashes_ = context.pool().acquire(kHashes * size_of(DType::i64), context.stream(), "scalars");
}

std::int64_t OrderCheck::entry_of(const Action& action, Mode mode) const {
  const FlatParameter& unit = executor_.units()[static_cast<std::size_t>(action.unit)];
  return static_cast<std::int64_t>(dtype_of(action.kind, unit)) << 32 | static_cast<std::int64_t>(mode) << 28 |
         static_cast<std::int64_t>(action.kind) << 20 | action.unit;
}

void OrderCheck::note(const std::vector<Action>& actions, Mode mode) {
  for (const Action& action : actions) {
    if (!is_communication(action.kind)) continue;
    const std::int64_t entry = entry_of(action, mode);
    hash_ = mix64(hash_ ^ static_cast<std::uint64_t>(entry)) + hash_name(executor_.units()[static_cast<std::size_t>(action.unit)].name);
    list_.push_back(entry);
  }
}

void OrderCheck::note(const FlatParameter& unit) {
  for (const std::int64_t fact : facts_of(unit, executor_.scheme())) {
    hash_ = mix64(hash_ ^ static_cast<std::uint64_t>(fact));
    units_.push_back(fact);
  }
}

std::int64_t OrderCheck::close_step() {
  compared_.push_front(std::exchange(list_, {}));
  if (compared_.size() > kKeptSteps) compared_.pop_back();
  return steps_++;
}

void OrderCheck::compare() {
  const std::int64_t step = close_step();
  if (executor_.ranks() == 1 || defers_) return;
  Context& context = executor_.context();
  const Buffer hashes = hashes_.buffer(DType::i64, kHashes);
  const auto hash = static_cast<std::int64_t>(hash_);
  context.launch({"order_hash", {}, {hashes}}, upload_of(context.kernels(), hashes, std::vector{hash, ~hash}));
  executor_.compute_comm().all_reduce(context.stream(), "order", hashes, ReduceOp::max);
  launch_on_host(context, {"order_check", {hashes}, {}}, [step](ExecContext&, const std::vector<Buffer>& reads) {
    const auto* const found = reads[0].as<std::int64_t>();
    if (found[0] != ~found[1]) throw OrderMismatch(step);
  });
}

void OrderCheck::compare_replayed(bool are_equal) {
  close_step();
  settle(are_equal);
}

void OrderCheck::settle(bool are_equal) const {
  if (!are_equal) throw OrderMismatch(steps_ - 1);
}

void OrderCheck::forget() { list_.clear(); }

std::string OrderCheck::unit_name(std::size_t unit) const {
  return unit < executor_.units().size() ? executor_.units()[unit].name : fmt::to_string(unit);
}

std::string OrderCheck::text_of(std::int64_t entry) const {
  if (entry == kNothing) return "nothing more";
  const auto kind = static_cast<Action::Kind>(entry >> 20 & 0xff);
  const bool is_eval = (entry >> 28 & 1) != 0;
  return fmt::format("{}({}) {}{}", name_of(kind), unit_name(static_cast<std::size_t>(entry & 0xfffff)),
                     name_of(static_cast<DType>(entry >> 32)), is_eval ? " in a validation" : "");
}

std::vector<std::int64_t> OrderCheck::gather(const std::vector<std::int64_t>& own) {
  Context& context = executor_.context();
  const std::int64_t count = std::ssize(own), ranks = executor_.ranks();
  const Memory mine = context.pool().acquire(count * size_of(DType::i64), context.stream(), "scalars"),
               all = context.pool().acquire(ranks * count * size_of(DType::i64), context.stream(), "scalars");
  const Buffer in = mine.buffer(DType::i64, count), out = all.buffer(DType::i64, ranks * count);
  context.launch({"order_list", {}, {in}}, upload_of(context.kernels(), in, own));
  executor_.compute_comm().all_gather(context.stream(), "order_lists", in, out);
  const HostView lists(context, context.stream(), out);
  return {lists.as<std::int64_t>(), lists.as<std::int64_t>() + out.elems};
}

/// Every rank's list, padded to one length with kNothing.
std::vector<OrderCheck::List> OrderCheck::exchange(const List& own) {
  const std::vector<std::int64_t> lengths = gather({std::ssize(own)});
  const auto length = static_cast<std::size_t>(std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end())));
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

void OrderCheck::explain(OrderMismatch mismatch) {
  find_difference(units_, [&](std::size_t at, std::size_t rank, std::int64_t first, std::int64_t other) {
    const Fact& fact = kFacts[at % kFacts.size()];
    const std::string unit = fmt::format(", unit {}, {}: ", unit_name(at / kFacts.size()), fact.name);
    if (fact.text == nullptr && first != kNothing && other != kNothing)
      throw OrderMismatch(mismatch.step(), fmt::format("{}rank {} differs from rank 0", unit, rank));
    const auto text = [&](std::int64_t value) -> std::string {
      if (value == kNothing) return "no such unit";
      return fact.text == nullptr ? "one" : fact.text(value);
    };
    throw OrderMismatch(mismatch.step(), fmt::format("{}rank 0 {}, rank {} {}", unit, text(first), rank, text(other)));
  });
  const std::int64_t age = steps_ - 1 - mismatch.step();
  if (age < 0 || age >= std::ssize(compared_)) throw mismatch;
  find_difference(compared_[static_cast<std::size_t>(age)], [&](std::size_t at, std::size_t rank, std::int64_t first, std::int64_t other) {
    throw OrderMismatch(mismatch.step(),
                        fmt::format(", operation {}: rank 0 {}, rank {} {}", at + 1, text_of(first), rank, text_of(other)));
  });
  throw OrderMismatch(mismatch.step(), ", in a micro-batch that was abandoned");
}

}  // namespace zs
