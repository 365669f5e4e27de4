#if defined(ZS_ISA)
#include "kernels/cpu/isa_families.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/stream_store.h"

namespace zs::cpu::ZS_ISA {
namespace {

/// Ways of storing a row: results may be streamed, and bf16 taken apart: only where every row begins with a line do
/// gamma and its like keep to it.
template <class T>
struct RowStores {
  bool is_streamed, is_apart;
  RowStores(Data out, Rows rows, Data a, Data b, Data c)
      : is_streamed(streams<T>(out, rows.count * rows.width, a, b) && out.address != c.address),
        is_apart(sizeof(T) == 2 && (!is_streamed || (begins_line(out) && rows.width * 2 % kLineBytes == 0))) {}
};

/// body(order) with the order as a constant.
template <class T, class Body>
void with_order(bool is_apart, Body body) {
  if constexpr (sizeof(T) == 2) {
    if (is_apart) return body(Two<Order::apart>{});
  }
  body(Two<Order::in_line>{});
}

template <bool kIs>
struct Has {};
/// body(Has) with whether there is this operand as a constant.
template <class Body>
void with_optional(Data data, Body body) {
  data.address != nullptr ? body(Has<true>{}) : body(Has<false>{});
}

constexpr int kRowsTogether = 2;
template <int kCount>
struct RowGroup {
  static constexpr int value = kCount;
};

/// body(row, RowGroup, ahead) for every kRowsTogether rows of [begin, end), and what is left one by one; ahead: rows to
/// as many that follow, or 0 where there are not as many.
template <class Body>
void for_each_row_group(std::int64_t begin, std::int64_t end, Body body) {
  constexpr std::int64_t kMany = kRowsTogether;
  std::int64_t row = begin;
  for (; row + kMany <= end; row += kMany) body(row, RowGroup<kRowsTogether>{}, row + 2 * kMany <= end ? kMany : 0);
  for (; row < end; ++row) body(row, RowGroup<1>{}, 0);
}

/// Layer norm takes the mean from a row and adds beta; RMS norm does neither.
enum class Norm { layer, rms };

template <Norm kNorm, class V>
inline auto centred(V x, float mean) {
  return kNorm == Norm::layer ? x - mean : x;
}

/// Input that a row normalises: x, or its sum with the residual. In f32 that is cheaper added again from the first
/// cache than written first: an ordinary store reads the line from memory. In bf16 rounding again would cost more than
/// that, so it is written, and read back.
template <bool kHasResidual, class T>
struct InputRow {
  static constexpr bool kIsSumFirst = kHasResidual && sizeof(T) != sizeof(float);
  const T *x, *residual;
  T* sum;

  template <class P>
  auto at(std::int64_t i, P part) const {
    if constexpr (kIsSumFirst)
      return load(sum + i, part);
    else if constexpr (kHasResidual)
      return added(i, part);
    else
      return load(x + i, part);
  }
  template <class P>
  auto added(std::int64_t i, P part) const {
    return load(x + i, part) + load(residual + i, part);
  }
  template <Order kOrder>
  void store_sum(std::int64_t width, bool is_streamed) const {
    store_range<kOrder>(sum, 0, width, is_streamed,
                        [row = *this](std::int64_t i, auto part) { return row.added(i, part); });
  }
  template <class P>
  void fetch_at(std::int64_t i, P part) const {
    fetch(x + i, part);
    if constexpr (kHasResidual) fetch(residual + i, part);
  }
};

/// Results that are stored past the caches.
struct Streamed {
  bool y, sum;
};

/// kRows rows: a sum is folded, and what follows from it computed, while the next row is summed. ahead: elements to the
/// rows that follow, or 0.
template <Norm kNorm, Order kOrder, bool kHasResidual, int kRows, class T>
void forward_rows(const LayerNormForward& args, std::int64_t row, std::int64_t ahead, Streamed is_streamed) {
  const std::int64_t width = args.rows.width;
  const float count = static_cast<float>(width), *gamma = args.wide, *beta = args.wide + width;
  float *rstd = args.rstd + row, mean[kRows] = {};
  InputRow<kHasResidual, T> rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t at = (row + r) * width;
    rows[r] = {elements<const T>(args.x) + at, kHasResidual ? elements<const T>(args.residual) + at : nullptr,
               kHasResidual ? elements<T>(args.sum) + at : nullptr};
    if constexpr (InputRow<kHasResidual, T>::kIsSumFirst) rows[r].template store_sum<kOrder>(width, false);
    if constexpr (kNorm == Norm::layer)
      args.mean[row + r] = mean[r] =
          lane_sum<kOrder>(width, [x = rows[r]](std::int64_t i, auto part) { return x.at(i, part); }) / count;
  }
  for (int r = 0; r < kRows; ++r) {
    const auto square = [x = rows[r], mean = mean[r]](std::int64_t i, auto part) {
      const auto d = centred<kNorm>(x.at(i, part), mean);
      return d * d;
    };
    rstd[r] = 1.0f / __builtin_sqrtf(lane_sum<kOrder>(width, square) / count + args.eps);
  }
  for (int r = 0; r < kRows; ++r) {
    const auto value = [=, x = rows[r], mean = mean[r], rstd = rstd[r]](std::int64_t i, auto part) {
      x.fetch_at(i + ahead, part);
      const auto y = centred<kNorm>(x.at(i, part), mean) * rstd * load(gamma + i, part);
      if constexpr (kNorm == Norm::rms) return y;
      return y + load(beta + i, part);
    };
    store_range<kOrder>(elements<T>(args.y) + (row + r) * width, 0, width, is_streamed.y, value);
    if constexpr (kHasResidual && !InputRow<kHasResidual, T>::kIsSumFirst)  // last: it may be x or the residual
      rows[r].template store_sum<kOrder>(width, is_streamed.sum);
  }
}

/// A row, and where its block of rows gathers the sums for gamma and beta.
template <Norm kNorm, Order kOrder, class T>
struct BackwardRow {
  const T *x, *dy;
  std::int64_t width;
  float mean, rstd;
  const float* gamma;
  float *dgamma, *dbeta;

