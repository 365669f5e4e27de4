#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

void stochastic_cast(ExecContext& ctx, Buffer out, Buffer in, const StochasticRounding& rounding) {
  const StochasticCastArgs args{.out = static_cast<std::uint16_t*>(elements_of(out)),
                                .in = floats_of(in),
                                .elems = checks::stochastic_cast(out, in, rounding),
                                .key = rounding.key,
                                .first = rounding.first,
                                .run = rounding.run,
                                .stride = rounding.stride,
                                .is_aligned = are_aligned(out.data, in.data)};
  launch_elems(ctx, "zs_stochastic_cast", args.elems, kRowElems, args);
}

}  // namespace

void fill_stochastic_cast(KernelTable& table, KernelNames& names) {
  table.stochastic_cast = stochastic_cast;
  names.push_back("zs_stochastic_cast");
}

}  // namespace zs::cuda
