#include "tests/gpu/emulation/kernels.h"

#include <cstring>

#include "tests/gpu/emulation/cuda.h"
// Behind it: they are compiled here, by the host's compiler.
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/attention_backward.cu"
#include "kernels/cuda/attention_cached.cu"
#include "kernels/cuda/attention_general.cu"
#include "kernels/cuda/blockwise_adamw.cu"
#include "kernels/cuda/elementwise.cu"
#include "kernels/cuda/int8_blocks.cu"
#include "kernels/cuda/lines.cu"
#include "kernels/cuda/loss.cu"
#include "kernels/cuda/map.cu"
#include "kernels/cuda/nf4_blocks.cu"
#include "kernels/cuda/norms.cu"
#include "kernels/cuda/optimizer.cu"
#include "kernels/cuda/reduce.cu"
#include "kernels/cuda/rotary.cu"
#include "kernels/cuda/rows.cu"
#include "kernels/cuda/stochastic_cast.cu"

namespace zs::test {
namespace {

/// `meets`: its blocks have barriers.
template <class Args>
EmulatedKernel kernel_of(void (*function)(Args), bool meets) {
  return {sizeof(Args), [function, meets](const void* args, const emulation::Launch& launch) {
            Args copy;
            std::memcpy(&copy, args, sizeof(Args));
            emulation::run_grid(launch, meets, [&] { function(copy); });
          }};
}

using namespace cuda;
using namespace cuda::general;

/// A kernel, one of each dtype, one of each pair: see device.h. `meets`: its blocks have barriers.
#define ZS_EMULATED(name, meets) \
  { #name, kernel_of(name, meets) }
#define ZS_EMULATED_TYPED(name, meets) ZS_EMULATED(name##_f32, meets), ZS_EMULATED(name##_bf16, meets)
#define ZS_EMULATED_PAIR(name, meets) ZS_EMULATED_TYPED(name##_f32, meets), ZS_EMULATED_TYPED(name##_bf16, meets)

}  // namespace

std::map<std::string, EmulatedKernel> emulated_kernels() {
  return {
      ZS_EMULATED_TYPED(zs_attention_forward, true),
      ZS_EMULATED(zs_attention_forward_64, true),
      ZS_EMULATED(zs_attention_forward_128, true),
      ZS_EMULATED_TYPED(zs_attention_cached, true),
      ZS_EMULATED_TYPED(zs_attention_delta, true),
      ZS_EMULATED_TYPED(zs_attention_dqueries, true),
      ZS_EMULATED(zs_attention_dqueries_64, true),
      ZS_EMULATED(zs_attention_dqueries_128, true),
      ZS_EMULATED_TYPED(zs_attention_dkeys, true),
      ZS_EMULATED(zs_attention_dkeys_64, true),
      ZS_EMULATED(zs_attention_dkeys_128, true),
      ZS_EMULATED(zs_map, false),
      ZS_EMULATED_TYPED(zs_dropout, false),
      ZS_EMULATED_TYPED(zs_reduce_lines, false),
      ZS_EMULATED_TYPED(zs_reduce_dims, true),
      ZS_EMULATED_TYPED(zs_take_lines, false),
      ZS_EMULATED_TYPED(zs_add_lines, false),
      ZS_EMULATED(zs_order_lines, false),
      ZS_EMULATED(zs_sum_lines, false),
      ZS_EMULATED_PAIR(zs_cast, false),
      ZS_EMULATED(zs_stochastic_cast, false),
      ZS_EMULATED_TYPED(zs_pack_int8, true),
      ZS_EMULATED_TYPED(zs_reduce_int8, false),
      ZS_EMULATED_TYPED(zs_pack_fp8, true),
      ZS_EMULATED_TYPED(zs_unpack_fp8, false),
      ZS_EMULATED_TYPED(zs_unpack_nf4, true),
      ZS_EMULATED_TYPED(zs_add, false),
      ZS_EMULATED_TYPED(zs_scale, false),
      ZS_EMULATED_PAIR(zs_accumulate, false),
      ZS_EMULATED_TYPED(zs_gelu_forward, false),
      ZS_EMULATED_TYPED(zs_gelu_backward, false),
      ZS_EMULATED_TYPED(zs_swiglu_forward, false),
      ZS_EMULATED_TYPED(zs_swiglu_backward, false),
      ZS_EMULATED_TYPED(zs_geglu_forward, false),
      ZS_EMULATED_TYPED(zs_geglu_backward, false),
      ZS_EMULATED_TYPED(zs_rotary, true),
      ZS_EMULATED(zs_copy_rows, false),
      ZS_EMULATED(zs_reduce, true),
      ZS_EMULATED(zs_finish_reduction, true),
      ZS_EMULATED(zs_clip_coefficient, false),
      ZS_EMULATED(zs_correct_scalars, false),
      ZS_EMULATED(zs_count_updates, false),
      ZS_EMULATED(zs_update, false),
      ZS_EMULATED(zs_norm_of_powers, false),
      ZS_EMULATED_TYPED(zs_clip_gradient, false),
      ZS_EMULATED(zs_blockwise_adamw_scales, true),
      ZS_EMULATED(zs_blockwise_adamw, true),
      ZS_EMULATED_TYPED(zs_embedding_forward, false),
      ZS_EMULATED(zs_sort_ids, true),
      ZS_EMULATED_PAIR(zs_embedding_backward, true),
      ZS_EMULATED_PAIR(zs_position_backward, false),
      ZS_EMULATED_TYPED(zs_bias_sums, true),
      ZS_EMULATED_TYPED(zs_layer_norm_sums, true),
      ZS_EMULATED_TYPED(zs_rms_norm_sums, true),
      ZS_EMULATED_PAIR(zs_reduce_columns, true),
      ZS_EMULATED_TYPED(zs_layer_norm_forward, true),
      ZS_EMULATED_PAIR(zs_layer_norm_forward_any, true),
      ZS_EMULATED(zs_layer_norm_forward_wide, true),
      ZS_EMULATED_PAIR(zs_layer_norm_backward, true),
      ZS_EMULATED_TYPED(zs_layer_norm_gradients, true),
      ZS_EMULATED(zs_layer_norm_gradients_wide, true),
      ZS_EMULATED_TYPED(zs_rms_norm_forward, true),
      ZS_EMULATED_PAIR(zs_rms_norm_forward_any, true),
      ZS_EMULATED(zs_rms_norm_forward_wide, true),
      ZS_EMULATED_PAIR(zs_rms_norm_backward, true),
      ZS_EMULATED_TYPED(zs_rms_norm_gradients, true),
      ZS_EMULATED(zs_rms_norm_gradients_wide, true),
      ZS_EMULATED(zs_cross_entropy_forward, true),
      ZS_EMULATED_TYPED(zs_cross_entropy_backward, false),
      ZS_EMULATED_TYPED(zs_cross_entropy_in_place, true),
  };
}

}  // namespace zs::test
