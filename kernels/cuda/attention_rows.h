#pragma once

#include "kernels/cuda/device.h"

/// Rows of one head, and where they lie in attention's tensors.
namespace zs::cuda {

/// Row t of a head: T at[t * stride], head_dim elements.
struct HeadRows {
  void* data;
  std::int64_t first, stride;
};

/// pair = batch * heads + head
__device__ inline HeadRows rows_of_out(const AttentionArgs& args, void* data, std::int64_t pair) {
  const std::int64_t stride = args.heads * args.head_dim;
  return {data, pair / args.heads * args.time * stride + pair % args.heads * args.head_dim, stride};
}
enum class Part : std::uint8_t { query, key, value };
__device__ inline HeadRows rows_of_qkv(const AttentionArgs& args, void* data, std::int64_t pair, Part part) {
  const std::int64_t stride = (args.heads + 2 * args.kv_heads) * args.head_dim, head = pair % args.heads;
  const std::int64_t key_head = args.heads + head / (args.heads / args.kv_heads);
  const std::int64_t at = part == Part::query ? head : part == Part::key ? key_head : key_head + args.kv_heads;
  return {data, pair / args.heads * args.time * stride + at * args.head_dim, stride};
}

/// The first key that query `query` sees; and the index after the last query that sees any of the keys before `end`.
__device__ inline std::int64_t first_key(const AttentionArgs& args, std::int64_t query) {
  return query < args.window ? 0 : query + 1 - args.window;
}
__device__ inline std::int64_t end_of_queries(const AttentionArgs& args, std::int64_t end) {
  return end - 1 + args.window < args.time ? end - 1 + args.window : args.time;
}

inline constexpr float kMinusInfinity = -__builtin_inff();

}  // namespace zs::cuda
