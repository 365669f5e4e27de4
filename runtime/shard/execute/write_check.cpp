#include "runtime/shard/execute/write_check.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <span>

#include "runtime/base/random.h"
#include "runtime/shard/execute/bucket_copy.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

std::int64_t mark_of(const std::string& unit) { return static_cast<std::int64_t>(hash_name(unit) >> 1) | 1; }

/// True if both hold the same, of one dtype bit for bit, of two when the wider one is rounded, to nearest or, at
/// random, to a neighbour.
bool is_same(const Buffer& a, const Buffer& b, bool is_at_random) {
  if (a.dtype == b.dtype) return std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())) == 0;
  for (std::int64_t i = 0; i < a.elems; ++i) {
    const std::uint16_t bits = b.as<BFloat16>()[i].bits,
                        below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(a.as<float>()[i]) >> 16);
    const bool is_neighbour =
        is_at_random &&
        (bits == below || (bits == below + 1 && std::bit_cast<std::uint32_t>(a.as<float>()[i]) % 0x10000 != 0));
    if (!is_neighbour && BFloat16(a.as<float>()[i]).bits != bits) return false;
  }
  return true;
}

/// `rows`: of each rank, how often it has written back, and a hash of each parameter.
void check_alike(std::span<const std::int64_t> rows, std::int64_t width, const std::vector<std::string>& parameters,
                 const std::string& unit) {
  const auto row = static_cast<std::size_t>(width);
  for (std::size_t rank = 1; rank < rows.size() / row; ++rank) {
    for (std::size_t at = 0; at < row; ++at) {
      const std::int64_t first = rows[at], other = rows[rank * row + at];
      if (first == other) continue;
      if (at == 0) {
        throw Error(ExitCode::ranks_disagree,
                    fmt::format("the ranks disagree on the write-back of unit {}: rank 0 made {}, rank {} {}", unit,
                                first, rank, other),
                    {}, "call write_back() on every rank alike");
      }
      throw Error(
          ExitCode::ranks_disagree,
          fmt::format(
              "the ranks wrote back different values of {}: rank 0 a tensor of hash {:016x}, rank {} one of {:016x}",
              parameters[at - 1], static_cast<std::uint64_t>(first), rank, static_cast<std::uint64_t>(other)),
          fmt::format("unit {}", unit),
          "write the same on every rank, or broadcast what one of them has written first");
    }
  }
}

}  // namespace

LostWrite::LostWrite(const std::string& unit)
    : Error(ExitCode::usage, fmt::format("the parameters of unit {} were written to and not written back", unit), {},
            "write them within an UnshardScope that writes back") {}

std::int64_t WriteCheck::hash_of(const Buffer& buffer) {
  return static_cast<std::int64_t>(XXH3_64bits(buffer.data, static_cast<std::size_t>(buffer.bytes())));
}

void copy_own_shard(Context& context, const FlatParameter& unit, const Buffer& full, const Buffer& shard) {
  if (unit.layout->is_interleaved()) {
    return copy_in(context.stream(), context.kernels(), unit, {unit.slice, 1, shard.elems}, full, shard);
  }
  const Buffer own = full.slice(unit.slice * shard.elems, shard.elems);
  context.launch({"copy_own_shard:" + unit.name, {own}, {shard}},
                 [&kernels = context.kernels(), own, shard](ExecContext& exec) { kernels.copy(exec, shard, own); });
}

template <class Body>
void WriteCheck::note_if(const FlatParameter& unit, std::vector<Buffer> reads, Body body) {
  if (!found_) found_ = context_.pool().acquire(size_of(DType::i64), context_.stream(), "scalars");
  const Buffer found = found_.buffer(DType::i64, 1);
  const std::size_t count = reads.size();
  if (has_found_) reads.push_back(found);
  launch_on_host(context_, {"compare_written:" + unit.name, std::move(reads), {found}},
                 [&kernels = context_.kernels(), found, count, mark = mark_of(unit.name), body = std::move(body)](
                     ExecContext& exec, const std::vector<Buffer>& seen) {
                   const std::int64_t before = seen.size() == count ? 0 : *seen[count].as<std::int64_t>();
                   const std::int64_t after = body(seen) ? mark : before;
                   kernels.upload(exec, found, &after);
                 });
  has_found_ = true;
}

