// AdamW with moments of 8 bits, against plain arithmetic and a table of codes of its own.
#include <algorithm>

#include "tests/kernels/testing.h"

namespace zs::test::blockwise_adamw_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }
constexpr AdamWOptions kOptions{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};

/// The values of Dettmers et al. 2022: of a decade 10^-6, 10^-5 ... the middles of 1, 2, 4 ... equal parts of [0.1, 1],
/// of both signs, or of twice as many without sign; 0; and 1.
std::vector<double> make_table(bool is_signed) {
  std::vector<double> values{0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = (is_signed ? 1 : 2) * (1 << decade);
    for (int i = 0; i < parts; ++i) {
      const double value = std::pow(10.0, decade - 6) * (0.1 + 0.9 * (i + 0.5) / parts);
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  REQUIRE(values.size() == 256);
  return values;
}
const std::vector<double>& table_of(bool is_signed) {
  static const std::vector<double> of_both_signs = make_table(true), of_one = make_table(false);
  return is_signed ? of_both_signs : of_one;
}

struct State {
  Values master, copy, m, v, m_scales, v_scales, new_m_scales, new_v_scales;
  ElementRuns part;

  State(const std::vector<double>& weights, const ElementRuns& of)
      : master(Values::of(DType::f32, weights)),
        copy(DType::bf16, master.elems()),
        m(DType::u8, master.elems()),
        v(m),
        m_scales(DType::f32, blocks_of(of, master.elems())),
        v_scales(m_scales),
        new_m_scales(m_scales),
        new_v_scales(m_scales),
        part(of) {}
  BlockwiseAdamW args(Values& grad, Values& scalars) {
    return {master.buffer(),   copy.buffer(),     grad.buffer(),         scalars.buffer(),      m.buffer(), v.buffer(),
            m_scales.buffer(), v_scales.buffer(), new_m_scales.buffer(), new_v_scales.buffer(), part,       0.1f};
  }
  /// Element i of the moments, and its block among the part's.
  std::int64_t block(std::int64_t i) const {
    return (part.first + i / part.run * part.stride + i % part.run) / 256 - part.first / 256;
  }
  double m_of(std::int64_t i) const { return table_of(true)[m.at<std::uint8_t>(i)] * m_scales[block(i)]; }
  double v_of(std::int64_t i) const { return table_of(false)[v.at<std::uint8_t>(i)] * v_scales[block(i)]; }
  void keep_scales() { m_scales = new_m_scales, v_scales = new_v_scales; }
};

Values scalars_of(int step, float skip = 0) {
  return Values::of(DType::f32, {0.02, 1 - std::pow(0.9, step), 1 - std::pow(0.95, step), 0.5, 1, skip});
}

/// Every fourth element is small, so that all decades are there.
std::vector<double> gradient(std::int64_t n, int step) {
  std::vector<double> all = Values::random(DType::f32, n, static_cast<std::uint64_t>(step)).list();
  for (std::size_t i = 0; i < all.size(); ++i) all[i] *= std::pow(10.0, -static_cast<double>(i % 4) * 2);
  return all;
}

/// Of parts of one parameter of n elements: which of its elements each has.
std::vector<std::int64_t> elements_of(const ElementRuns& part, std::int64_t count) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(part.first + i / part.run * part.stride + i % part.run);
  return all;
}
std::vector<double> picked(const std::vector<double>& from, const std::vector<std::int64_t>& elements) {
  std::vector<double> out;
  for (const std::int64_t i : elements) out.push_back(from[static_cast<std::size_t>(i)]);
  return out;
}

}  // namespace

