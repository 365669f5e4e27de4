#include "runtime/base/nf4_blocks.h"

#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

static_assert(kNf4Block == kNf4BlockElems);

void unpack_nf4(ExecContext& ctx, Buffer elements, Buffer packed, int slices) {
  const std::int64_t elems = checks::blocks(packed, elements, slices, true, nf4_bytes);
  if (elems == 0) return;
  Nf4Args args{.data = elements_of(elements),
               .packed = static_cast<const std::uint8_t*>(packed.data),
               .elems = elems,
               .slices = slices,
               .stride = nf4_bytes(elems),
               .scales_at = nf4_scales_at(elems),
               .values = {},
               .is_aligned = are_aligned(elements.data) && (slices == 1 || elems * size_of(elements.dtype) % 16 == 0)};
  std::copy(kNf4Values.begin(), kNf4Values.end(), args.values);
  const std::int64_t a_slice = (elems + kNf4Elems - 1) / kNf4Elems * kNf4Elems;
  launch_elems(ctx, typed("zs_unpack_nf4", elements.dtype), slices * a_slice, kNf4Elems, args);
}

}  // namespace

void fill_nf4_blocks(KernelTable& table, KernelNames& names) {
  table.unpack_nf4 = unpack_nf4;
  add_typed(names, {"zs_unpack_nf4"});
}

}  // namespace zs::cuda