  /// Sums of g and of g xhat over the row.
  void sums(float* g_sum, float* gx_sum) const {
    constexpr int kCount = 2 * kLanes;
    LanesOf<kCount> g_lanes, gx_lanes;
    const auto visit = [&, to_gamma = dgamma, to_beta = dbeta](std::int64_t i, auto part, std::int64_t k) {
      const auto gradient = load(dy + i, part), xhat = centred<kNorm>(load(x + i, part), mean) * rstd;
      const auto g = gradient * load(gamma + i, part);
      store(to_gamma + i, load(to_gamma + i, part) + gradient * xhat, part);
      if constexpr (kNorm == Norm::layer) {
        store(to_beta + i, load(to_beta + i, part) + gradient, part);
        g_lanes.add_at(k, keep(g, part));
      }
      gx_lanes.add_at(k, keep(g * xhat, part));
    };
    for_each_in_runs<kCount, kOrder>(width, visit, [&] {
      g_lanes.put_together();
      gx_lanes.put_together();
    });
    *g_sum = reduce_sum(g_lanes);
    *gx_sum = reduce_sum(gx_lanes);
  }
};

/// Backward of rows. With xhat = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - xhat mean(g xhat)); dgamma
/// += dy xhat, dbeta += dy. The rows are read from memory by the sums and from the first cache by dx, which may be dy.
/// RMS norm: the same without means of x and of g, and without beta. ahead: elements to the rows that follow, or 0.
template <Norm kNorm, Order kOrder, bool kHasSkip, int kRows, class T>
void backward_rows(const LayerNormBackward& args, float* sums, std::int64_t row, std::int64_t ahead, bool is_streamed) {
  const std::int64_t width = args.rows.width;
  const float count = static_cast<float>(width), *gamma = args.wide;
  BackwardRow<kNorm, kOrder, T> rows[kRows];
  float g_sum[kRows], gx_sum[kRows];
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t at = (row + r) * width;
    rows[r] = {elements<const T>(args.x) + at,
               elements<const T>(args.dy) + at,
               width,
               kNorm == Norm::layer ? args.mean[row + r] : 0.0f,
               args.rstd[row + r],
               gamma,
               sums,
               sums + width};
    rows[r].sums(&g_sum[r], &gx_sum[r]);
  }
  for (int r = 0; r < kRows; ++r) {
    const std::int64_t at = (row + r) * width;
    const T* skip = kHasSkip ? elements<const T>(args.skip) + at : nullptr;
    const auto value = [=, x = rows[r].x, dy = rows[r].dy, mean = rows[r].mean, rstd = rows[r].rstd,
                        mean_g = g_sum[r] / count, mean_gx = gx_sum[r] / count](std::int64_t i, auto part) {
      fetch(x + ahead + i, part);
      fetch(dy + ahead + i, part);
      if constexpr (kHasSkip) fetch(skip + ahead + i, part);
      const auto xhat = centred<kNorm>(load(x + i, part), mean) * rstd;
      const auto dx = (centred<kNorm>(load(dy + i, part) * load(gamma + i, part), mean_g) - xhat * mean_gx) * rstd;
      if constexpr (kHasSkip)
        return as_stored<T>(dx) + load(skip + i, part);
      else
        return dx;
    };
    store_range<kOrder>(elements<T>(args.dx) + at, 0, width, is_streamed, value);
  }
}

