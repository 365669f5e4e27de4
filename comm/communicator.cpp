#include "comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <iterator>

#include "comm/backoff.h"
#include "comm/health/flight_recorder.h"
#include "comm/part_table.h"
#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"
#include "runtime/device/cuda_context.h"

namespace zs {
namespace {

bool overlap(const Buffer& a, const Buffer& b) {
  const auto* first_a = static_cast<const std::byte*>(a.data);
  const auto* first_b = static_cast<const std::byte*>(b.data);
  return !a.empty() && !b.empty() && first_a < first_b + b.bytes() && first_b < first_a + a.bytes();
}

/// `variant` distinguishes calls of one operation: reduction operator, root rank, or reduce mode.
OpTag make_tag(std::string_view op, std::string_view unit, std::string_view variant, const Buffer& buffer) {
  OpTag tag;
  tag.elems = buffer.elems;
  tag.dtype = buffer.dtype;
  tag.hash = hash_name(op);
  for (const std::uint64_t word : {hash_name(unit), hash_name(variant), static_cast<std::uint64_t>(buffer.dtype),
                                   static_cast<std::uint64_t>(buffer.elems)}) {
    tag.hash = mix64(tag.hash ^ word);
  }
  const auto room = tag.text_.size() - 1 - op.size() - variant.size() - 3;
  const std::string shown =
      unit.size() <= room ? std::string(unit) : ".." + std::string(unit.substr(unit.size() - (room - 2)));
  const std::string text = fmt::format("{}({}){}{}", op, shown, variant.empty() ? "" : " ", variant);
  std::copy_n(text.begin(), std::min(text.size(), tag.text_.size() - 1), tag.text_.begin());
  return tag;
}

bool can_be_packed(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::max: return "max";
    case ReduceOp::min: return "min";
  }
  return "?";
}

OpInfo info(std::string_view op, std::string_view unit, std::vector<Buffer> reads, std::vector<Buffer> writes,
            std::int64_t scratch_bytes = 0) {
  return {fmt::format("{}:{}", op, unit), std::move(reads), std::move(writes), scratch_bytes};
}

}  // namespace

Error ranks_disagree(int rank_a, const OpTag& a, int rank_b, const OpTag& b) {
  if (rank_a > rank_b) return ranks_disagree(rank_b, b, rank_a, a);
  return Error(ExitCode::ranks_disagree,
               fmt::format("the ranks disagree: rank {} {} {} n={}, rank {} {} {} n={}", rank_a, a.text(),
                           name_of(a.dtype), a.elems, rank_b, b.text(), name_of(b.dtype), b.elems));
}

const char* name_of(CommOp op) {
  switch (op) {
    case CommOp::all_gather: return "all_gather";
    case CommOp::reduce_scatter: return "reduce_scatter";
    case CommOp::all_reduce: return "all_reduce";
    case CommOp::broadcast: return "broadcast";
    case CommOp::all_to_all: return "all_to_all";
    case CommOp::barrier: return "barrier";
  }
  return "?";
}

Communicator::Ticket Communicator::ticket(const OpTag& tag) {
  return {OperationsUnderWay::Use(operations_), tag, ++sequence_, recorder_ != nullptr ? monotonic_ns() : 0};
}

void OperationsUnderWay::await() const noexcept {
  constexpr double kLongest_s = 600, kUnwinding_s = 1;
  Backoff backoff(std::uncaught_exceptions() > 0 ? kUnwinding_s : kLongest_s);
  while (count_.load(std::memory_order_acquire) > 0)
    if (!backoff.pause()) return;
}

bool Communicator::is_race_checked() const { return race_check_delay_ms_ > 0 && is_on_host(); }

/// An operation that throws stays unfinished in the record.
template <class Run>
void Communicator::perform(ExecContext& exec, const Ticket& ticket, const Run& run) {
  exec_ = &exec;
  if (recorder_ == nullptr) return run();
  const std::uint64_t number = recorder_->start({.group = group_name_.name,
                                                 .sequence = ticket.sequence,
                                                 .enqueued_ns = ticket.enqueued_ns,
                                                 .elems = ticket.tag.elems,
                                                 .rank = rank(),
                                                 .size = size(),
                                                 .dtype = ticket.tag.dtype,
                                                 .text = ticket.tag.text()});
  recorder_->run_start_hook();
  run();
  recorder_->done(number);
}