TEST_CASE("a step of 8-bit AdamW is AdamW's, and its moments become the nearest codes of the largest of each block") {
  const std::int64_t n = GENERATE(1, 255, 256, 1000, 70001);
  const std::vector<double>& signed_table = table_of(true);
  const std::vector<double>& unsigned_table = table_of(false);
  State state(Values::random(DType::f32, n, 99).list(), {0, n, n});
  const auto error = [](const std::vector<double>& table, double x) {
    const auto above = std::lower_bound(table.begin(), table.end(), x);
    const double over = above == table.end() ? 1 : std::abs(*above - x);
    return above == table.begin() ? over : std::min(over, std::abs(*(above - 1) - x));
  };
  for (int step = 1; step <= 3; ++step) {
    Values grad = Values::of(DType::f32, gradient(n, step)), scalars = scalars_of(step);
    const State before = state;
    state = State(before);
    const auto out = run({state.master, state.copy, state.m, state.v, state.new_m_scales, state.new_v_scales},
                         [&](ExecContext& ctx, std::vector<Values>& o) {
                           const BlockwiseAdamW args{o[0].buffer(),
                                                     o[1].buffer(),
                                                     grad.buffer(),
                                                     scalars.buffer(),
                                                     o[2].buffer(),
                                                     o[3].buffer(),
                                                     state.m_scales.buffer(),
                                                     state.v_scales.buffer(),
                                                     o[4].buffer(),
                                                     o[5].buffer(),
                                                     state.part,
                                                     0.1f};
                           k().blockwise_adamw_scales(ctx, args, kOptions);
                           k().blockwise_adamw(ctx, args, kOptions);
                         });
    state.master = out[0], state.copy = out[1], state.m = out[2], state.v = out[3];
    state.new_m_scales = out[4], state.new_v_scales = out[5];
    state.keep_scales();
    std::vector<double> most_m(static_cast<std::size_t>(state.m_scales.elems())), most_v(most_m);
    for (std::int64_t i = 0; i < n; ++i) {
      const double g = 0.5 * grad[i], m = 0.9 * before.m_of(i) + 0.1 * g, v = 0.95 * before.v_of(i) + 0.05 * g * g;
      const double w = before.master[i], m_hat = m / (1 - std::pow(0.9, step)), v_hat = v / (1 - std::pow(0.95, step));
      REQUIRE(state.master[i] == Approx(w - 0.02 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * w)).margin(2e-6));
      const auto block = static_cast<std::size_t>(state.block(i));
      most_m[block] = std::max(most_m[block], std::abs(m));
      most_v[block] = std::max(most_v[block], v);
      const double m_scale = state.m_scales[state.block(i)], v_scale = state.v_scales[state.block(i)];
      REQUIRE(std::abs(state.m_of(i) - m) <= m_scale * (error(signed_table, m / m_scale) + 1e-6));
      REQUIRE(std::abs(state.v_of(i) - v) <=
              v_scale * std::max(error(unsigned_table, v / v_scale) + 1e-6, unsigned_table[1]));
      REQUIRE((v > 0) == (state.v_of(i) > 0));
      REQUIRE(state.copy[i] == static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(state.master[i])))));
    }
    require_close(state.m_scales, most_m, 1e-7);
    require_close(state.v_scales, most_v, 1e-7);
  }
}

TEST_CASE("a moment on the middle of two codes becomes the lower one, and its neighbours the nearest") {
  // Moments become the gradients and their squares, and a 1 in each block makes them their own multiples of its scale.
  const auto middles_of = [](bool is_signed) {
    std::vector<float> middles;
    for (std::size_t i = 0; i + 1 < 256; ++i)
      middles.push_back(0.5f *
                        (static_cast<float>(table_of(is_signed)[i]) + static_cast<float>(table_of(is_signed)[i + 1])));
    return middles;
  };
  const std::vector<float> of_m = middles_of(true), of_v = middles_of(false);
  std::vector<double> list;
  const auto add = [&](float x) {
    if (list.size() % 256 == 0) list.push_back(1);
    list.push_back(static_cast<double>(x));
  };
  for (const float middle : of_m)
    for (const float x : {middle, std::nextafter(middle, -2.0f), std::nextafter(middle, 2.0f)}) add(x);
  for (const float middle : of_v)
    for (const float x : {std::sqrt(middle), std::nextafter(std::sqrt(middle), 0.0f)}) add(x);
  for (const float x : {0.0f, -0.0f, 1e-30f, -1e-12f, 1e-45f, -1.0f, 0.999999f}) add(x);
  const auto n = static_cast<std::int64_t>(list.size());
  Values grad = Values::of(DType::f32, list), scalars = Values::of(DType::f32, {0.02, 1, 1, 1, 1, 0});
  State state(list, {0, n, n});
  const AdamWOptions options{0, 0, 1e-8f};
  const auto out =
      run({state.m, state.v, state.new_m_scales, state.new_v_scales}, [&](ExecContext& ctx, std::vector<Values>& o) {
        BlockwiseAdamW args = state.args(grad, scalars);
        args.m = o[0].buffer(), args.v = o[1].buffer();
        args.new_m_scales = o[2].buffer(), args.new_v_scales = o[3].buffer();
        k().blockwise_adamw_scales(ctx, args, options);
        k().blockwise_adamw(ctx, args, options);
      });
  const auto code_of = [](const std::vector<float>& middles, float x) {
    return std::lower_bound(middles.begin(), middles.end(), x) - middles.begin();
  };
  for (std::int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<float>(grad[i]), square = x * x;
    CAPTURE(i, x);
    REQUIRE(out[0].at<std::uint8_t>(i) == code_of(of_m, x));
    REQUIRE(out[1].at<std::uint8_t>(i) == std::max<std::int64_t>(code_of(of_v, square), square > 0 ? 1 : 0));
  }
}

