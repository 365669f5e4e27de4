#include "runtime/shard/experts/expert_exchange.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/inline_stream.h"
#include "kernels/expert_exchange.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/autograd.h"
#include "runtime/tensor/context.h"

namespace zs {
namespace {

std::int64_t width_of(const Tensor& rows) { return rows.shape()[1]; }

/// out (tokens, C) := sums of the rows that are here.
void launch_sums(const char* op, const Tensor& out, const Tensor& rows, const Tensor& weights, const Tensor& places) {
  const Context& context = rows.context();
  const Buffer to = out.buffer(), from = rows.buffer(), by = weights ? weights.buffer() : Buffer{},
               at = places.buffer();
  OpInfo info{op, {from, at}, {to}};
  if (weights) info.reads.push_back(by);
  context.launch(std::move(info), [&kernels = context.kernels().experts, to, from, by, at, width = width_of(out)](
                                      ExecContext& exec) { kernels.combine_rows(exec, to, from, by, at, width); });
}

}  // namespace

/// Communicator and stream of the compute stream's thread alone.
struct ExpertExchange::Parts {
  std::unique_ptr<Communicator> ranks;
  InlineStream stream;
};

/// Numbers of rows that go somewhere: offsets i64 (experts + 1) of this rank's choice, and counts of what others have
/// chosen.
struct ExpertExchange::Rows {
  Tensor offsets, counts, own_offsets;
};

ExpertExchange::ExpertExchange(Communicator& ranks, Dispatcher dispatcher, std::string name)
    : ranks_(ranks), dispatcher_(dispatcher), name_(std::move(name)) {
  if (dispatcher != Dispatcher::all_to_all) return;
  parts_ = std::make_unique<Parts>();
  parts_->ranks = ranks.split(0, ranks.rank());
}

ExpertExchange::~ExpertExchange() = default;

CommTraffic ExpertExchange::row_traffic() const { return parts_ ? parts_->ranks->traffic() : CommTraffic{}; }

DealtRows ExpertExchange::dispatch(const Tensor& x, const Routing& routing) const {
  if (routing.experts() % ranks_.size() != 0)
    throw UsageError(fmt::format("{}: {} experts are dealt over {} ranks", name_, routing.experts(), ranks_.size()),
                     "deal them over a number of ranks that divides them");
  return dispatcher_ == Dispatcher::all_to_all ? send(x, routing) : gather(x, routing);
}

Tensor ExpertExchange::combine(const Tensor& y, const Routing& routing, const DealtRows& dealt) const {
  return dispatcher_ == Dispatcher::all_to_all ? return_rows(y, routing, dealt) : scatter(y, routing, dealt);
}

/// No token chooses an expert twice.
std::int64_t ExpertExchange::most_rows(const Routing& routing) const {
  return ranks_.size() * routing.ids.shape()[0] * std::min(routing.ids.shape()[1], own_experts(routing.experts()));
}

DealtRows ExpertExchange::send(const Tensor& x, const Routing& routing) const {
  Context& context = x.context();
  const std::int64_t own = own_experts(routing.experts()), most = most_rows(routing);
  DealtRows dealt;
  dealt.routing.offsets = Tensor::empty(context, {own + 1}, DType::i64);
  dealt.routing.shares = Tensor::empty(context, {own}, DType::f32);
  dealt.counts = Tensor::empty(context, {ranks_.size(), own}, DType::i64);
  exchange_counts(routing, dealt);
  const Tensor rows = gather_tokens(x, routing);
  const Rows of{routing.offsets, dealt.counts, dealt.routing.offsets};
  dealt.rows = to_experts(rows, most, of);
  record_op(dealt.rows, "dispatch_rows", {rows}, {}, [this, of, count = rows.shape()[0]](const Tensor& grad) {
    return std::vector{from_experts(grad, count, of)};
  });
  return dealt;
}

Tensor ExpertExchange::return_rows(const Tensor& y, const Routing& routing, const DealtRows& dealt) const {
  const Rows of{routing.offsets, dealt.counts, dealt.routing.offsets};
  Tensor rows = from_experts(y, routing.order.numel(), of);
  record_op(rows, "return_rows", {y}, {},
            [this, of, most = y.shape()[0]](const Tensor& grad) { return std::vector{to_experts(grad, most, of)}; });
  return combine_tokens(rows, routing);
}

void ExpertExchange::exchange_counts(const Routing& routing, const DealtRows& dealt) const {
  Context& context = routing.offsets.context();
  const std::int64_t own = dealt.routing.shares.numel();
  const Tensor chosen = Tensor::empty(context, {routing.experts()}, DType::i64);
  const Buffer from = routing.offsets.buffer(), to = chosen.buffer(), counts = dealt.counts.buffer(),
               offsets = dealt.routing.offsets.buffer();
  context.launch({"count_rows", {from}, {to}}, [from, to](ExecContext&) {
    const auto* const begin = from.as<std::int64_t>();
    for (std::int64_t e = 0; e < to.elems; ++e) to.as<std::int64_t>()[e] = begin[e + 1] - begin[e];
  });
  ranks_.all_to_all(context.stream(), name_, to, counts);
  // Ranks that exchange nothing take their own choice for the others'.
  if (ranks_.is_idle())
    context.launch({"repeat_counts", {to}, {counts}}, [to, counts, own, first = ranks_.rank() * own](ExecContext&) {
      for (std::int64_t i = 0; i < counts.elems; ++i)
        counts.as<std::int64_t>()[i] = to.as<std::int64_t>()[first + i % own];
    });
  context.launch({"sort_arrivals", {counts}, {offsets}},
                 [counts, offsets](ExecContext&) { expert_exchange_kernels().sum_counts(offsets, counts); });
}

Tensor ExpertExchange::to_experts(const Tensor& rows, std::int64_t most, const Rows& of) const {
  Context& context = rows.context();
  const Tensor arrived = Tensor::empty(context, {most, width_of(rows)}, rows.dtype());
  Tensor sorted = Tensor::empty(context, arrived.shape(), rows.dtype());
  launch_exchange("dispatch_rows", arrived, rows, of, false);
  const Buffer in = arrived.buffer(), out = sorted.buffer(), counts = of.counts.buffer(),
               offsets = of.own_offsets.buffer();
  context.launch({"order_by_expert", {in, counts, offsets}, {out}},
                 [in, out, counts, offsets, width = width_of(rows)](ExecContext& exec) {
                   expert_exchange_kernels().order_by_expert(exec, out, in, counts, offsets, width);
                 });
  return sorted;
}

Tensor ExpertExchange::from_experts(const Tensor& rows, std::int64_t count, const Rows& of) const {
  Context& context = rows.context();
  const Tensor sorted = Tensor::empty(context, rows.shape(), rows.dtype());
  Tensor returned = Tensor::empty(context, {count, width_of(rows)}, rows.dtype());
  const Buffer in = rows.buffer(), out = sorted.buffer(), counts = of.counts.buffer(),
               offsets = of.own_offsets.buffer();
  context.launch({"order_by_rank", {in, counts, offsets}, {out}},
                 [in, out, counts, offsets, width = width_of(rows)](ExecContext& exec) {
                   expert_exchange_kernels().order_by_rank(exec, out, in, counts, offsets, width);
                 });
  launch_exchange("return_rows", returned, sorted, of, true);
  return returned;
}

/// Counts are read on the stream: they follow from choices that the host has not seen.
void ExpertExchange::launch_exchange(const char* op, const Tensor& out, const Tensor& in, const Rows& of,
                                     bool is_return) const {
  const Context& context = in.context();
  const Buffer from = in.buffer(), to = out.buffer(), offsets = of.offsets.buffer(), counts = of.counts.buffer();
  context.launch({fmt::format("{}:{}", op, name_), {from, offsets, counts}, {to}}, [this, from, to, offsets, counts,
                                                                                    width = width_of(in),
                                                                                    is_return](ExecContext&) {
    const auto ranks = static_cast<std::size_t>(ranks_.size());
    const std::int64_t own = counts.elems / ranks_.size();
    const auto *const begin = offsets.as<std::int64_t>(), *const arrived = counts.as<std::int64_t>();
    std::vector<std::int64_t> chosen(ranks), others(ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto first = static_cast<std::int64_t>(rank) * own;
      chosen[rank] = (begin[first + own] - begin[first]) * width;
      others[rank] = std::accumulate(arrived + first, arrived + first + own, std::int64_t{0}) * width;
    }
    const std::vector<std::int64_t>&sent = is_return ? others : chosen, &got = is_return ? chosen : others;
    const auto sum_of = [](const auto& parts) { return std::accumulate(parts.begin(), parts.end(), std::int64_t{0}); };
    if (sum_of(got) > to.elems)
      throw UsageError(
          fmt::format("{}: {} rows come to a rank that has room for {}", name_, sum_of(got) / width, to.elems / width),
          "give every rank equally many tokens");
    parts_->ranks->all_to_all_v(parts_->stream, name_, {from.slice(0, sum_of(sent)), sent},
                                {to.slice(0, sum_of(got)), got});
  });
}

DealtRows ExpertExchange::gather(const Tensor& x, const Routing& routing) const {
  Context& context = x.context();
  const std::int64_t own = own_experts(routing.experts()), most = most_rows(routing), chosen = routing.ids.shape()[1];
  if (ranks_.size() * routing.ids.numel() > std::numeric_limits<std::int32_t>::max())
    throw UsageError(fmt::format("{}: {} ranks have {} rows each", name_, ranks_.size(), routing.ids.numel()),
                     "use smaller micro-batches, or the dispatcher all_to_all");
  const Tensor tokens = gathered("tokens", x), ids = gathered("ids", routing.ids);
  DealtRows dealt;
  dealt.routing.offsets = Tensor::empty(context, {own + 1}, DType::i64);
  dealt.routing.shares = Tensor::empty(context, {own}, DType::f32);
  dealt.routing.order = Tensor::empty(context, {most}, DType::i32);
  dealt.places = Tensor::empty(context, ids.shape(), DType::i32);
  dealt.rows = Tensor::empty(context, {most, width_of(x)}, x.dtype());
  const Buffer from = ids.buffer(), in = tokens.buffer(), out = dealt.rows.buffer();
  const SortedRows rows{dealt.routing.order.buffer(), dealt.places.buffer(), dealt.routing.offsets.buffer(), {}};
  context.launch({"select_rows", {from}, {rows.order, rows.places, rows.offsets}},
                 [rows, from, first = ranks_.rank() * own](ExecContext&) {
                   expert_exchange_kernels().select_rows(rows, from, first);
                 });
  context.launch({"gather_selected", {in, rows.order, rows.offsets}, {out}},
                 [rows, in, out, chosen, width = width_of(x)](ExecContext& exec) {
                   expert_exchange_kernels().gather_rows(exec, out, in, rows.order, rows.offsets, chosen, width);
                 });
  record_op(dealt.rows, "gather_selected", {x}, {},
            [this, places = dealt.places, shape = tokens.shape()](const Tensor& grad) {
              const Tensor sums = Tensor::empty(grad.context(), shape, grad.dtype());
              launch_sums("gather_selected_backward", sums, grad, {}, places);
              return std::vector{summed("grad of tokens", sums)};
            });
  return dealt;
}

Tensor ExpertExchange::scatter(const Tensor& y, const Routing& routing, const DealtRows& dealt) const {
  Context& context = y.context();
  const Tensor weights = gathered("weights", routing.weights);
  const Tensor sums = Tensor::empty(context, {weights.shape()[0], width_of(y)}, y.dtype());
  launch_sums("combine_selected", sums, y, weights, dealt.places);
  Tensor out = summed("sums", sums);
  record_op(out, "combine_selected", {y, routing.weights}, {},
            [this, y = y.detach(), weights, places = dealt.places](const Tensor& grad) {
              Context& context = grad.context();
              const Tensor all = gathered("grad of sums", grad);
              Tensor dy = Tensor::empty(context, y.shape(), y.dtype());
              const Tensor dweights = Tensor::empty(context, weights.shape(), DType::f32);
              const Buffer to = dy.buffer(), dw = dweights.buffer(), from = all.buffer(), rows = y.buffer(),
                           by = weights.buffer(), at = places.buffer();
              context.launch(
                  {"combine_selected_backward", {from, rows, by, at}, {to, dw}},
                  [&kernels = context.kernels().experts, to, dw, from, rows, by, at, width = width_of(y)](
                      ExecContext& exec) { kernels.combine_backward(exec, to, dw, from, rows, by, at, width); });
              return std::vector{dy, summed("grad of weights", dweights)};
            });
  return out;
}

/// The ranks' tensors one below the other. Records nothing.
Tensor ExpertExchange::gathered(const char* what, const Tensor& x) const {
  Context& context = x.context();
  Tensor all = Tensor::empty(context, {ranks_.size() * x.shape()[0], x.shape()[1]}, x.dtype());
  const Buffer own = x.buffer(), to = all.buffer();
  ranks_.all_gather(context.stream(), fmt::format("{} {}", name_, what), own, to);
  if (!ranks_.is_idle()) return all;
  context.launch({"repeat", {own}, {to}}, [&kernels = context.kernels(), own, to](ExecContext& exec) {
    for (std::int64_t at = 0; at < to.elems && own.elems > 0; at += own.elems)
      kernels.copy(exec, to.slice(at, own.elems), own);
  });
  return all;
}

/// This rank's part of the sum over the ranks. Records nothing.
Tensor ExpertExchange::summed(const char* what, const Tensor& x) const {
  Tensor part = Tensor::empty(x.context(), {x.shape()[0] / ranks_.size(), x.shape()[1]}, x.dtype());
  ranks_.reduce_scatter(x.context().stream(), fmt::format("{} {}", name_, what), x.buffer(), part.buffer(),
                        ReduceInto::overwrite);
  return part;
}

}  // namespace zs