void WriteCheck::note(const FlatParameter& unit, const Buffer& a, const Buffer& b) {
  if (a.elems == 0) return;
  note_if(unit, {a, b}, [is_at_random = unit.precision.rounds_stochastically](const std::vector<Buffer>& seen) {
    return !is_same(seen[0], seen[1], is_at_random);
  });
}

Memory WriteCheck::hash(const FlatParameter& unit, const Values& values) {
  Memory hashes =
      context_.pool().acquire(std::ssize(values.buffers) * size_of(DType::i64), context_.stream(), "scalars");
  if (values.buffers.empty()) return hashes;
  const Buffer out = hashes.buffer(DType::i64, std::ssize(values.buffers));
  launch_on_host(context_, {"hash_values:" + unit.name, values.buffers, {out}},
                 [&kernels = context_.kernels(), out](ExecContext& exec, const std::vector<Buffer>& reads) {
                   std::vector<std::int64_t> found;
                   for (const Buffer& value : reads) found.push_back(hash_of(value));
                   kernels.upload(exec, out, found.data());
                 });
  return hashes;
}

void WriteCheck::note_changed(const FlatParameter& unit, const Values& values, const Memory& hashes) {
  if (values.buffers.empty()) return note_if(unit, {}, [](const std::vector<Buffer>&) { return false; });
  std::vector<Buffer> reads = values.buffers;
  reads.push_back(hashes.buffer(DType::i64, std::ssize(values.buffers)));
  note_if(unit, std::move(reads), [count = values.buffers.size()](const std::vector<Buffer>& seen) {
    for (std::size_t i = 0; i < count; ++i)
      if (hash_of(seen[i]) != seen[count].as<std::int64_t>()[i]) return true;
    return false;
  });
}

Buffer WriteCheck::row(const Written& written) const {
  const std::int64_t width = 1 + std::ssize(written.names), ranks = everybody_.size();
  return written.rows.buffer(DType::i64, ranks * width).slice(everybody_.rank() * width, width);
}

void WriteCheck::note_write_back(Written& written, const FlatParameter& unit, const Values& values) {
  if (!written.rows) {
    written = {unit.name, values.names, {}, 0};
    const std::int64_t elems = (1 + std::ssize(values.names)) * everybody_.size();
    written.rows = context_.pool().acquire(elems * size_of(DType::i64), context_.stream(), "scalars");
  }
  const Buffer out = row(written);
  launch_on_host(context_, {"hash_written:" + unit.name, values.buffers, {out}},
                 [&kernels = context_.kernels(), out, count = ++written.write_backs](ExecContext& exec,
                                                                                     const std::vector<Buffer>& reads) {
                   std::vector<std::int64_t> found{count};
                   for (const Buffer& value : reads) found.push_back(hash_of(value));
                   kernels.upload(exec, out, found.data());
                 });
}

void WriteCheck::compare(const Written& written) {
  if (everybody_.size() == 1) return;
  const std::int64_t width = 1 + std::ssize(written.names);
  const Buffer all = written.rows.buffer(DType::i64, width * everybody_.size());
  everybody_.all_gather(context_.stream(), written.unit, row(written), all);
  launch_on_host(
      context_, {"compare_ranks:" + written.unit, {all}, {}},
      [width, names = written.names, unit = written.unit](ExecContext&, const std::vector<Buffer>& reads) {
        check_alike({reads[0].as<std::int64_t>(), static_cast<std::size_t>(reads[0].elems)}, width, names, unit);
      });
}

void WriteCheck::compare_late() {
  for (const Written& written : std::exchange(late_, {})) compare(written);
}