template <Norm kNorm, Order kOrder, bool kHasSkip, class T>
void backward_block(const LayerNormBackward& args, std::int64_t block, bool is_streamed) {
  const RowBlocks blocks = row_blocks(args.rows.count);
  const std::int64_t width = args.rows.width, end = min_of(args.rows.count, (block + 1) * blocks.rows);
  float* sums = args.parts + block * 2 * width;
  for (std::int64_t c = 0; c < 2 * width; ++c) sums[c] = 0.0f;
  for_each_row_group(block * blocks.rows, end, [&](std::int64_t row, auto group, std::int64_t ahead) {
    backward_rows<kNorm, kOrder, kHasSkip, group.value, T>(args, sums, row, ahead * width, is_streamed);
  });
  if (kOrder == Order::in_line) return;
  put_together(sums, width);
  put_together(sums + width, width);
}

/// out := in + offset
template <Order kOrder>
void widen(float* out, Data in, std::int64_t n, float offset = 0) {
  with_type(in, [&](auto tag) { lay_out<kOrder>(out, elements<const decltype(tag)>(in), n); });
  if (offset == 0) return;
  for (std::int64_t i = 0; i < n; ++i) out[i] += offset;
}

template <Norm kNorm, bool kHasResidual>
void norm_forward(int threads, const LayerNormForward& args) {
  with_type(args.x, [&](auto tag) {
    using T = decltype(tag);
    const RowStores<T> stores(args.y, args.rows, args.x, args.residual, args.sum);
    const std::int64_t width = args.rows.width;
    const Streamed is_streamed{stores.is_streamed,
                               kHasResidual && streams<T>(args.sum, args.rows.count * width, args.x, args.residual)};
    with_order<T>(stores.is_apart, [&]<Order kOrder>(Two<kOrder>) {
      widen<kOrder>(args.wide, args.gamma, width, args.offset);
      if constexpr (kNorm == Norm::layer) widen<kOrder>(args.wide + width, args.beta, width);
      parallel_ranges(split_rows(threads, args.rows.count, width), [=](std::int64_t begin, std::int64_t end) {
        for_each_row_group(begin, end, [&](std::int64_t row, auto group, std::int64_t ahead) {
          forward_rows<kNorm, kOrder, kHasResidual, group.value, T>(args, row, ahead * width, is_streamed);
        });
        end_streaming(is_streamed.y || is_streamed.sum);
      });
    });
  });
}

template <Norm kNorm, bool kHasSkip>
void norm_backward(int threads, const LayerNormBackward& args) {
  const RowBlocks blocks = row_blocks(args.rows.count);
  with_type(args.x, [&](auto tag) {
    using T = decltype(tag);
    const RowStores<T> stores(args.dx, args.rows, args.dy, args.x, args.skip);
    with_order<T>(stores.is_apart, [&]<Order kOrder>(Two<kOrder>) {
      widen<kOrder>(args.wide, args.gamma, args.rows.width, args.offset);
      parallel_ranges(split_rows(threads, blocks.count, blocks.rows * args.rows.width),
                      [=](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t block = begin; block < end; ++block)
                          backward_block<kNorm, kOrder, kHasSkip, T>(args, block, stores.is_streamed);
                        end_streaming(stores.is_streamed);
                      });
    });
  });
  sum_parts(args.dgamma, args.parts, 2 * args.rows.width, blocks.count, args.rows.width);
  if constexpr (kNorm == Norm::layer)
    sum_parts(args.dbeta, args.parts + args.rows.width, 2 * args.rows.width, blocks.count, args.rows.width);
}

void layer_norm_forward(int threads, const LayerNormForward& args) {
  with_optional(args.residual, [&]<bool kIs>(Has<kIs>) {
    args.mean != nullptr ? norm_forward<Norm::layer, kIs>(threads, args) : norm_forward<Norm::rms, kIs>(threads, args);
  });
}

void layer_norm_backward(int threads, const LayerNormBackward& args) {
  with_optional(args.skip, [&]<bool kIs>(Has<kIs>) {
    args.mean != nullptr ? norm_backward<Norm::layer, kIs>(threads, args)
                         : norm_backward<Norm::rms, kIs>(threads, args);
  });
}

}  // namespace

void fill_norms(Isa& isa) {
  isa.layer_norm_forward = layer_norm_forward;
  isa.layer_norm_backward = layer_norm_backward;
}

}  // namespace zs::cpu::ZS_ISA
#else
#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

