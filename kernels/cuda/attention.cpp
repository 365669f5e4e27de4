#include <cmath>
#include <string>

#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

AttentionArgs attention_args(const Buffer& out, const Buffer& lse, const Buffer& qkv, const AttentionDims& dims) {
  checks::attention(out, lse, qkv, dims);
  return {.qkv = elements_of(qkv),
          .out = elements_of(out),
          .lse = floats_of(lse),
          .batch = dims.batch,
          .time = dims.time,
          .heads = dims.heads,
          .kv_heads = kv_heads_of(dims),
          .head_dim = dims.head_dim,
          .window = window_of(dims),
          .scale = 1.0f / std::sqrt(static_cast<float>(dims.head_dim)),
          .is_aligned = dims.head_dim % kRowElems == 0 && are_aligned(qkv.data, out.data)};
}

/// True if there are kernels on tensor cores for it.
bool is_for_tensor_cores(DType dtype, const AttentionArgs& args) {
  return dtype == DType::bf16 && (args.head_dim == 64 || args.head_dim == 128) && args.is_aligned;
}

/// `heads`: whose rows the blocks have, queries' or keys'.
std::int64_t blocks_of(const AttentionArgs& args, std::int64_t heads, std::int64_t rows) {
  return args.batch * heads * ((args.time + rows - 1) / rows);
}

void launch_general(ExecContext& ctx, const std::string& kernel, const AttentionArgs& args, std::int64_t heads) {
  const std::int64_t slices = (args.head_dim + kAttentionSlice - 1) / kAttentionSlice;
  launch(ctx, kernel, blocks_of(args, heads, kAttentionRows) * slices, kThreads, &args);
}

void launch_tensor(ExecContext& ctx, const std::string& kernel, const AttentionArgs& args, std::int64_t heads,
                   const AttentionShape& shape) {
  launch(ctx, kernel + "_" + std::to_string(args.head_dim), blocks_of(args, heads, shape.own), kAttentionThreads, &args,
         shape.shared_bytes);
}

/// Scratch for each row's delta.
std::int64_t attention_scratch(int, const AttentionDims& dims) {
  return dims.batch * dims.heads * dims.time * size_of(DType::f32);
}

void attention_forward(ExecContext& ctx, Buffer out, Buffer lse, Buffer qkv, const AttentionDims& dims) {
  const AttentionArgs args = attention_args(out, lse, qkv, dims);
  if (!is_for_tensor_cores(qkv.dtype, args))
    return launch_general(ctx, typed("zs_attention_forward", qkv.dtype), args, args.heads);
  launch_tensor(ctx, "zs_attention_forward", args, args.heads,
                args.head_dim == 64 ? kForwardShape<64> : kForwardShape<128>);
}

void attention_backward(ExecContext& ctx, Buffer dqkv, Buffer dout, Buffer out, Buffer qkv, Buffer lse,
                        const AttentionDims& dims) {
  AttentionArgs args = attention_args(out, lse, qkv, dims);
  checks::same_as("dqkv", dqkv, qkv);
  checks::same_as("dout", dout, out);
  args.dqkv = elements_of(dqkv);
  args.dout = elements_of(dout);
  args.delta = static_cast<float*>(ctx.scratch(attention_scratch(ctx.threads(), dims)));
  args.is_aligned = args.is_aligned && are_aligned(dqkv.data, dout.data);
  launch_elems(ctx, typed("zs_attention_delta", qkv.dtype), dims.batch * dims.heads * dims.time * kDeltaLanes, 1, args);
  if (!is_for_tensor_cores(qkv.dtype, args)) {
    launch_general(ctx, typed("zs_attention_dqueries", qkv.dtype), args, args.heads);
    return launch_general(ctx, typed("zs_attention_dkeys", qkv.dtype), args, args.kv_heads);
  }
  launch_tensor(ctx, "zs_attention_dqueries", args, args.heads,
                args.head_dim == 64 ? kQueriesShape<64> : kQueriesShape<128>);
  launch_tensor(ctx, "zs_attention_dkeys", args, args.kv_heads, args.head_dim == 64 ? kKeysShape<64> : kKeysShape<128>);
}

}  // namespace

void fill_attention(KernelTable& table, KernelNames& names) {
  table.scratch.attention = attention_scratch;
  table.attention_forward = attention_forward;
  table.attention_backward = attention_backward;
  add_typed(names, {"zs_attention_delta", "zs_attention_dkeys", "zs_attention_dqueries", "zs_attention_forward"});
  names.insert(names.end(), {"zs_attention_dkeys_128", "zs_attention_dkeys_64", "zs_attention_dqueries_128",
                             "zs_attention_dqueries_64", "zs_attention_forward_128", "zs_attention_forward_64"});
}

}  // namespace zs::cuda