std::string Communicator::where(std::string_view op, std::string_view unit) const {
  return fmt::format("{}({}) on rank {} of {}", op, unit, rank(), size());
}

void Communicator::check_comm_dtype(CommDType comm_dtype, std::string_view op, std::string_view unit,
                                    DType dtype) const {
  if (comm_dtype == CommDType::exact) return;
  ZS_REQUIRE(can_be_packed(dtype), "{}: {} cannot travel as int8", where(op, unit), name_of(dtype));
  if (can_pack()) return;
  throw Error(ExitCode::config, fmt::format("transport {} sends nothing as int8", transport()), where(op, unit),
              "give its world the GPU's arithmetic, or use CommDType::exact");
}

void Communicator::check_sum(std::string_view op, std::string_view unit, DType dtype) const {
  ZS_REQUIRE(adds(dtype), "{}: transport {} adds up no {}, expected f32, bf16, f64, i32 or i64", where(op, unit),
             transport(), name_of(dtype));
}

Buffer Communicator::copy_to_scratch(const Buffer& in, void* scratch) const {
  const Buffer copy{scratch, in.elems, in.dtype, in.device};
  if (in.device == DeviceKind::cuda) {
    exec().gpu().copy(exec().native_stream(), copy, in);
  } else {
    std::memcpy(copy.data, in.data, static_cast<std::size_t>(in.bytes()));
  }
  return copy;
}

void Communicator::all_gather(Stream& stream, std::string_view unit, Buffer shard, Buffer full) {
  ZS_REQUIRE(full.elems == shard.elems * size(), "{}: full has {} elements, expected {}", where("all_gather", unit),
             full.elems, shard.elems * size());
  ZS_REQUIRE(full.dtype == shard.dtype && full.device == shard.device, "{}: shard is {} on {}, full {} on {}",
             where("all_gather", unit), name_of(shard.dtype), name_of(shard.device), name_of(full.dtype),
             name_of(full.device));
  const Buffer own = full.slice(rank() * shard.elems, shard.elems);
  ZS_REQUIRE(own.data == shard.data || !overlap(shard, full),
             "{}: shard overlaps full, but is not this rank's slice of it", where("all_gather", unit));
  const OpTag tag = make_tag("all_gather", unit, "", shard);
  traffic_.add(CommOp::all_gather, (size() - 1) * shard.bytes());
  stream.enqueue(moving(info("all_gather", unit, {shard}, {full}), shard, full),
                 [this, ticket = ticket(tag), shard, full](ExecContext& exec) {
                   const auto gather = [&](Buffer from, Buffer to) { do_all_gather(ticket.tag, from, to); };
                   perform(exec, ticket, [&] {
                     is_race_checked() ? checked_all_gather(ticket, shard, full, gather) : gather(shard, full);
                   });
                 });
}

void Communicator::pack(Buffer packed, Buffer elements, int slices) {
  pack_int8(static_cast<std::byte*>(packed.data), elements, slices);
}

void Communicator::reduce_packed(Buffer out, Buffer packed, int parts, bool accumulate) {
  reduce_int8(out, static_cast<const std::byte*>(packed.data), parts, accumulate);
}

