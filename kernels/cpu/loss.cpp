#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/stream_store.h"
#include "kernels/cpu/vec_math.h"

namespace zs::cpu::ZS_ISA {
namespace {

float row_max(const float* x, std::int64_t n) {
  constexpr int kCount = 4 * kLanes;
  const std::int64_t whole = n / kCount * kCount;
  float largest = x[0];
  if (whole > 0) {
    LanesOf<kCount> lanes;
    for (Vec& v : lanes.v) v += largest;
    for (std::int64_t i = 0; i < whole; i += kCount) lanes.max(x + i);
    largest = reduce_max(lanes);
  }
  for (std::int64_t i = whole; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

/// log(sum of e^x) in one reading of memory: a chunk's largest element, then its exponentials, while it lies in the
/// first cache and the chunk after it is on its way there. What was added before is rescaled where a chunk has a
/// larger element (Milakov, Gimelshein 2018). A vocabulary is long: the sums of its chunks are carried in f64.
double log_sum_exp(const float* x, std::int64_t n) {
  constexpr std::int64_t kChunk = 1024;
  float largest = -__FLT_MAX__;  // not -infinity: a chunk of nothing else adds 0
  double total = 0;              // sum of e^(x - largest)
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const float* chunk = x + begin;
    const std::int64_t count = min_of(kChunk, n - begin);
    if (const float high = row_max(chunk, count); high > largest) {
      total *= __builtin_exp(static_cast<double>(largest) - static_cast<double>(high));
      largest = high;
    }
    total += static_cast<double>(lane_sum<Order::in_line>(count, [=](std::int64_t i, auto part) {
      fetch_ahead<kChunk * sizeof(float)>(chunk + i, part);
      return each([](Vec v) { return exp_of(v); }, load(chunk + i, part) - largest);
    }));
  }
  return static_cast<double>(largest) + __builtin_log(total);
}

template <class T>
void backward_row(const CrossEntropy& args, std::int64_t row, bool is_streamed) {
  const float* x = args.logits + row * args.stride;
  T* dx = elements<T>(args.dlogits) + row * args.stride;
  const float lse = args.lse[row], factor = args.factor;
  const std::int64_t target = args.targets[row];
  const bool has_target = target != kNoTarget;
  const float at_target = has_target ? (exp_of(x[target] - lse) - 1.0f) * factor : 0.0f;
  store_range<Order::in_line>(dx, 0, args.classes, is_streamed, [=](std::int64_t c, auto part) {
    fetch_ahead(x + c, part);
    return each([](Vec v) { return exp_of(v); }, load(x + c, part) - lse) * factor;
  });
  if (has_target) dx[target] = from_float<T>(at_target);
  for (std::int64_t c = args.classes; c < args.stride; ++c) dx[c] = T{};
}

void cross_entropy_forward(int threads, const CrossEntropy& args) {
  parallel_ranges(split_rows(threads, args.rows, args.classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const float* x = args.logits + row * args.stride;
      const double lse = log_sum_exp(x, args.classes);
      args.lse[row] = static_cast<float>(lse);
      const std::int32_t target = args.targets[row];
      args.losses[row] = static_cast<float>(target == kNoTarget ? lse : lse - static_cast<double>(x[target]));
    }
  });
}

void cross_entropy_backward(int threads, const CrossEntropy& args) {
  with_type(args.dlogits, [&](auto tag) {
    using T = decltype(tag);
    const Data logits{const_cast<float*>(args.logits), false};
    const bool is_streamed = streams<T>(args.dlogits, args.rows * args.stride, logits, logits);
    parallel_ranges(split_rows(threads, args.rows, args.stride), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) backward_row<T>(args, row, is_streamed);
      end_streaming(is_streamed);
    });
  });
}

}  // namespace

void fill_loss(Isa& isa) {
  isa.cross_entropy_forward = cross_entropy_forward;
  isa.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

CrossEntropy cross_entropy_args(const Buffer& lse, const Buffer& logits, const Buffer& targets, std::int64_t classes) {
  const std::int64_t rows = targets.elems, stride = checks::cross_entropy(lse, logits, targets, classes);
  check_indices("target", targets.as<std::int32_t>(), rows, classes, kNoTarget);
  return {.losses = nullptr,
          .lse = floats_of(lse),
          .logits = floats_of(logits),
          .dlogits = {},
          .targets = targets.as<std::int32_t>(),
          .rows = rows,
          .stride = stride,
          .classes = classes,
          .factor = 1.0f};
}

void cross_entropy_forward(ExecContext& ctx, Buffer losses, Buffer lse, Buffer logits, Buffer targets,
                           std::int64_t classes) {
  if (targets.empty()) return;
  CrossEntropy args = cross_entropy_args(lse, logits, targets, classes);
  checks::cross_entropy_losses(losses, targets);
  args.losses = floats_of(losses);
  isa().cross_entropy_forward(ctx.threads(), args);
}

void cross_entropy_backward(ExecContext& ctx, Buffer dlogits, Buffer logits, Buffer lse, Buffer targets, Buffer dloss,
                            std::int64_t classes, float factor) {
  if (targets.empty()) return;
  CrossEntropy args = cross_entropy_args(lse, logits, targets, classes);
  checks::cross_entropy_gradient(dlogits, logits, dloss);
  args.dlogits = data_of(dlogits);
  args.factor = factor * *floats_of(dloss);
  isa().cross_entropy_backward(ctx.threads(), args);
}

}  // namespace

void fill_loss(KernelTable& table) {
  table.cross_entropy_forward = cross_entropy_forward;
  table.cross_entropy_backward = cross_entropy_backward;
}

}  // namespace zs::cpu
#endif
