#include <algorithm>
#include <numeric>

#include "tests/kernels/testing.h"

namespace zs::test::optimizer_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

constexpr AdamWOptions kAdamW{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};

/// values: the master, m and, where there are three, v.
UpdateRange range_of(std::vector<Values>& values, Values& grad, Values& scalars) {
  UpdateRange range{values[0].buffer(), grad.buffer(), {}, values[1].buffer(), {}, scalars.buffer(), 0.1f};
  if (values.size() > 2) range.v = values[2].buffer();
  return range;
}
UpdateRange part_of(const UpdateRange& all, std::int64_t first, std::int64_t count) {
  UpdateRange part = all;
  for (Buffer* buffer : {&part.master, &part.grad, &part.copy, &part.m, &part.v})
    if (!buffer->empty()) *buffer = buffer->slice(first, count);
  return part;
}

}  // namespace

TEST_CASE("AdamW's first step is the learning rate in the gradient's direction, plus decay") {
  Values master = Values::of(DType::f32, {1.0, -2.0, 0.5}), m = Values::of(DType::f32, {0, 0, 0}), v = m;
  Values grad = Values::of(DType::f32, {0.3, -40.0, 1e-3});
  Values scalars = scalars_of({0.01f, 1.0f - 0.9f, 1.0f - 0.999f, 1.0f, 0.0f, 0.0f});
  const auto out = run({master, m, v}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().update(ctx, range_of(o, grad, scalars), AdamWOptions{0.9f, 0.999f, 1e-8f});
  });
  require_close(out[0], {1.0 - 0.01 - 0.001, -2.0 + 0.01 + 0.002, 0.5 - 0.01 - 0.0005}, 1e-6);
  require_close(out[1], {0.03, -4.0, 1e-4}, 1e-6);
  const double share = 1 - static_cast<double>(0.999f);
  require_close(out[2], {0.3 * 0.3 * share, 40.0 * 40.0 * share, 1e-6 * share}, 1e-12);
}

TEST_CASE("AdamW follows its formula over several steps") {
  const std::int64_t n = GENERATE(1, 3, 17, 100, 100003);
  const double lr = 0.02, b1 = 0.9, b2 = 0.95, eps = 1e-8, decay = 0.1, clip = 0.5;
  const Values start = Values::random(DType::f32, n, 1);
  std::vector<Values> grads;
  for (std::uint64_t t = 0; t < 3; ++t) grads.push_back(Values::random(DType::f32, n, 10 + t));
  const Values zeros(DType::f32, n);
  const auto out = run({start, zeros, zeros}, [&](ExecContext& ctx, std::vector<Values>& o) {
    for (int t = 1; t <= 3; ++t) {
      Values s = scalars_of(
          {0.02f, static_cast<float>(1 - std::pow(b1, t)), static_cast<float>(1 - std::pow(b2, t)), 0.5f, 0.0f, 0.0f});
      k().update(ctx, range_of(o, grads[static_cast<std::size_t>(t - 1)], s), kAdamW);
    }
  });
  std::vector<double> expected = start.list();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double m = 0, v = 0;
    for (int t = 1; t <= 3; ++t) {
      const double g = clip * grads[static_cast<std::size_t>(t - 1)][static_cast<std::int64_t>(i)];
      m = b1 * m + (1 - b1) * g;
      v = b2 * v + (1 - b2) * g * g;
      expected[i] -=
          lr * (m / (1 - std::pow(b1, t)) / (std::sqrt(v / (1 - std::pow(b2, t))) + eps) + decay * expected[i]);
    }
  }
  require_close(out[0], expected, 1e-6);
}

TEST_CASE("AdamW gives the same bits for any cut of the elements") {
  const std::int64_t n = 1003;
  const Values zeros(DType::f32, n), start = Values::random(DType::f32, n, 1);
  Values grad = Values::random(DType::f32, n, 2), scalars = scalars_of({0.02f, 0.1f, 0.05f, 0.7f, 0.0f, 0.0f});
  const auto step = [&](std::vector<Values>& o, std::int64_t from, std::int64_t to) {
    ExecContext ctx = make_context();
    k().update(ctx, part_of(range_of(o, grad, scalars), from, to - from), kAdamW);
  };
  std::vector<Values> whole = {start, zeros, zeros}, pieces = whole;
  step(whole, 0, n);
  const std::vector<std::int64_t> cuts = {0, 1, 8, 21, 500, 1002, n};
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) step(pieces, cuts[i], cuts[i + 1]);
  for (std::size_t i = 0; i < 3; ++i) REQUIRE(whole[i].same_bytes(pieces[i]));
}

