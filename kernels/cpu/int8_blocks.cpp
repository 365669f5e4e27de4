#include "kernels/families.h"

#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "runtime/base/int8_blocks.h"

namespace zs::cpu {
namespace {

// Packing is by one thread: on the host communication packs for itself, on the thread of its stream.
void pack_int8(ExecContext&, Buffer packed, Buffer elements, int slices) {
  checks::blocks(packed, elements, slices, true);
  zs::pack_int8(static_cast<std::byte*>(packed.data), elements, slices);
}

void unpack_int8(ExecContext&, Buffer elements, Buffer packed, int slices) {
  checks::blocks(packed, elements, slices, true);
  zs::unpack_int8(elements, static_cast<const std::byte*>(packed.data), slices);
}

void reduce_int8(ExecContext&, Buffer out, Buffer packed, int parts, bool accumulate) {
  checks::blocks(packed, out, parts, false);
  zs::reduce_int8(out, static_cast<const std::byte*>(packed.data), parts, accumulate);
}

}  // namespace

void fill_int8_blocks(KernelTable& table) {
  table.pack_int8 = pack_int8;
  table.unpack_int8 = unpack_int8;
  table.reduce_int8 = reduce_int8;
}

}  // namespace zs::cpu