TEST_CASE("parts of a parameter that share their blocks' scales make the same bits as the whole") {
  constexpr std::int64_t kRows = 40, kCols = 25, n = kRows * kCols;
  const auto cut = GENERATE(
      std::vector<std::pair<ElementRuns, std::int64_t>>{{{0, 300, 300}, 300}, {{300, 1, 1}, 1}, {{301, 699, 699}, 699}},
      std::vector<std::pair<ElementRuns, std::int64_t>>{{{0, 7, kCols}, 7 * kRows}, {{7, 18, kCols}, 18 * kRows}});
  const std::vector<double> weights = Values::random(DType::f32, n, 99).list();
  State whole(weights, {0, n, n});
  std::vector<State> parts;
  for (const auto& [part, count] : cut) parts.emplace_back(picked(weights, elements_of(part, count)), part);
  ExecContext ctx = make_context();
  for (int step = 1; step <= 4; ++step) {
    const std::vector<double> all = gradient(n, step);
    Values grad = Values::of(DType::f32, all), scalars = scalars_of(step);
    k().blockwise_adamw_scales(ctx, whole.args(grad, scalars), kOptions);
    std::vector<Values> grads;
    for (State& part : parts)
      grads.push_back(Values::of(DType::f32, picked(all, elements_of(part.part, part.master.elems()))));
    for (std::size_t i = 0; i < parts.size(); ++i)
      k().blockwise_adamw_scales(ctx, parts[i].args(grads[i], scalars), kOptions);
    for (std::int64_t block = 0; block < whole.m_scales.elems(); ++block) {
      double most_m = 0, most_v = 0;
      const auto each = [&](const auto& use) {
        for (State& part : parts) {
          const std::int64_t own = block - part.part.first / 256;
          if (own >= 0 && own < part.m_scales.elems()) use(part, own);
        }
      };
      each([&](State& part, std::int64_t own) {
        most_m = std::max(most_m, part.new_m_scales[own]), most_v = std::max(most_v, part.new_v_scales[own]);
      });
      each([&](State& part, std::int64_t own) {
        part.new_m_scales.set(own, most_m), part.new_v_scales.set(own, most_v);
      });
      REQUIRE(most_m == whole.new_m_scales[block]);
      REQUIRE(most_v == whole.new_v_scales[block]);
    }
    k().blockwise_adamw(ctx, whole.args(grad, scalars), kOptions);
    whole.keep_scales();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      k().blockwise_adamw(ctx, parts[i].args(grads[i], scalars), kOptions);
      parts[i].keep_scales();
      const auto elements = elements_of(parts[i].part, parts[i].master.elems());
      for (std::size_t at = 0; at < elements.size(); ++at) {
        const auto own = static_cast<std::int64_t>(at);
        REQUIRE(parts[i].master[own] == whole.master[elements[at]]);
        REQUIRE(parts[i].m.at<std::uint8_t>(own) == whole.m.at<std::uint8_t>(elements[at]));
        REQUIRE(parts[i].v.at<std::uint8_t>(own) == whole.v.at<std::uint8_t>(elements[at]));
      }
    }
  }
}

TEST_CASE("8-bit AdamW leaves everything as it is when told to skip, and goes on from a square that f32 has not") {
  State state(Values::random(DType::f32, 300, 1).list(), {0, 300, 300});
  ExecContext ctx = make_context();
  std::vector<double> all = gradient(300, 1);
  for (const bool is_skipped : {false, true}) {
    Values grad = Values::of(DType::f32, all), scalars = scalars_of(1, is_skipped ? 1 : 0);
    const State before = state;
    k().blockwise_adamw_scales(ctx, state.args(grad, scalars), kOptions);
    k().blockwise_adamw(ctx, state.args(grad, scalars), kOptions);
    state.keep_scales();
    CHECK(state.master.same_bytes(before.master) == is_skipped);
    CHECK(state.m.same_bytes(before.m) == is_skipped);
    CHECK(state.v.same_bytes(before.v) == is_skipped);
    CHECK(state.m_scales.same_bytes(before.m_scales) == is_skipped);
    CHECK(state.v_scales.same_bytes(before.v_scales) == is_skipped);
  }
  all[7] = 1e30;
  for (int step = 2; step <= 4; ++step) {
    Values grad = Values::of(DType::f32, step == 2 ? all : gradient(300, step)), scalars = scalars_of(step);
    k().blockwise_adamw_scales(ctx, state.args(grad, scalars), kOptions);
    k().blockwise_adamw(ctx, state.args(grad, scalars), kOptions);
    state.keep_scales();
    for (std::int64_t i = 0; i < 300; ++i) REQUIRE(std::isfinite(state.master[i]));
  }
}

}  // namespace zs::test::blockwise_adamw_test