void Communicator::reduce_scatter(Stream& stream, std::string_view unit, Buffer full, Buffer shard, ReduceInto into,
                                  CommDType comm_dtype) {
  const bool accumulate = into == ReduceInto::accumulate;
  ZS_REQUIRE(full.elems == shard.elems * size(), "{}: full has {} elements, expected {}", where("reduce_scatter", unit),
             full.elems, shard.elems * size());
  check_sum("reduce_scatter", unit, full.dtype);
  ZS_REQUIRE(shard.dtype == full.dtype || (full.dtype == DType::bf16 && shard.dtype == DType::f32),
             "{}: {} into {}, expected a dtype into itself, or bf16 into f32", where("reduce_scatter", unit),
             name_of(full.dtype), name_of(shard.dtype));
  ZS_REQUIRE(!accumulate || adds_onto(shard.dtype),
             "{}: transport {} adds sums of {} to nothing, expected ReduceInto::overwrite",
             where("reduce_scatter", unit), transport(), name_of(shard.dtype));
  ZS_REQUIRE(full.device == shard.device, "{}: full is on {}, shard on {}", where("reduce_scatter", unit),
             name_of(full.device), name_of(shard.device));
  const Buffer own = full.slice(rank() * shard.elems, shard.elems);
  const bool in_place = own.data == shard.data && own.dtype == shard.dtype && !accumulate;
  ZS_REQUIRE(in_place || !overlap(shard, full),
             "{}: shard overlaps full; it may only be this rank's slice, same dtype, overwrite",
             where("reduce_scatter", unit));
  check_comm_dtype(comm_dtype, "reduce_scatter", unit, full.dtype);
  const char* const suffix = comm_dtype == CommDType::int8 ? " int8" : "";
  const OpTag tag =
      make_tag("reduce_scatter", unit,
               fmt::format("{}{}{}", accumulate ? "accumulate " : "into ", name_of(shard.dtype), suffix), full);
  std::vector<Buffer> reads{full};
  if (accumulate) reads.push_back(shard);
  if (comm_dtype == CommDType::int8 && size() > 1) {
    traffic_.add(CommOp::reduce_scatter, (size() - 1) * packed_bytes(shard.elems));
    return enqueue_packed_sum(stream, info("reduce_scatter", unit, std::move(reads), {shard}), ticket(tag), full, shard,
                              into);
  }
  const std::int64_t scratch_bytes = reduce_scatter_scratch_bytes(full, shard, into);
  traffic_.add(CommOp::reduce_scatter, (size() - 1) * shard.elems * size_of(full.dtype));
  stream.enqueue(moving(info("reduce_scatter", unit, std::move(reads), {shard}, scratch_bytes), full, shard),
                 [this, ticket = ticket(tag), full, shard, into, scratch_bytes](ExecContext& exec) {
                   const auto reduce = [&](Buffer from, Buffer to) {
                     do_reduce_scatter(ticket.tag, from, to, into, exec.scratch(scratch_bytes));
                   };
                   perform(exec, ticket, [&] {
                     is_race_checked() ? checked_reduce_scatter(ticket, full, shard, reduce) : reduce(full, shard);
                   });
                 });
}

void Communicator::enqueue_packed_sum(Stream& stream, OpInfo info, const Ticket& ticket, Buffer full, Buffer shard,
                                      ReduceInto into) {
  const std::int64_t scratch_bytes = info.scratch_bytes = packed_sum_scratch_bytes(full);
  const Buffer packed{nullptr, size() * packed_bytes(shard.elems), DType::u8, full.device};
  stream.enqueue(
      moving(std::move(info), packed, packed), [this, ticket, full, shard, into, scratch_bytes](ExecContext& exec) {
        if (is_idle()) return;
        const auto reduce = [&](Buffer from, Buffer to) {
          do_packed_sum(ticket.tag, from, to, into, exec.scratch(scratch_bytes));
        };
        perform(exec, ticket,
                [&] { is_race_checked() ? checked_reduce_scatter(ticket, full, shard, reduce) : reduce(full, shard); });
      });
}

std::int64_t Communicator::packed_sum_scratch_bytes(const Buffer& full) const {
  return 2 * size() * packed_bytes(full.elems / size());
}

void Communicator::do_packed_sum(const OpTag& tag, Buffer full, Buffer shard, ReduceInto into, void* scratch) {
  const std::int64_t bytes = size() * packed_bytes(shard.elems);
  const Buffer both{scratch, 2 * bytes, DType::u8, full.device}, out = both.slice(0, bytes),
                                                                 in = both.slice(bytes, bytes);
  pack(out, full, size());
  do_all_to_all(tag, out, in);
  reduce_packed(shard, in, size(), into == ReduceInto::accumulate);
}

void Communicator::all_reduce(Stream& stream, std::string_view unit, Buffer data, ReduceOp op) {
  check_sum("all_reduce", unit, data.dtype);
  const OpTag tag = make_tag("all_reduce", unit, name_of(op), data);
  const std::int64_t scratch_bytes = all_reduce_scratch_bytes(data);
  const std::int64_t part = data.elems * (rank() + 1) / size() - data.elems * rank() / size();
  traffic_.add(CommOp::all_reduce, (data.elems - part + (size() - 1) * part) * size_of(data.dtype));
  stream.enqueue(moving(info("all_reduce", unit, {data}, {data}, scratch_bytes), data, {}),
                 [this, ticket = ticket(tag), data, op, scratch_bytes](ExecContext& exec) {
                   perform(exec, ticket, [&] {
                     is_race_checked() ? checked_all_reduce(ticket, data, op, exec.scratch(scratch_bytes))
                                       : do_all_reduce(ticket.tag, data, op, exec.scratch(scratch_bytes));
                   });
                 });
}