TEST_CASE("updates of many ranges at once are those of one range after the other") {
  const int count = GENERATE(0, 1, 5, 56, 130);  // a launch on GPUs takes 56
  const auto rule = GENERATE(as<std::string>{}, "adamw", "sgd", "lion", "schedule_free");
  const std::int64_t n = 20000;
  Values grad = Values::random(DType::f32, n, 2), none(DType::f32, 0);
  Values steps[] = {scalars_of({0.02f, 0.1f, 0.05f, 0.7f, 0.0f, 0.0f}),
                    scalars_of({0.01f, 0.2f, 0.1f, 0.7f, 0.0f, 0.0f}),
                    scalars_of({0.02f, 0.1f, 0.05f, 0.7f, 0.0f, 1.0f})};
  const auto updated = [&](bool at_once) {
    std::vector<Values> o = {Values::random(DType::f32, n, 1), Values::random(DType::f32, n, 3),
                             Values::random(DType::f32, n, 4), Values(DType::bf16, n)};
    for (std::int64_t i = 0; i < n; ++i) o[2].set(i, std::abs(o[2][i]));
    std::vector<UpdateRange> ranges;
    std::int64_t first = 0;
    for (int i = 0; i < count; ++i) {
      const std::int64_t elems = i == 0 ? 5000 : i % 7 == 3 ? 0 : i % 11 * 23 + (i % 2 == 0 ? 16 : 1);
      UpdateRange range = range_of(o, grad, steps[i % 3]);
      range.weight_decay = 0.01f * static_cast<float>(i % 4);
      if (i % 3 != 2) range.copy = o[3].buffer();
      if (rule == "sgd" || rule == "lion") range.v = {};
      if (rule == "sgd" && i % 5 == 1) range.m = {};
      ranges.push_back(part_of(range, first, elems));
      first += elems;
    }
    ExecContext ctx = make_context();
    const auto update = [&](const OneOrMany<UpdateRange>& some) {
      if (rule == "adamw") k().update(ctx, some, kAdamW);
      if (rule == "schedule_free") k().update(ctx, some, ScheduleFreeOptions{0.9f, 0.95f, 1e-8f});
      if (rule == "sgd") k().update(ctx, some, SgdOptions{0.9f, true});
      if (rule == "lion") k().update(ctx, some, LionOptions{0.9f, 0.99f});
    };
    if (at_once) update(ranges);
    for (const UpdateRange& range : at_once ? std::vector<UpdateRange>{} : ranges) update(range);
    return o;
  };
  const std::vector<Values> together = updated(true), apart = updated(false);
  for (std::size_t i = 0; i < together.size(); ++i) REQUIRE(together[i].same_bytes(apart[i]));
}

TEST_CASE("AdamW's bf16 copy is the new master, rounded as a cast rounds it") {
  const std::int64_t n = GENERATE(1, 37, 100003);
  Values grad = Values::random(DType::f32, n, 2), scalars = scalars_of({0.02f, 0.1f, 0.05f, 0.7f, 0.0f, 0.0f});
  const Values start = Values::random(DType::f32, n, 1), zeros(DType::f32, n);
  const auto out = run({start, zeros, zeros, Values(DType::bf16, n), Values(DType::bf16, n)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         UpdateRange range = range_of(o, grad, scalars);
                         range.copy = o[3].buffer();
                         k().update(ctx, range, kAdamW);
                         k().cast(ctx, o[4].buffer(), o[0].buffer());
                       });
  REQUIRE(out[3].same_bytes(out[4]));
}

