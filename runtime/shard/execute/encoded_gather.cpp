// Gathers of frozen weights that are held in a format: they travel encoded, and are decoded into the full parameters.
#include "runtime/shard/execute/unsharder.h"

namespace zs {

Buffer Unsharder::encoded_shards(FlatParameter& unit, Memory& memory, Memory& through) {
  const Buffer own = unit.encoded_buffer();
  wait_masters(unit);
  const int ranks = unit.layout->ranks();
  if (ranks == 1) return own;
  memory = acquire(own.elems * ranks, DType::u8, unshard(), "encoded_shards");
  const Buffer all = memory.buffer(DType::u8, own.elems * ranks);
  Communicator& group = *unit.groups().gather;
  if (group.size() == ranks) {
    group.all_gather(unshard(), unit.name, own, all);
    return all;
  }
  const std::int64_t bytes = own.elems * group.size();
  if (!through) {
    through = acquire(bytes, DType::u8, unshard(), "kept_shard");
    group.all_gather(unshard(), unit.name, own, through.buffer(DType::u8, bytes));
  }
  unit.groups().gather_small->all_gather(unshard(), unit.name, through.buffer(DType::u8, bytes), all);
  return all;
}

void Unsharder::decode(const FlatParameter& unit, const Buffer& out, const Buffer& encoded) {
  const int ranks = unit.layout->ranks();
  // An idle group moves nothing, so there is nothing to decode.
  const Communicator* const group = ranks > 1 ? unit.groups().gather.get() : nullptr;
  unshard().enqueue(
      {"decode:" + unit.name, {encoded}, {out}},
      [&kernels = context_.kernels(), format = unit.held_format, group, out, encoded, ranks](ExecContext& exec) {
        if (group == nullptr || !group->is_idle()) (kernels.*format->decode)(exec, out, encoded, ranks);
      });
}

void Unsharder::gather_encoded(FlatParameter& unit, Memory& through) {
  Memory memory;
  const Buffer encoded = encoded_shards(unit, memory, through);
  decode(unit, begin(unit), encoded);
  unshard().record(unit.gathered);
}

Buffer Unsharder::decode_all(FlatParameter& unit, Memory& memory) {
  const MemoryOwner owner(context_.device().memory(), unit.name);
  Memory gathered, through;
  const Buffer encoded = encoded_shards(unit, gathered, through);
  memory = acquire(unit.layout->gathered_elems(), DType::f32, unshard(), "full_param");
  const Buffer full = memory.buffer(DType::f32, unit.layout->gathered_elems());
  decode(unit, full, encoded);
  return full;
}

}  // namespace zs