void Communicator::broadcast(Stream& stream, std::string_view unit, Buffer data, int root) {
  ZS_REQUIRE(root >= 0 && root < size(), "{}: root {}", where("broadcast", unit), root);
  const OpTag tag = make_tag("broadcast", unit, fmt::format("root {}", root), data);
  const bool is_root = root == rank();
  traffic_.add(CommOp::broadcast, is_root ? (size() - 1) * data.bytes() : 0);
  OpInfo sent = info("broadcast", unit, is_root ? std::vector{data} : std::vector<Buffer>{},
                     is_root ? std::vector<Buffer>{} : std::vector{data});
  stream.enqueue(moving(std::move(sent), data, {}), [this, ticket = ticket(tag), data, root](ExecContext& exec) {
    perform(exec, ticket,
            [&] { is_race_checked() ? checked_broadcast(ticket, data, root) : do_broadcast(ticket.tag, data, root); });
  });
}

void Communicator::all_to_all(Stream& stream, std::string_view unit, Buffer in, Buffer out) {
  ZS_REQUIRE(in.elems == out.elems && in.elems % size() == 0,
             "{}: in has {} elements, out {}, expected equal multiples of {}", where("all_to_all", unit), in.elems,
             out.elems, size());
  ZS_REQUIRE(in.dtype == out.dtype && in.device == out.device, "{}: in is {} on {}, out {} on {}",
             where("all_to_all", unit), name_of(in.dtype), name_of(in.device), name_of(out.dtype), name_of(out.device));
  const bool in_place = in.data == out.data;
  ZS_REQUIRE(in_place || !overlap(in, out), "{}: in and out overlap, but are not the same", where("all_to_all", unit));
  const OpTag tag = make_tag("all_to_all", unit, "", in);
  traffic_.add(CommOp::all_to_all, in.bytes() / size() * (size() - 1));
  const std::int64_t scratch_bytes = in_place ? in.bytes() : 0;
  stream.enqueue(moving(info("all_to_all", unit, {in}, {out}, scratch_bytes), in, out),
                 [this, ticket = ticket(tag), in, out, scratch_bytes](ExecContext& exec) {
                   if (is_idle()) return;
                   const auto exchange = [&](Buffer from, Buffer to) { do_all_to_all(ticket.tag, from, to); };
                   perform(exec, ticket, [&] {
                     const Buffer from = scratch_bytes > 0 ? copy_to_scratch(in, exec.scratch(scratch_bytes)) : in;
                     is_race_checked() ? checked_exchange(ticket, from, out, exchange) : exchange(from, out);
                   });
                 });
}