TEST_CASE(
    "SGD follows its formula over several steps, with momentum and without, and its bf16 copy is the new master") {
  const std::int64_t n = GENERATE(1, 37, 100003);
  const auto way = GENERATE(std::pair(0.0f, false), std::pair(0.9f, false), std::pair(0.9f, true));
  const float momentum = way.first;
  const bool nesterov = way.second;
  const Values start = Values::random(DType::f32, n, 1), zeros(DType::f32, n);
  std::vector<Values> grads;
  for (std::uint64_t t = 0; t < 3; ++t) grads.push_back(Values::random(DType::f32, n, 10 + t));
  const auto out = run(
      {start, zeros, Values(DType::bf16, n), Values(DType::bf16, n)}, [&](ExecContext& ctx, std::vector<Values>& o) {
        for (Values& grad : grads) {
          Values s = scalars_of({0.02f, 1, 1, 0.5f, 0.0f, 0.0f});
          const Buffer m = momentum > 0 ? o[1].buffer() : Buffer{};
          k().update(ctx, UpdateRange{o[0].buffer(), grad.buffer(), o[2].buffer(), m, {}, s.buffer(), 0.1f},
                     SgdOptions{momentum, nesterov});
        }
        k().cast(ctx, o[3].buffer(), o[0].buffer());
      });
  std::vector<double> expected = start.list();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    double m = 0;
    for (Values& grad : grads) {
      const double g = 0.5 * grad[static_cast<std::int64_t>(i)] + 0.1 * expected[i];
      m = momentum * m + g;
      expected[i] -= 0.02 * (nesterov ? g + momentum * m : m);
    }
  }
  require_close(out[0], expected, 1e-6);
  REQUIRE(out[2].same_bytes(out[3]));
}

TEST_CASE(
    "Lion follows its formula over several steps, does not move where all is 0, and its bf16 copy is the master") {
  const std::int64_t n = GENERATE(1, 37, 100003);
  const Values zeros(DType::f32, n);
  Values start = Values::random(DType::f32, n, 1);
  std::vector<Values> grads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    grads.push_back(Values::random(DType::f32, n, 10 + t));
    if (n > 5) grads.back().set(5, 0.0);
  }
  if (n > 5) start.set(5, 0.0);
  const auto out = run(
      {start, zeros, Values(DType::bf16, n), Values(DType::bf16, n)}, [&](ExecContext& ctx, std::vector<Values>& o) {
        for (Values& grad : grads) {
          Values s = scalars_of({0.02f, 1, 1, 0.5f, 0.0f, 0.0f});
          k().update(ctx, UpdateRange{o[0].buffer(), grad.buffer(), o[2].buffer(), o[1].buffer(), {}, s.buffer(), 0.1f},
                     LionOptions{0.9f, 0.99f});
        }
        k().cast(ctx, o[3].buffer(), o[0].buffer());
      });
  std::vector<double> expected = start.list(), momentum(expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (Values& grad : grads) {
      const double g = 0.5 * grad[static_cast<std::int64_t>(i)], mean = 0.9 * momentum[i] + 0.1 * g;
      expected[i] -= 0.02 * (static_cast<double>((mean > 0) - (mean < 0)) + 0.1 * expected[i]);
      momentum[i] = 0.99 * momentum[i] + 0.01 * g;
    }
  }
  require_close(out[0], expected, 1e-6);
  require_close(out[1], momentum, 1e-6);
  REQUIRE(out[2].same_bytes(out[3]));
}