/// Each rank gives a hash and its complement for its slice of each unit, whose maxima agree where all hashes do.
void WriteCheck::compare_replicas(const std::vector<FlatParameter>& units) {
  if (!std::exchange(has_new_masters_, false) || everybody_.size() == 1) return;
  std::vector<Buffer> own;
  std::vector<std::size_t> places;
  std::vector<std::string> names;  // unit of each place
  for (const FlatParameter& unit : units) {
    const ShardScheme& scheme = unit.placement->scheme;
    const ShardScheme::Slice slice = scheme.slice(scheme.holders());
    if (slice.count == everybody_.size() || unit.has_masters_on_host()) continue;
    own.push_back(unit.is_encoded() ? unit.encoded_buffer() : unit.weights_buffer());
    places.push_back(names.size() + static_cast<std::size_t>(slice.index));
    names.resize(names.size() + static_cast<std::size_t>(slice.count), unit.name);
  }
  if (names.empty()) return;
  const Memory memory =
      context_.pool().acquire(2 * std::ssize(names) * size_of(DType::i64), context_.stream(), "scalars");
  const Buffer hashes = memory.buffer(DType::i64, 2 * std::ssize(names));
  launch_on_host(context_, {"hash_replicas", own, {hashes}},
                 [&kernels = context_.kernels(), hashes, places = std::move(places)](ExecContext& exec,
                                                                                     const std::vector<Buffer>& reads) {
                   std::vector<std::int64_t> values(static_cast<std::size_t>(hashes.elems),
                                                    std::numeric_limits<std::int64_t>::min());
                   for (std::size_t i = 0; i < reads.size(); ++i) {
                     values[2 * places[i]] = hash_of(reads[i]);
                     values[2 * places[i] + 1] = ~values[2 * places[i]];
                   }
                   kernels.upload(exec, hashes, values.data());
                 });
  everybody_.all_reduce(context_.stream(), "replicas", hashes, ReduceOp::max);
  launch_on_host(context_, {"compare_replicas", {hashes}, {}},
                 [names = std::move(names)](ExecContext&, const std::vector<Buffer>& reads) {
                   const auto* const found = reads[0].as<std::int64_t>();
                   for (std::size_t i = 0; i < names.size(); ++i) {
                     if (found[2 * i] == ~found[2 * i + 1]) continue;
                     throw Error(ExitCode::ranks_disagree,
                                 fmt::format("ranks that are to hold the same weights of unit {} do not", names[i]), {},
                                 "give its parameters the same Init on every rank, and an Init::function that goes by "
                                 "the element alone, or load the same weights");
                   }
                 });
}

void WriteCheck::compare(const FlatParameter& unit, const Buffer& full) {
  // Parameters that are whole on every rank are bound to the masters themselves, or to their compute copies: the two
  // must agree.
  const std::int64_t in_place = unit.is_never_gathered() ? 0 : unit.layout->shard_elems();
  if (unit.has_master && unit.compute_copy && in_place < unit.layout->held_elems()) {
    const std::int64_t count = unit.layout->held_elems() - in_place;
    note(unit, unit.master_buffer().slice(in_place, count), unit.compute_copy_buffer().slice(in_place, count));
  }
  if (unit.is_never_gathered()) return;
  const std::int64_t elems = unit.layout->gathered_shard_elems();
  if (!unit.layout->is_interleaved()) return note(unit, full.slice(unit.slice * elems, elems), unit.param_buffer());
  const Memory memory = context_.pool().acquire(elems * size_of(full.dtype), context_.stream(), "param_bucket");
  const Buffer own = memory.buffer(full.dtype, elems);
  copy_own_shard(context_, unit, full, own);
  note(unit, own, unit.param_buffer());
}

void WriteCheck::settle(const std::vector<FlatParameter>& units) {
  if (!has_found_) return;
  has_found_ = false;
  const Buffer found = found_.buffer(DType::i64, 1);
  if (everybody_.size() > 1) everybody_.all_reduce(context_.stream(), "written", found, ReduceOp::max);
  std::vector<std::string> names;
  for (const FlatParameter& unit : units) names.push_back(unit.name);
  launch_on_host(context_, {"check_written", {found}, {}},
                 [names = std::move(names)](ExecContext&, const std::vector<Buffer>& reads) {
                   const std::int64_t mark = *reads[0].as<std::int64_t>();
                   if (mark == 0) return;
                   const auto is_it = [&](const std::string& name) { return mark_of(name) == mark; };
                   const auto unit = std::find_if(names.begin(), names.end(), is_it);
                   throw LostWrite(unit == names.end() ? "?" : *unit);
                 });
}

}  // namespace zs
