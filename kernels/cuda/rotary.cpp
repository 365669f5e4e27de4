#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

void rotary(ExecContext& ctx, Buffer out, Buffer in, const AttentionDims& dims, const RotaryOptions& options) {
  const std::int64_t width = qkv_width_of(dims), kept = kv_heads_of(dims) * dims.head_dim;
  const RotaryArgs args{.out = elements_of(out),
                        .in = elements_of(in),
                        .tokens = dims.batch * dims.time,
                        .time = dims.time,
                        .first = options.first,
                        .head_dim = dims.head_dim,
                        .turned = width - kept,
                        .kept = kept,
                        .ratio = checks::rotary(out, in, dims, options),
                        .scaling = options.scaling,
                        .is_inverse = options.is_inverse,
                        .is_aligned = are_whole_packs(dims.head_dim / 2, out.data, in.data)};
  launch(ctx, typed("zs_rotary", in.dtype), args.tokens, kThreads, &args,
         static_cast<int>(dims.head_dim / 2 * 2 * size_of(DType::f32)));
}

}  // namespace

void fill_rotary(KernelTable& table, KernelNames& names) {
  table.scratch.rotary = [](int, const AttentionDims&) { return std::int64_t{0}; };
  table.rotary = rotary;
  add_typed(names, {"zs_rotary"});
}

}  // namespace zs::cuda
