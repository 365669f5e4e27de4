#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

void launch_blocks(ExecContext& ctx, const char* kernel, const BlockwiseAdamW& of, const AdamWOptions& options) {
  static constexpr DynamicCodes kSigned = dynamic_codes(true), kUnsigned = dynamic_codes(false);
  checks::blockwise_adamw(of);
  BlockwiseAdamWArgs args{.master = floats_of(of.master),
                          .copy = static_cast<std::uint16_t*>(elements_or_none(of.copy)),
                          .grad = floats_of(of.grad),
                          .scalars = static_cast<const StepScalars*>(of.scalars.data),
                          .m = static_cast<std::uint8_t*>(of.m.data),
                          .v = static_cast<std::uint8_t*>(of.v.data),
                          .m_scales = floats_of(of.m_scales),
                          .v_scales = floats_of(of.v_scales),
                          .new_m_scales = floats_of(of.new_m_scales),
                          .new_v_scales = floats_of(of.new_v_scales),
                          .elems = of.master.elems,
                          .part = of.part,
                          .options = options,
                          .weight_decay = of.weight_decay,
                          .m_codes = kSigned,
                          .v_codes = kUnsigned};
  launch(ctx, kernel, of.m_scales.elems, kThreads, &args);
}

void blockwise_adamw_scales(ExecContext& ctx, const BlockwiseAdamW& of, const AdamWOptions& options) {
  launch_blocks(ctx, "zs_blockwise_adamw_scales", of, options);
}

void blockwise_adamw(ExecContext& ctx, const BlockwiseAdamW& of, const AdamWOptions& options) {
  launch_blocks(ctx, "zs_blockwise_adamw", of, options);
}

}  // namespace

void fill_blockwise_adamw(KernelTable& table, KernelNames& names) {
  table.blockwise_adamw_scales = blockwise_adamw_scales;
  table.blockwise_adamw = blockwise_adamw;
  names.insert(names.end(), {"zs_blockwise_adamw_scales", "zs_blockwise_adamw"});
}

}  // namespace zs::cuda
