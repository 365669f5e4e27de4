#include "runtime/shard/order_check.h"

#include <algorithm>

#include "runtime/base/random.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

constexpr std::int64_t kHashes = 2;
constexpr std::size_t kKeptSteps = 4;  // a host that is further ahead of its streams learns no names
constexpr std::int32_t kNothing = -1;

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

}  // namespace

OrderMismatch::OrderMismatch(std::int64_t step, const std::string& detail)
    : Error(ExitCode::ranks_disagree, fmt::format("the ranks disagree on the order of communication in step {}{}", step + 1, detail), {},
            "every rank must run the same units, in the same order, in as many micro-batches"),
      step_(step) {}

OrderCheck::OrderCheck(Executor& executor) : executor_(executor) {
  if (executor.ranks() == 1) return;
  Context& context = executor.context();
  hashes_ = context.pool().acquire(kHashes * size_of(DType::i64), context.stream(), "scalars");
}

void OrderCheck::note(const std::vector<Action>& actions, Mode mode) {
  for (const Action& action : actions) {
    if (!is_communication(action.kind)) continue;
    const std::int32_t entry = static_cast<std::int32_t>(mode) << 28 | static_cast<std::int32_t>(action.kind) << 20 | action.unit;
    hash_ = mix64(hash_ ^ static_cast<std::uint64_t>(entry)) + hash_name(executor_.units()[static_cast<std::size_t>(action.unit)].name);
    list_.push_back(entry);
  }
}

void OrderCheck::note(const FlatParameter& unit) {
  for (const FlatView& view : unit.layout->views()) {
    const auto cut = static_cast<std::uint64_t>(view.dim) << 1 | static_cast<std::uint64_t>(view.is_whole);
    hash_ = mix64(hash_ ^ cut) + hash_name(view.name);
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

std::string OrderCheck::text_of(std::int32_t entry) const {
  if (entry == kNothing) return "nothing more";
  const auto kind = static_cast<Action::Kind>(entry >> 20 & 0xff);
  const bool is_eval = (entry >> 28 & 1) != 0;
  return fmt::format("{}({}){}", name_of(kind), executor_.units()[static_cast<std::size_t>(entry & 0xfffff)].name,
                     is_eval ? " in a validation" : "");
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
  std::vector<std::int64_t> padded(own.begin(), own.end());
  padded.resize(length, kNothing);
  const std::vector<std::int64_t> all = gather(padded);
  std::vector<List> lists;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * length);
    lists.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(length));
  }
  return lists;
}

void OrderCheck::explain(OrderMismatch mismatch) {
  const std::int64_t age = steps_ - 1 - mismatch.step();
  if (age < 0 || age >= std::ssize(compared_)) throw mismatch;
  const std::vector<List> lists = exchange(compared_[static_cast<std::size_t>(age)]);
  for (std::size_t at = 0; at < lists[0].size(); ++at) {
    for (std::size_t rank = 1; rank < lists.size(); ++rank) {
      if (lists[rank][at] == lists[0][at]) continue;
      throw OrderMismatch(mismatch.step(), fmt::format(", operation {}: rank 0 {}, rank {} {}", at + 1, text_of(lists[0][at]), rank,
                                                       text_of(lists[rank][at])));
    }
  }
  throw OrderMismatch(mismatch.step(), ": parameters are cut on different dims");
}

}  // namespace zs