/// Defazio et al. 2024, algorithm 1 with AdamW's step, by its points x, y and z in double precision. Element 5 has no
/// gradient and no weight. The learning rates differ, so that the average's weights do.
TEST_CASE("schedule-free AdamW follows the published algorithm, and its bf16 copy is where gradients are taken") {
  const std::int64_t n = GENERATE(1, 37, 100003);
  const double b1 = 0.9, b2 = 0.95, eps = 1e-8, decay = 0.1, clip = 0.5, lrs[] = {0.01, 0.03, 0.02, 0.0, 0.02};
  const Values zeros(DType::f32, n);
  Values start = Values::random(DType::f32, n, 1);
  std::vector<Values> grads;
  for (std::uint64_t t = 0; t < 5; ++t) grads.push_back(Values::random(DType::f32, n, 10 + t));
  std::vector<double> weights;  // c of each step
  for (double sum = 0; const double lr : lrs) sum += lr * lr, weights.push_back(lr * lr / sum);
  const auto out = run({start, zeros, zeros, Values(DType::bf16, n), Values(DType::bf16, n)},
                       [&](ExecContext& ctx, std::vector<Values>& o) {
                         for (std::size_t t = 0; t < 5; ++t) {
                           Values s = scalars_of({static_cast<float>(lrs[t]), static_cast<float>(weights[t]),
                                                  static_cast<float>(1 - std::pow(b2, t + 1)), 0.5f, 0.0f, 0.0f});
                           UpdateRange range = range_of(o, grads[t], s);
                           range.copy = o[3].buffer();
                           k().update(ctx, range, ScheduleFreeOptions{0.9f, 0.95f, 1e-8f});
                         }
                         k().cast(ctx, o[4].buffer(), o[0].buffer());
                       });
  std::vector<double> y = start.list(), offset(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    double x = y[i], z = y[i], v = 0;
    for (std::size_t t = 0; t < 5; ++t) {
      y[i] = (1 - b1) * z + b1 * x;
      const double g = clip * grads[t][static_cast<std::int64_t>(i)];
      v = b2 * v + (1 - b2) * g * g;
      z -= lrs[t] * (g / (std::sqrt(v / (1 - std::pow(b2, t + 1))) + eps) + decay * y[i]);
      x = (1 - weights[t]) * x + weights[t] * z;
    }
    y[i] = (1 - b1) * z + b1 * x;
    offset[i] = z - y[i];
  }
  require_close(out[0], y, 1e-6);
  require_close(out[1], offset, 1e-6);
  REQUIRE(out[3].same_bytes(out[4]));
}

TEST_CASE("schedule-free AdamW leaves everything as it is when told to skip") {
  const Values start = Values::random(DType::f32, 10, 1);
  std::vector<Values> o = {start, start, start};
  Values grad = Values::random(DType::f32, 10, 2), scalars = scalars_of({0.02f, 0.1f, 0.05f, 0.7f, 0.0f, 1.0f});
  ExecContext ctx = make_context();
  k().update(ctx, range_of(o, grad, scalars), ScheduleFreeOptions{0.9f, 0.95f, 1e-8f});
  for (const Values& values : o) REQUIRE(values.same_bytes(start));
}

TEST_CASE("Lion leaves everything as it is when told to skip") {
  const Values start = Values::random(DType::f32, 10, 1);
  std::vector<Values> o = {start, start};
  Values grad = Values::random(DType::f32, 10, 2), scalars = scalars_of({0.02f, 1, 1, 0.7f, 0.0f, 1.0f});
  ExecContext ctx = make_context();
  k().update(ctx, range_of(o, grad, scalars), LionOptions{0.9f, 0.99f});
  for (const Values& values : o) REQUIRE(values.same_bytes(start));
}

TEST_CASE("SGD leaves everything as it is when told to skip") {
  const Values start = Values::random(DType::f32, 10, 1);
  std::vector<Values> o = {start, start};
  Values grad = Values::random(DType::f32, 10, 2), scalars = scalars_of({0.02f, 1, 1, 0.7f, 0.0f, 1.0f});
  ExecContext ctx = make_context();
  k().update(ctx, range_of(o, grad, scalars), SgdOptions{0.9f, false});
  for (const Values& values : o) REQUIRE(values.same_bytes(start));
}

TEST_CASE("AdamW leaves everything as it is when told to skip") {
  const Values start = Values::random(DType::f32, 10, 1);
  std::vector<Values> o = {start, start, start};
  Values grad = Values::random(DType::f32, 10, 2), scalars = scalars_of({0.02f, 0.1f, 0.05f, 0.7f, 0.0f, 1.0f});
  ExecContext ctx = make_context();
  k().update(ctx, range_of(o, grad, scalars), kAdamW);
  for (const Values& values : o) REQUIRE(values.same_bytes(start));
}

}  // namespace zs::test::optimizer_test
