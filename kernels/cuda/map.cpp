#include "kernels/cuda/launch.h"
#include "kernels/dropout_random.h"
#include "kernels/families.h"
#include "kernels/general_checks.h"

namespace zs::cuda {
namespace {

static_assert(kMostDims == Shape::kMaxDims);

StridedOperand operand_of(const Strided& operand, float constant) {
  StridedOperand result{
      operand.buffer.empty() ? nullptr : operand.buffer.data, kind_of(operand.buffer.dtype), {}, constant};
  ZS_CHECK(operand.buffer.empty() || operand.buffer.device == DeviceKind::cuda,
           "a CUDA kernel got a buffer of device {}", name_of(operand.buffer.device));
  for (std::size_t d = 0; d < operand.strides.size(); ++d) result.strides[d] = operand.strides[d];
  return result;
}

void map(ExecContext& ctx, const Map& map) {
  if (map.shape.numel() == 0) return;
  checks::map(map);
  StridedMapArgs args{.op = map.op,
                      .dims = map.shape.rank(),
                      .sizes = {},
                      .elems = map.shape.numel(),
                      .out = operand_of(map.out, 0),
                      .in = {}};
  for (int d = 0; d < args.dims; ++d) args.sizes[d] = map.shape[d];
  for (std::size_t k = 0; k < map.in.size(); ++k) args.in[k] = operand_of(map.in[k], map.constants[k]);
  if (keeps_bits(map)) args.out.kind = args.in[0].kind = args.in[1].kind = args.in[2].kind = ElementKind::f32;
  launch_elems(ctx, "zs_map", args.elems, 1, args);
}

void dropout(ExecContext& ctx, Buffer out, Buffer in, const DropoutMask& mask) {
  const DropoutArgs args{.out = elements_of(out),
                         .in = elements_of(in),
                         .elems = checks::dropout(out, in, mask),
                         .first = mask.first,
                         .key = mask.key,
                         .threshold = dropout_threshold(mask.probability),
                         .factor = 1.0f / (1.0f - mask.probability)};
  launch_elems(ctx, typed("zs_dropout", out.dtype), args.elems, 1, args);
}

}  // namespace

void fill_map(KernelTable& table, KernelNames& names) {
  table.map = map;
  table.dropout = dropout;
  names.push_back("zs_map");
  add_typed(names, {"zs_dropout"});
}

}  // namespace zs::cuda
