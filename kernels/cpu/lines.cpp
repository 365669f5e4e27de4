#include <omp.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/host.h"
#include "kernels/families.h"
#include "kernels/general_checks.h"
#include "kernels/order_key.h"

namespace zs::cpu {
namespace {

struct Ids {
  const std::int32_t* ids;
  LineDims dims;

  std::int64_t line(std::int64_t outer, std::int64_t i, std::int64_t e) const {
    return dims.each_its_own ? ids[(outer * dims.count + i) * dims.inner + e] : ids[i];
  }
};

void check(const Buffer& ids, const LineDims& dims) {
  ZS_CHECK(ids.device == DeviceKind::cpu, "a CPU kernel got a buffer of device {}", name_of(ids.device));
  check_indices("index", ids.as<std::int32_t>(), ids.elems, dims.lines);
}

/// Works on elements that do not meet: body(outer, e).
template <class Body>
void for_each_column(ExecContext& ctx, const LineDims& dims, const Body& body) {
  constexpr std::int64_t kWorthTeam = 32768;
  const std::int64_t columns = dims.outer * dims.inner;
#pragma omp parallel for num_threads(ctx.threads()) if (columns * dims.count > kWorthTeam)
  for (std::int64_t column = 0; column < columns; ++column) body(column / dims.inner, column % dims.inner);
}

void take_lines(ExecContext& ctx, Buffer y, Buffer x, Buffer ids, const LineDims& dims) {
  checks::same_dtype(y, x);
  checks::lines(x, y, ids, dims);
  check(ids, dims);
  const Ids at{ids.as<std::int32_t>(), dims};
  const auto* const in = static_cast<const std::byte*>(x.data);
  auto* const out = static_cast<std::byte*>(y.data);
  const auto bytes = static_cast<std::size_t>(size_of(x.dtype));
  // Whole lines where they have one id.
  const std::int64_t together = dims.each_its_own ? 1 : dims.inner;
  const LineDims pieces{dims.outer, dims.lines, dims.count, dims.inner / std::max<std::int64_t>(together, 1),
                        dims.each_its_own};
  const std::size_t piece = bytes * static_cast<std::size_t>(together);
  for_each_column(ctx, pieces, [&](std::int64_t outer, std::int64_t e) {
    for (std::int64_t i = 0; i < dims.count; ++i)
      std::memcpy(out + static_cast<std::size_t>((outer * dims.count + i) * pieces.inner + e) * piece,
                  in + static_cast<std::size_t>((outer * dims.lines + at.line(outer, i, e)) * pieces.inner + e) * piece,
                  piece);
  });
}

void add_lines(ExecContext& ctx, Buffer x, Buffer y, Buffer ids, const LineDims& dims) {
  checks::lines(x, y, ids, dims);
  check(ids, dims);
  cpu_kernels().zero(ctx, x);
  float* const out = floats_of(x);
  const Data in = data_of(y);
  const Ids at{ids.as<std::int32_t>(), dims};
  for_each_column(ctx, dims, [&](std::int64_t outer, std::int64_t e) {
    for (std::int64_t i = 0; i < dims.count; ++i) {
      const std::int64_t from = (outer * dims.count + i) * dims.inner + e;
      const float value = in.is_bf16 ? static_cast<float>(static_cast<const BFloat16*>(in.address)[from])
                                     : static_cast<const float*>(in.address)[from];
      out[(outer * dims.lines + at.line(outer, i, e)) * dims.inner + e] += value;
    }
  });
}

std::int64_t order_lines_scratch(int threads, const LineDims& dims) {
  return threads * dims.lines * static_cast<std::int64_t>(sizeof(std::uint64_t));
}

/// visit(line, thread): the lines are (outer, inner) in row-major order; thread: which one of the team.
template <class Visit>
void for_each_whole_line(ExecContext& ctx, const LineDims& dims, const Visit& visit) {
  constexpr std::int64_t kWorthTeam = 4096;
  const std::int64_t lines = dims.outer * dims.inner;
#pragma omp parallel for num_threads(ctx.threads()) if (lines * dims.lines > kWorthTeam)
  for (std::int64_t line = 0; line < lines; ++line) visit(line, omp_get_thread_num());
}

/// body(T{}) for the type of the elements.
template <class Body>
void with_number(DType dtype, const Body& body) {
  if (dtype == DType::i32) return body(std::int32_t{});
  if (dtype == DType::bf16) return body(BFloat16{});
  body(float{});
}

/// Each line's keys with their places, in order: equal ones by their places.
void order_lines(ExecContext& ctx, Buffer ids, Buffer x, const LineDims& dims, bool is_descending) {
  checks::whole_lines(ids, x, dims);
  ZS_CHECK(ids.dtype == DType::i32 && ids.device == DeviceKind::cpu, "ids {} of device {}", name_of(ids.dtype),
           name_of(ids.device));
  auto* const keys = static_cast<std::uint64_t*>(ctx.scratch(order_lines_scratch(ctx.threads(), dims)));
  const std::uint32_t turned = is_descending ? ~0u : 0u;
  with_number(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_whole_line(ctx, dims, [&](std::int64_t line, int thread) {
      const std::int64_t outer = line / dims.inner, e = line % dims.inner;
      const T* const from = x.as<T>() + outer * dims.lines * dims.inner + e;
      std::int32_t* const to = ids.as<std::int32_t>() + outer * dims.count * dims.inner + e;
      std::uint64_t* const own = keys + thread * dims.lines;
      for (std::int64_t i = 0; i < dims.lines; ++i) {
        std::uint32_t key = 0;
        if constexpr (std::is_same_v<T, BFloat16>) {
          key = order_key_of(static_cast<float>(from[i * dims.inner]));
        } else {
          key = order_key_of(from[i * dims.inner]);
        }
        own[i] = std::uint64_t{key ^ turned} << 32 | static_cast<std::uint64_t>(i);
      }
      std::partial_sort(own, own + dims.count, own + dims.lines);
      for (std::int64_t i = 0; i < dims.count; ++i) to[i * dims.inner] = static_cast<std::int32_t>(own[i]);
    });
  });
}

void sum_lines(ExecContext& ctx, Buffer y, Buffer x, const LineDims& dims, bool is_backward) {
  checks::same_dtype(y, x);
  checks::whole_lines(y, x, dims);
  ZS_CHECK(y.device == DeviceKind::cpu, "a CPU kernel got a buffer of device {}", name_of(y.device));
  with_number(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each_whole_line(ctx, dims, [&](std::int64_t line, int) {
      const std::int64_t first = line / dims.inner * dims.lines * dims.inner + line % dims.inner;
      double sum = 0;
      for (std::int64_t i = 0; i < dims.lines; ++i) {
        const std::int64_t at = first + (is_backward ? dims.lines - 1 - i : i) * dims.inner;
        if constexpr (std::is_same_v<T, std::int32_t>) {
          sum += x.as<T>()[at];
          y.as<T>()[at] = static_cast<T>(static_cast<std::int64_t>(sum));
        } else {
          sum += static_cast<double>(static_cast<float>(x.as<T>()[at]));
          y.as<T>()[at] = T(static_cast<float>(sum));
        }
      }
    });
  });
}

}  // namespace

void fill_lines(KernelTable& table) {
  table.take_lines = take_lines;
  table.add_lines = add_lines;
  table.order_lines = order_lines;
  table.sum_lines = sum_lines;
  table.scratch.order_lines = order_lines_scratch;
}

}  // namespace zs::cpu