namespace zs::cpu {
namespace {

std::int64_t layer_norm_forward_scratch(std::int64_t width) { return kFloat * 2 * width; }
std::int64_t layer_norm_backward_scratch(std::int64_t rows, std::int64_t width) {
  return kFloat * (3 + 2 * row_blocks(rows).count) * width;
}

void layer_norm_forward(ExecContext& ctx, Buffer y, Buffer mean, Buffer rstd, NormInput x, Buffer gamma, Buffer beta,
                        float eps) {
  const Rows rows{checks::layer_norm_forward(y, mean, rstd, x, gamma, beta), gamma.elems};
  isa().layer_norm_forward(ctx.threads(), {.y = data_of(y),
                                           .x = data_of(x.x),
                                           .gamma = data_of(gamma),
                                           .beta = data_of(beta),
                                           .mean = floats_of(mean),
                                           .rstd = floats_of(rstd),
                                           .wide = scratch(ctx, layer_norm_forward_scratch(rows.width)),
                                           .rows = rows,
                                           .eps = eps,
                                           .residual = data_or_none(x.residual),
                                           .sum = data_or_none(x.sum)});
}

void layer_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, Buffer dbeta, NormGradient dy, Buffer x,
                         Buffer mean, Buffer rstd, Buffer gamma, float grad_beta) {
  const Rows rows{checks::layer_norm_backward(dx, dgamma, dbeta, dy, x, mean, rstd, gamma), gamma.elems};
  float* wide = scratch(ctx, layer_norm_backward_scratch(rows.count, rows.width));
  float *dgamma_sums = wide + rows.width, *dbeta_sums = wide + 2 * rows.width;
  isa().layer_norm_backward(ctx.threads(), {.dx = data_of(dx),
                                            .dy = data_of(dy.dy),
                                            .x = data_of(x),
                                            .gamma = data_of(gamma),
                                            .dgamma = dgamma_sums,
                                            .dbeta = dbeta_sums,
                                            .wide = wide,
                                            .parts = wide + 3 * rows.width,
                                            .mean = floats_of(mean),
                                            .rstd = floats_of(rstd),
                                            .rows = rows,
                                            .skip = data_or_none(dy.skip)});
  store_gradient(ctx, dgamma, dgamma_sums, grad_beta);
  store_gradient(ctx, dbeta, dbeta_sums, grad_beta);
}

void rms_norm_forward(ExecContext& ctx, Buffer y, Buffer rstd, NormInput x, NormFactors gamma, float eps) {
  const Rows rows{checks::rms_norm_forward(y, rstd, x, gamma.weight), gamma.weight.elems};
  isa().layer_norm_forward(ctx.threads(), {.y = data_of(y),
                                           .x = data_of(x.x),
                                           .gamma = data_of(gamma.weight),
                                           .beta = {},
                                           .mean = nullptr,
                                           .rstd = floats_of(rstd),
                                           .wide = scratch(ctx, layer_norm_forward_scratch(rows.width)),
                                           .rows = rows,
                                           .eps = eps,
                                           .residual = data_or_none(x.residual),
                                           .sum = data_or_none(x.sum),
                                           .offset = gamma.offset});
}

void rms_norm_backward(ExecContext& ctx, Buffer dx, Buffer dgamma, NormGradient dy, Buffer x, Buffer rstd,
                       NormFactors gamma, float grad_beta) {
  const Rows rows{checks::rms_norm_backward(dx, dgamma, dy, x, rstd, gamma.weight), gamma.weight.elems};
  float *wide = scratch(ctx, layer_norm_backward_scratch(rows.count, rows.width)), *sums = wide + rows.width;
  isa().layer_norm_backward(ctx.threads(), {.dx = data_of(dx),
                                            .dy = data_of(dy.dy),
                                            .x = data_of(x),
                                            .gamma = data_of(gamma.weight),
                                            .dgamma = sums,
                                            .dbeta = nullptr,
                                            .wide = wide,
                                            .parts = wide + 3 * rows.width,
                                            .mean = nullptr,
                                            .rstd = floats_of(rstd),
                                            .rows = rows,
                                            .skip = data_or_none(dy.skip),
                                            .offset = gamma.offset});
  store_gradient(ctx, dgamma, sums, grad_beta);
}

}  // namespace

void fill_norms(KernelTable& table) {
  table.scratch.layer_norm_forward = layer_norm_forward_scratch;
  table.scratch.layer_norm_backward = layer_norm_backward_scratch;
  table.layer_norm_forward = layer_norm_forward;
  table.layer_norm_backward = layer_norm_backward;
  table.rms_norm_forward = rms_norm_forward;
  table.rms_norm_backward = rms_norm_backward;
}

}  // namespace zs::cpu
#endif
