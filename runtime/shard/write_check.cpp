#include "runtime/shard/write_check.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/random.h"
#include "runtime/shard/bucket_copy.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

std::int64_t mark_of(const std::string& unit) { return static_cast<std::int64_t>(hash_name(unit) >> 1) | 1; }

/// Whether they hold the same, of one dtype bit for bit, of two when the wider one is rounded, to nearest or, at random, to a neighbour.
bool is_same(const Buffer& a, const Buffer& b, bool is_at_random) {
  if (a.dtype == b.dtype) return std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())) == 0;
  for (std::int64_t i = 0; i < a.elems; ++i) {
    const std::uint16_t bits = b.as<BFloat16>()[i].bits,
                        below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(a.as<float>()[i]) >> 16);
    const bool is_neighbour =
        is_at_random && (bits == below || (bits == below + 1 && std::bit_cast<std::uint32_t>(a.as<float>()[i]) % 0x10000 != 0));
    if (!is_neighbour && BFloat16(a.as<float>()[i]).bits != bits) return false;
  }
  return true;
}

}  // namespace

LostWrite::LostWrite(const std::string& unit)
    : Error(ExitCode::usage, fmt::format("the parameters of unit {} were written to and not written back", unit), {},
            "write them within a FullParameters, and call its write_back()") {}

void copy_own_shard(Context& context, const FlatParameter& unit, const Buffer& full, const Buffer& shard) {
  if (unit.layout->is_interleaved()) {
    return copy_in(context.stream(), context.kernels(), unit, {unit.slice, 1, shard.elems}, full, shard);
  }
  const Buffer own = full.slice(unit.slice * shard.elems, shard.elems);
  context.launch({"copy_own_shard:" + unit.name, {own}, {shard}},
                 [&kernels = context.kernels(), own, shard](ExecContext& exec) { kernels.copy(exec, shard, own); });
}

void WriteCheck::note(const FlatParameter& unit, const Buffer& a, const Buffer& b) {
  if (a.elems == 0) return;
  if (!found_) found_ = context_.pool().acquire(size_of(DType::i64), context_.stream(), "scalars");
  const Buffer found = found_.buffer(DType::i64, 1);
  std::vector<Buffer> reads{a, b};
  if (has_found_) reads.push_back(found);
  launch_on_host(context_, {"compare_written:" + unit.name, std::move(reads), {found}},
                 [&kernels = context_.kernels(), found, mark = mark_of(unit.name), is_at_random = unit.precision.rounds_stochastically](
                     ExecContext& exec, const std::vector<Buffer>& seen) {
                   const std::int64_t before = seen.size() == 2 ? 0 : *seen[2].as<std::int64_t>();
                   const std::int64_t after = is_same(seen[0], seen[1], is_at_random) ? before : mark;
                   kernels.upload(exec, found, &after);
                 });
  has_found_ = true;
}

void WriteCheck::compare(const FlatParameter& unit, const Buffer& full) {
  // What is whole on every rank is bound to the masters themselves, or to their narrow copies: the two must agree.
  const std::int64_t in_place = unit.is_never_gathered() ? 0 : unit.layout->shard_elems();
  if (unit.narrow && in_place < unit.layout->held_elems()) {
    const std::int64_t count = unit.layout->held_elems() - in_place;
    note(unit, unit.master_buffer().slice(in_place, count), unit.narrow_buffer().slice(in_place, count));
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
  if (groups_.compute->size() > 1) groups_.compute->all_reduce(context_.stream(), "written", found, ReduceOp::max);
  std::vector<std::string> names;
  for (const FlatParameter& unit : units) names.push_back(unit.name);
  launch_on_host(context_, {"check_written", {found}, {}}, [names = std::move(names)](ExecContext&, const std::vector<Buffer>& reads) {
    const std::int64_t mark = *reads[0].as<std::int64_t>();
    if (mark == 0) return;
    const auto is_it = [&](const std::string& name) { return mark_of(name) == mark; };
    const auto unit = std::find_if(names.begin(), names.end(), is_it);
    throw LostWrite(unit == names.end() ? "?" : *unit);
  });
}

}  // namespace zs