void Communicator::all_to_all_v(Stream& stream, std::string_view unit, RankParts in, RankParts out) {
  const std::string here = where("all_to_all_v", unit);
  std::vector<std::int64_t> said;  // counts that this rank sends, then those that it expects
  for (const RankParts* parts : {&in, &out}) {
    const char* const name = parts == &in ? "in" : "out";
    ZS_REQUIRE(static_cast<int>(parts->counts.size()) == size(), "{}: {} has {} counts, expected {}", here, name,
               parts->counts.size(), size());
    std::int64_t sum = 0;
    for (const std::int64_t count : parts->counts) {
      ZS_REQUIRE(count >= 0, "{}: {} has a part of {} elements", here, name, count);
      said.push_back(count);
      sum += count;
    }
    ZS_REQUIRE(sum == parts->data.elems, "{}: {} has {} elements, its parts {}", here, name, parts->data.elems, sum);
  }
  const Buffer from = in.data, to = out.data;
  ZS_REQUIRE(from.dtype == to.dtype && from.device == to.device, "{}: in is {} on {}, out {} on {}", here,
             name_of(from.dtype), name_of(from.device), name_of(to.dtype), name_of(to.device));
  const bool in_place = from.data == to.data && !from.empty() && !to.empty();
  ZS_REQUIRE(in_place || !overlap(from, to), "{}: in and out overlap, but do not begin together", here);
  // The tag has no counts, in which ranks differ.
  OpTag tag = make_tag("all_to_all_v", unit, "", Buffer{nullptr, 0, from.dtype, from.device});
  tag.elems = from.elems;
  traffic_.add(CommOp::all_to_all, (from.elems - in.counts[static_cast<std::size_t>(rank())]) * size_of(from.dtype));
  const std::int64_t count_bytes = is_on_host() ? Pool::rounded(size() * std::ssize(said) * size_of(DType::i64)) : 0;
  const std::int64_t scratch_bytes = count_bytes + (in_place ? from.bytes() : 0);
  stream.enqueue(
      moving(info("all_to_all_v", unit, {from}, {to}, scratch_bytes), from, to),
      [this, ticket = ticket(tag), from, to, said = std::move(said), count_bytes, scratch_bytes](ExecContext& exec) {
        if (is_idle()) return;
        perform(exec, ticket, [&] {
          auto* const scratch = static_cast<std::byte*>(exec.scratch(scratch_bytes));
          const PartTable parts = agree_on_parts(ticket.tag, said, scratch);
          const auto exchange = [&](Buffer a, Buffer b) { do_all_to_all_v(ticket.tag, parts, a, b); };
          const Buffer source = scratch_bytes > count_bytes ? copy_to_scratch(from, scratch + count_bytes) : from;
          is_race_checked() ? checked_exchange(ticket, source, to, exchange) : exchange(source, to);
        });
      });
}

PartTable Communicator::agree_on_parts(const OpTag& tag, std::span<const std::int64_t> own, void* scratch) {
  OpTag counts = tag;
  counts.hash = mix64(tag.hash);  // no rank takes counts for data
  const auto elems = std::ssize(own);
  const Buffer all{scratch, size() * elems, DType::i64, DeviceKind::cpu}, mine = all.slice(rank() * elems, elems);
  std::copy(own.begin(), own.end(), mine.as<std::int64_t>());
  do_all_gather(counts, mine, all);
  return {{all.as<std::int64_t>(), static_cast<std::size_t>(all.elems)}, size(), tag.text()};
}

void Communicator::barrier(Stream& stream, std::string_view unit) {
  const OpTag tag = make_tag("barrier", unit, "", Buffer{});
  traffic_.add(CommOp::barrier, 0);
  stream.enqueue(info("barrier", unit, {}, {}), [this, ticket = ticket(tag)](ExecContext& exec) {
    perform(exec, ticket, [&] { do_barrier(ticket.tag); });
  });
}

void Communicator::publish(Stream& stream, std::string_view unit, Buffer shard, Buffer window) {
  const std::int64_t before = rank() * shard.elems, after = before + shard.elems;
  ZS_REQUIRE(window.elems == shard.elems * size() && window.dtype == shard.dtype,
             "{}: the window has {} elements of {}, the shard {} of {}", where("publish", unit), window.elems,
             name_of(window.dtype), shard.elems, name_of(shard.dtype));
  const Buffer slice = window.slice(before, shard.elems);
  const bool moves = slice.data != shard.data;
  ZS_REQUIRE(!moves || !overlap(shard, window), "{}: the shard overlaps the window, but is not this rank's slice of it",
             where("publish", unit));
  const OpTag tag = make_tag("publish", unit, "", shard);
  traffic_.add(CommOp::barrier, 0);
  OpInfo published = info("publish", unit, {shard}, moves ? std::vector{slice} : std::vector<Buffer>{});
  published.arrivals = {window.slice(0, before), window.slice(after, window.elems - after)};
  stream.enqueue(std::move(published), [this, ticket = ticket(tag), shard, slice, moves](ExecContext& exec) {
    perform(exec, ticket, [&] {
      if (is_race_checked()) return checked_publish(ticket, shard, slice);
      if (moves) std::memcpy(slice.data, shard.data, static_cast<std::size_t>(shard.bytes()));
      do_barrier(ticket.tag);
    });
  });
}

Error Communicator::windows_disagree(int rank_a, std::int64_t bytes_a, int rank_b, std::int64_t bytes_b) {
  return Error(ExitCode::ranks_disagree,
               fmt::format("the ranks disagree: rank {} shares a window of {} bytes, rank {} one of {}", rank_a,
                           bytes_a, rank_b, bytes_b));
}

}  // namespace zs
