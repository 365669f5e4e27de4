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
EmulatedKernel kernel_of(void (*function)(Args), bool meets = false) {
  return {sizeof(Args), [function, meets](const void* args, const emulation::Launch& launch) {
            Args copy;
            std::memcpy(&copy, args, sizeof(Args));
            emulation::run_grid(launch, meets, [&] { function(copy); });
          }};
}

}  // namespace

std::map<std::string, EmulatedKernel> emulated_kernels() {
  return {
      {"zs_attention_forward", kernel_of(cuda::general::zs_attention_forward, true)},
      {"zs_attention_forward_64", kernel_of(cuda::zs_attention_forward_64, true)},
      {"zs_attention_forward_128", kernel_of(cuda::zs_attention_forward_128, true)},
      {"zs_attention_cached", kernel_of(cuda::zs_attention_cached, true)},
      {"zs_attention_delta", kernel_of(cuda::general::zs_attention_delta, true)},
      {"zs_attention_dqueries", kernel_of(cuda::general::zs_attention_dqueries, true)},
      {"zs_attention_dqueries_64", kernel_of(cuda::zs_attention_dqueries_64, true)},
      {"zs_attention_dqueries_128", kernel_of(cuda::zs_attention_dqueries_128, true)},
      {"zs_attention_dkeys", kernel_of(cuda::general::zs_attention_dkeys, true)},
      {"zs_attention_dkeys_64", kernel_of(cuda::zs_attention_dkeys_64, true)},
      {"zs_attention_dkeys_128", kernel_of(cuda::zs_attention_dkeys_128, true)},
      {"zs_map", kernel_of(cuda::zs_map)},
      {"zs_dropout", kernel_of(cuda::zs_dropout)},
      {"zs_reduce_lines", kernel_of(cuda::zs_reduce_lines)},
      {"zs_reduce_dims", kernel_of(cuda::zs_reduce_dims, true)},
      {"zs_take_lines", kernel_of(cuda::zs_take_lines)},
      {"zs_add_lines", kernel_of(cuda::zs_add_lines)},
      {"zs_cast", kernel_of(cuda::zs_cast)},
      {"zs_stochastic_cast", kernel_of(cuda::zs_stochastic_cast)},
      {"zs_pack_int8", kernel_of(cuda::zs_pack_int8, true)},
      {"zs_reduce_int8", kernel_of(cuda::zs_reduce_int8)},
      {"zs_pack_fp8", kernel_of(cuda::zs_pack_fp8, true)},
      {"zs_unpack_fp8", kernel_of(cuda::zs_unpack_fp8)},
      {"zs_add", kernel_of(cuda::zs_add)},
      {"zs_scale", kernel_of(cuda::zs_scale)},
      {"zs_accumulate", kernel_of(cuda::zs_accumulate)},
      {"zs_gelu_forward", kernel_of(cuda::zs_gelu_forward)},
      {"zs_gelu_backward", kernel_of(cuda::zs_gelu_backward)},
      {"zs_swiglu_forward", kernel_of(cuda::zs_swiglu_forward)},
      {"zs_swiglu_backward", kernel_of(cuda::zs_swiglu_backward)},
      {"zs_rotary", kernel_of(cuda::zs_rotary, true)},
      {"zs_copy_rows", kernel_of(cuda::zs_copy_rows)},
      {"zs_reduce", kernel_of(cuda::zs_reduce, true)},
      {"zs_finish_reduction", kernel_of(cuda::zs_finish_reduction, true)},
      {"zs_clip_coefficient", kernel_of(cuda::zs_clip_coefficient)},
      {"zs_adamw", kernel_of(cuda::zs_adamw)},
      {"zs_norm_of_powers", kernel_of(cuda::zs_norm_of_powers)},
      {"zs_clip_gradient", kernel_of(cuda::zs_clip_gradient)},
      {"zs_sgd", kernel_of(cuda::zs_sgd)},
      {"zs_lion", kernel_of(cuda::zs_lion)},
      {"zs_blockwise_adamw_scales", kernel_of(cuda::zs_blockwise_adamw_scales, true)},
      {"zs_blockwise_adamw", kernel_of(cuda::zs_blockwise_adamw, true)},
      {"zs_embedding_forward", kernel_of(cuda::zs_embedding_forward)},
      {"zs_sort_ids", kernel_of(cuda::zs_sort_ids, true)},
      {"zs_embedding_backward", kernel_of(cuda::zs_embedding_backward, true)},
      {"zs_position_backward", kernel_of(cuda::zs_position_backward)},
      {"zs_bias_sums", kernel_of(cuda::zs_bias_sums, true)},
      {"zs_layer_norm_sums", kernel_of(cuda::zs_layer_norm_sums, true)},
      {"zs_rms_norm_sums", kernel_of(cuda::zs_rms_norm_sums, true)},
      {"zs_reduce_columns", kernel_of(cuda::zs_reduce_columns, true)},
      {"zs_layer_norm_forward", kernel_of(cuda::zs_layer_norm_forward, true)},
      {"zs_layer_norm_forward_wide", kernel_of(cuda::zs_layer_norm_forward_wide, true)},
      {"zs_layer_norm_backward", kernel_of(cuda::zs_layer_norm_backward, true)},
      {"zs_layer_norm_gradients_f32", kernel_of(cuda::zs_layer_norm_gradients_f32, true)},
      {"zs_layer_norm_gradients_bf16", kernel_of(cuda::zs_layer_norm_gradients_bf16, true)},
      {"zs_layer_norm_gradients_wide", kernel_of(cuda::zs_layer_norm_gradients_wide, true)},
      {"zs_rms_norm_forward", kernel_of(cuda::zs_rms_norm_forward, true)},
      {"zs_rms_norm_forward_wide", kernel_of(cuda::zs_rms_norm_forward_wide, true)},
      {"zs_rms_norm_backward", kernel_of(cuda::zs_rms_norm_backward, true)},
      {"zs_rms_norm_gradients_f32", kernel_of(cuda::zs_rms_norm_gradients_f32, true)},
      {"zs_rms_norm_gradients_bf16", kernel_of(cuda::zs_rms_norm_gradients_bf16, true)},
      {"zs_rms_norm_gradients_wide", kernel_of(cuda::zs_rms_norm_gradients_wide, true)},
      {"zs_cross_entropy_forward", kernel_of(cuda::zs_cross_entropy_forward, true)},
      {"zs_cross_entropy_backward", kernel_of(cuda::zs_cross_entropy_backward)},
      {"zs_cross_entropy_in_place_f32", kernel_of(cuda::zs_cross_entropy_in_place_f32, true)},
      {"zs_cross_entropy_in_place_bf16", kernel_of(cuda::zs_cross_entropy_in_place_bf16, true)},
  };
}

}  // namespace zs::test
