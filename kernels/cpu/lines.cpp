#include <cstring>

#include "kernels/checks.h"
#include "kernels/cpu/host.h"
#include "kernels/families.h"

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

}  // namespace

void fill_lines(KernelTable& table) {
  table.take_lines = take_lines;
  table.add_lines = add_lines;
}

}  // namespace zs::cpu
