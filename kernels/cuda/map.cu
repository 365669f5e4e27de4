#include "kernels/cuda/device.h"
#include "kernels/cuda/general_args.h"
#include "kernels/dropout_random.h"

namespace zs::cuda {
namespace {

__device__ float load_strided(const StridedOperand& operand, std::int64_t offset) {
  if (operand.address == nullptr) return operand.constant;
  if (operand.kind == ElementKind::f32) return static_cast<const float*>(operand.address)[offset];
  if (operand.kind == ElementKind::bf16) return to_float(static_cast<const Bf16*>(operand.address)[offset]);
  return static_cast<float>(static_cast<const std::int32_t*>(operand.address)[offset]);
}

__device__ void store_strided(const StridedOperand& operand, std::int64_t offset, float value) {
  if (operand.kind == ElementKind::f32) static_cast<float*>(operand.address)[offset] = value;
  if (operand.kind == ElementKind::bf16) static_cast<Bf16*>(operand.address)[offset] = from_float<Bf16>(value);
  if (operand.kind == ElementKind::i32)
    static_cast<std::int32_t*>(operand.address)[offset] = static_cast<std::int32_t>(value);
}

template <class T>
__device__ void dropout(const DropoutArgs& args) {
  const std::int64_t i = global_thread();
  if (i >= args.elems) return;
  const bool keeps = is_kept(args.key, static_cast<std::uint64_t>(args.first + i), args.threshold);
  static_cast<T*>(args.out)[i] =
      from_float<T>(keeps ? to_float(static_cast<const T*>(args.in)[i]) * args.factor : 0.0f);
}

}  // namespace

/// An element for each thread. (Of four operands, each of three dtypes, there would be too many kernels. Loops over
/// dims have a fixed number of rounds, so that the arguments stay where they are.)
extern "C" __global__ void zs_map(const StridedMapArgs args) {
  const std::int64_t element = global_thread();
  if (element >= args.elems) return;
  std::int64_t rest = element, out = 0, a = 0, b = 0, c = 0;
  for (int d = kMostDims - 1; d >= 0; --d) {
    if (d >= args.dims) continue;
    const std::int64_t place = rest % args.sizes[d];
    rest /= args.sizes[d];
    out += place * args.out.strides[d];
    a += place * args.in[0].strides[d];
    b += place * args.in[1].strides[d];
    c += place * args.in[2].strides[d];
  }
  const float x = load_strided(args.in[0], a), y = load_strided(args.in[1], b), z = load_strided(args.in[2], c);
  if ((args.op == MapOp::floor_div || args.op == MapOp::remainder) && bits_of(y) == 0) __trap();
  float value = 0;
  with_map_op(args.op, [&](auto tag) { value = map_value<decltype(tag)::value>(x, y, z); });
  store_strided(args.out, out, value);
}

ZS_KERNEL(zs_dropout, DropoutArgs, dropout<T>(args))

}  // namespace zs::cuda
