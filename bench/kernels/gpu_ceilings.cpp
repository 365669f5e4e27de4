#include "bench/kernels/gpu_ceilings.h"

#include <algorithm>

namespace zs::bench {
namespace {

GpuCalls calls_of(Device& device, const char* name, Work call) {
  return {device, name, std::vector<Work>{std::move(call)}};
}

}  // namespace

GpuCopyCeiling::GpuCopyCeiling(Device& device, Ranks& ranks, const GpuCeilingSizes& sizes)
    : arrays_(device, 2 * sizes.copy_bytes),
      ranks_(ranks),
      bytes_(2.0 * static_cast<double>(sizes.copy_bytes)),
      sample_ms_(sizes.sample_ms) {
  const std::int64_t elems = sizes.copy_bytes / size_of(DType::f32);
  const Buffer out = arrays_.random(elems, DType::f32), in = arrays_.random(elems, DType::f32);
  ways_.push_back(calls_of(device, "copy", [=](ExecContext& exec) { kernels_of(exec).copy(exec, out, in); }));
  const RowCopy whole{.rows = 1, .run = elems, .out_stride = elems, .in_stride = elems};
  ways_.push_back(
      calls_of(device, "copy_rows", [=](ExecContext& exec) { kernels_of(exec).copy_rows(exec, out, in, whole); }));
}

void GpuCopyCeiling::measure() {
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    const std::int64_t count = ways_[i].count_in(sample_ms_);
    ranks_.meet();
    best_[i] = std::max(best_[i], ranks_.sum(bytes_ * static_cast<double>(count) / (ways_[i].run(count) * 1e6)));
  }
}

GpuProductCeiling::GpuProductCeiling(Device& device, Ranks& ranks, DType dtype, const GpuCeilingSizes& sizes)
    : arrays_(device), ranks_(ranks), sample_ms_(sizes.sample_ms) {
  const std::int64_t size = sizes.product_size;
  flops_ = 2.0 * static_cast<double>(size * size) * static_cast<double>(size);
  const Buffer c = arrays_.random(size * size, dtype), a = arrays_.random(size * size, dtype),
               b = arrays_.random(size * size, dtype);
  for (const bool transpose_b : {false, true}) {
    const MatmulDims dims{.m = size, .n = size, .k = size, .transpose_b = transpose_b};
    ways_.push_back(
        calls_of(device, "product", [=](ExecContext& exec) { kernels_of(exec).matmul(exec, c, a, b, {}, dims); }));
  }
}

double GpuProductCeiling::measure() {
  std::vector<double> rates;
  for (GpuCalls& way : ways_) {
    const std::int64_t count = way.count_in(sample_ms_);
    ranks_.meet();
    rates.push_back(flops_ * static_cast<double>(count) / (way.run(count) * 1e6));
  }
  ranks_.reduce(rates, ReduceOp::sum);
  return best_ = std::max(best_, *std::max_element(rates.begin(), rates.end()));
}

}  // namespace zs::bench
