#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/checks.h"
#include "kernels/cpu/dispatch.h"

/// Checks and unpacking for sums, norms and the optimizer.
namespace zs::cpu {
namespace {

constexpr std::int32_t kNoExponent = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kNotFinite = std::numeric_limits<std::int32_t>::max();

/// floor(log2 |x|) from the bits of |x|.
std::int32_t exponent_of(std::int32_t magnitude) {
  if (magnitude == 0) return kNoExponent;
  if (magnitude >= 0x7f800000) return kNotFinite;
  if (magnitude >= 0x00800000) return (magnitude >> 23) - 127;
  return std::bit_width(static_cast<std::uint32_t>(magnitude)) - 150;
}

StepScalars& step_scalars(const Buffer& scalars) {
  checks::step_scalars(scalars);
  return *reinterpret_cast<StepScalars*>(scalars.as<float>());
}

double norm_of(const Buffer& squared_norm, const Buffer& exponent, int shift) {
  if (exponent.empty()) return std::sqrt(*checks::scalar<double>("squared_norm", squared_norm));
  const std::int32_t e = *checks::scalar<std::int32_t>("exponent", exponent);
  if (e == kNotFinite) return std::numeric_limits<double>::infinity();
  if (e == kNoExponent) return 0.0;
  return std::sqrt(std::ldexp(static_cast<double>(*checks::scalar<std::int64_t>("squared_norm", squared_norm)), 2 * e - shift));
}

}  // namespace

void sum(ExecContext& ctx, Buffer out, Buffer in, float factor) {
  *checks::scalar<float>("out", out) = static_cast<float>(static_cast<double>(factor) * isa().sum(ctx.threads(), floats_of(in), in.elems));
}

void squared_norm(ExecContext& ctx, Buffer out, Buffer in) {
  *checks::scalar<double>("out", out) += isa().squares(ctx.threads(), data_of(in), in.elems);
}

void max_exponent(ExecContext& ctx, Buffer out, Buffer in) {
  std::int32_t& largest = *checks::scalar<std::int32_t>("out", out);
  largest = std::max(largest, exponent_of(isa().max_magnitude_bits(ctx.threads(), data_of(in), in.elems)));
}

void fixed_point_squares(ExecContext& ctx, Buffer out, Buffer in, Buffer exponent, int shift) {
  const std::int32_t e = *checks::scalar<std::int32_t>("exponent", exponent);
  checks::fixed_point_shift(shift);
  std::int64_t& total = *checks::scalar<std::int64_t>("out", out);
  if (e == kNoExponent || e == kNotFinite) return;
  const std::int64_t more = isa().fixed_point_squares(ctx.threads(), data_of(in), in.elems, std::ldexp(1.0, shift - 2 * e));
  total = static_cast<std::int64_t>(static_cast<std::uint64_t>(total) + static_cast<std::uint64_t>(more));  // wraps
}

void clip_coefficient(ExecContext&, Buffer scalars, Buffer squared_norm, Buffer exponent, int shift, float clip) {
  StepScalars& step = step_scalars(scalars);
  const double norm = norm_of(squared_norm, exponent, shift);
  step.grad_norm = static_cast<float>(norm);
  step.skip = std::isfinite(step.grad_norm) ? 0.0f : 1.0f;
  step.clip_coefficient = 1.0f;
  if (clip > 0 && step.skip == 0.0f) step.clip_coefficient = static_cast<float>(std::min(1.0, static_cast<double>(clip) / (norm + 1e-6)));
}

void adamw(ExecContext& ctx, Buffer master, Buffer m, Buffer v, Buffer copy, Buffer grad, Buffer scalars, const AdamWOptions& options) {
  checks::adamw(master, m, v, copy, grad);
  const StepScalars& step = step_scalars(scalars);
  if (step.skip != 0.0f) return;
  isa().adamw(ctx.threads(),
              {.master = floats_of(master),
               .m = floats_of(m),
               .v = floats_of(v),
               .copy = copy.empty() ? nullptr : static_cast<std::uint16_t*>(data_of(copy).address),
               .grad = floats_of(grad),
               .scalars = step,
               .options = options},
              master.elems);
}

}  // namespace zs::cpu
