#include "runtime/base/nf4_blocks.h"

#include "kernels/checks.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

// By one thread: that of the stream on which parameters are gathered.
void unpack_nf4(ExecContext&, Buffer elements, Buffer packed, int slices) {
  checks::blocks(packed, elements, slices, true, nf4_bytes);
  zs::unpack_nf4(elements, static_cast<const std::byte*>(packed.data), slices);
}

}  // namespace

void fill_nf4_blocks(KernelTable& table) { table.unpack_nf4 = unpack_nf4; }

}  // namespace zs::cpu
