#pragma once

#include <cstdint>

#include "runtime/base/buffer.h"
#include "runtime/device/stream.h"

namespace zs {

struct AttentionDims;

/// Attention with sinks (heads), f32 or bf16: a logit more in the softmax of each of a head's rows, which has no value.
/// Null in a back end that has none. attention_backward is as without, by what these leave in out and lse.
struct SinkKernels {
  /// attention_forward; lse has the sink in it
  void (*forward)(ExecContext& ctx, Buffer out, Buffer lse, Buffer qkv, Buffer sinks, const AttentionDims& dims);
  /// attention_cached
  void (*cached)(ExecContext& ctx, Buffer out, Buffer scores, Buffer qkv, Buffer cache, Buffer sinks,
                 const AttentionDims& dims, std::int64_t first);
  /// dsinks (heads), f32 or the sinks' dtype, := -sum over rows of e^(sink - lse) rowsum(dout * out) + beta * dsinks
  void (*backward)(ExecContext& ctx, Buffer dsinks, Buffer dout, Buffer out, Buffer lse, Buffer sinks,
                   const AttentionDims& dims, float beta);
};

}  // namespace zs
