#include "tests/kernels/testing.h"

namespace zs::test::rows_test {
namespace {

const KernelTable& k() { return kernels_under_test(); }

Values random_ids(std::int64_t n, std::int64_t limit) {
  Values ids(DType::i32, n);
  const CounterRng rng(9);
  for (std::int64_t i = 0; i < n; ++i)
    ids.set(i, std::floor(rng.uniform(static_cast<std::uint64_t>(i)) * static_cast<double>(limit)));
  return ids;
}

}  // namespace

TEST_CASE("a bias gradient is the sum of the rows, added to what is there when beta is 1") {
  const RowSize size = GENERATE(from_range(kRowSizes));
  const DType dtype = GENERATE(DType::f32, DType::bf16), to = GENERATE(DType::f32, DType::bf16);
  if (to == DType::bf16 && dtype == DType::f32) return;
  const float beta = GENERATE(0.0f, 1.0f);
  Values dy = Values::random(dtype, size.rows * size.width, 1);
  const Values before = beta == 0.0f ? Values::poison(to, size.width) : Values::random(to, size.width, 2);
  const auto out = run({before}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().bias_backward(ctx, o[0].buffer(), dy.buffer(), beta);
  });
  std::vector<double> expected(static_cast<std::size_t>(size.width), 0.0);
  for (std::int64_t c = 0; c < size.width; ++c) {
    if (beta != 0.0f) expected[static_cast<std::size_t>(c)] = before[c];
    for (std::int64_t r = 0; r < size.rows; ++r) expected[static_cast<std::size_t>(c)] += dy[r * size.width + c];
  }
  require_close(out[0], expected, 1e-5);  // 300 additions of order 1 in f32
}

TEST_CASE("embedding adds the token's row and its position's") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const bool positions = GENERATE(true, false);
  const RowSize size = GENERATE(RowSize{700, 1001}, from_range(kRowSizes));  // the first is stored past the caches
  const std::int64_t time = std::min<std::int64_t>(size.rows, 7), vocabulary = 13;
  Values ids = random_ids(size.rows, vocabulary), table = Values::random(dtype, vocabulary * size.width, 1);
  Values where = Values::random(dtype, positions ? (time + 2) * size.width : 0, 2);
  const auto out = run({Values::poison(dtype, size.rows * size.width)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().embedding_forward(ctx, o[0].buffer(), ids.buffer(), table.buffer(), where.buffer(), time);
  });
  Values expected(dtype, size.rows * size.width);
  for (std::int64_t i = 0; i < size.rows; ++i)
    for (std::int64_t c = 0; c < size.width; ++c) {
      const double row = table[ids.at<std::int32_t>(i) * size.width + c];
      expected.set(i * size.width + c, row + (positions ? where[i % time * size.width + c] : 0.0));
    }
  REQUIRE(out[0].same_bytes(expected));
}

TEST_CASE("embedding gradients are added in order of the tokens") {
  const DType dtype = GENERATE(DType::f32, DType::bf16), to = GENERATE(DType::f32, DType::bf16);
  if (to == DType::bf16 && dtype == DType::f32) return;
  const float beta = GENERATE(0.0f, 1.0f);
  const RowSize size = GENERATE(from_range(kRowSizes));
  const std::int32_t padding = GENERATE(-1, 5);
  const std::int64_t time = std::min<std::int64_t>(size.rows, 7), vocabulary = 13;
  Values ids = random_ids(size.rows, vocabulary), dy = Values::random(dtype, size.rows * size.width, 1);
  const std::int64_t table_elems = vocabulary * size.width, position_elems = (time + 2) * size.width;
  const bool fresh = beta == 0.0f;
  const Values table = fresh ? Values::poison(to, table_elems) : Values::random(to, table_elems, 2);
  const Values positions = fresh ? Values::poison(to, position_elems) : Values::random(to, position_elems, 3);
  const auto out = run({table, positions}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().embedding_backward(ctx, o[0].buffer(), ids.buffer(), dy.buffer(), size.width, beta, padding);
    k().position_backward(ctx, o[1].buffer(), dy.buffer(), time, size.width, beta);
  });
  Values expected_table = fresh ? Values(to, table_elems) : table,
         expected_positions = fresh ? Values(to, position_elems) : positions;
  const auto add = [](Values& values, std::int64_t at, double x) {
    values.set(at, static_cast<double>(static_cast<float>(values[at]) + static_cast<float>(x)));
  };
  for (std::int64_t i = 0; i < size.rows; ++i)
    for (std::int64_t c = 0; c < size.width; ++c) {
      if (ids.at<std::int32_t>(i) != padding)
        add(expected_table, ids.at<std::int32_t>(i) * size.width + c, dy[i * size.width + c]);
      add(expected_positions, i % time * size.width + c, dy[i * size.width + c]);
    }
  REQUIRE(out[0].same_bytes(expected_table));
  REQUIRE(out[1].same_bytes(expected_positions));
}

TEST_CASE("embedding gradients of a large table, some rows of which take many tokens, are added in order") {
  const std::int64_t tokens = GENERATE(1, 255, 257, 3000), vocabulary = GENERATE(1, 16, 17, 70001), width = 3;
  Values ids = random_ids(tokens, vocabulary), dy = Values::random(DType::f32, tokens * width, 1);
  for (std::int64_t i = 0; i < tokens; ++i)
    if (i % 3 != 0) ids.set(i, static_cast<double>((vocabulary - 1) / (1 + i % 2)));
  const auto out = run({Values::poison(DType::f32, vocabulary * width)}, [&](ExecContext& ctx, std::vector<Values>& o) {
    k().embedding_backward(ctx, o[0].buffer(), ids.buffer(), dy.buffer(), width, 0.0f, -1);
  });
  Values expected(DType::f32, vocabulary * width);
  for (std::int64_t i = 0; i < tokens * width; ++i) {
    const std::int64_t at = ids.at<std::int32_t>(i / width) * width + i % width;
    expected.set(at, static_cast<double>(static_cast<float>(expected[at]) + static_cast<float>(dy[i])));
  }
  REQUIRE(out[0].same_bytes(expected));
}

TEST_CASE("a token outside the table is refused by number", "[cpu]") {
  ExecContext ctx = make_context();
  Values ids = Values::of(DType::i32, {0, 5}), table(DType::f32, 5 * 2), out(DType::f32, 4), none(DType::f32, 0);
  REQUIRE_THROWS_WITH(k().embedding_forward(ctx, out.buffer(), ids.buffer(), table.buffer(), none.buffer(), 2),
                      Catch::Contains("token 1 is 5, expected [0, 5)"));
  REQUIRE_THROWS_AS(k().embedding_backward(ctx, table.buffer(), ids.buffer(), out.buffer(), 2, 0.0f, -1), Error);
}

}  // namespace zs::test::rows_test
