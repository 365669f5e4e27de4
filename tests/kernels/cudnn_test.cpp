#include "kernels/cudnn.h"

#include "tests/gpu/real_gpu.h"
#include "tests/kernels/testing.h"
#include "tests/skip.h"
#include "tests/stderr_of.h"

namespace zs::test::cudnn_test {
namespace {

struct Attention {
  Values out, lse, dqkv;
};

Attention attention(const KernelTable& kernels, ExecContext& ctx, Values& qkv, Values& dout, const AttentionDims& d) {
  Attention made{Values::poison(qkv.dtype(), dout.elems()), Values::poison(DType::f32, d.batch * d.heads * d.time),
                 Values::poison(qkv.dtype(), qkv.elems())};
  kernels.attention_forward(ctx, made.out.buffer(), made.lse.buffer(), qkv.buffer(), d);
  kernels.attention_backward(ctx, made.dqkv.buffer(), dout.buffer(), made.out.buffer(), qkv.buffer(), made.lse.buffer(),
                             d);
  return made;
}

bool same_bytes(const Attention& a, const Attention& b) {
  return a.out.same_bytes(b.out) && a.lse.same_bytes(b.lse) && a.dqkv.same_bytes(b.dqkv);
}

struct Operands {
  Operands(DType dtype, const AttentionDims& d)
      : qkv(Values::random(dtype, d.batch * d.time * qkv_width_of(d), 1)),
        dout(Values::random(dtype, d.batch * d.time * d.heads * d.head_dim, 2)) {}
  Values qkv, dout;
};

double largest_of(const Values& values) {
  double largest = 0;
  for (const double x : values.list()) largest = std::max(largest, std::abs(x));
  return largest;
}

}  // namespace

TEST_CASE("attention that cuDNN does not take is that of own kernels, without a word", "[attention]") {
  const auto [dtype, d] = GENERATE(table<DType, AttentionDims>({{DType::f32, {1, 20, 2, 64}},
                                                                {DType::bf16, {1, 20, 2, 48}},
                                                                {DType::bf16, {2, 1, 2, 64}},
                                                                {DType::bf16, {1, 40, 2, 64, 1, 16}}}));
  CAPTURE(d.time, d.head_dim, d.window);
  Operands of(dtype, d);
  ExecContext ctx = make_context();
  const Attention expected = attention(cuda_kernels(), ctx, of.qkv, of.dout, d);
  const std::string said =
      stderr_of([&] { CHECK(same_bytes(attention(cuda_kernels_with_cudnn(), ctx, of.qkv, of.dout, d), expected)); });
  CHECK(said.empty());
}

TEST_CASE("where cuDNN cannot be used own kernels are, and a line for each shape says why", "[attention]") {
  if (is_on_real_gpu()) return skip("cuDNN may be there");
  const AttentionDims d{1, 20, 2, 64};
  Operands of(DType::bf16, d);
  ExecContext ctx = make_context();
  const Attention expected = attention(cuda_kernels(), ctx, of.qkv, of.dout, d);
  std::string said[2];
  for (std::string& text : said)
    text =
        stderr_of([&] { CHECK(same_bytes(attention(cuda_kernels_with_cudnn(), ctx, of.qkv, of.dout, d), expected)); });
  const bool is_in_build = &cuda_kernels_with_cudnn() != &cuda_kernels();
  CHECK(said[0] == (is_in_build ? "note: attention forward of 1 x 20, 2 heads on 2 of 64 by own kernels, not by cuDNN: "
                                  "it has not been opened\n"
                                  "note: attention backward of 1 x 20, 2 heads on 2 of 64 by own kernels, not by "
                                  "cuDNN: it has not been opened\n"
                                : ""));
  CHECK(said[1].empty());
}

TEST_CASE("working memory covers attention by either", "[attention]") {
  const AttentionDims d =
      GENERATE(AttentionDims{2, 100, 4, 64}, AttentionDims{2, 100, 4, 128, 2}, AttentionDims{2, 100, 4, 80});
  const std::int64_t own = cuda_kernels().scratch.attention(1, d),
                     either = cuda_kernels_with_cudnn().scratch.attention(1, d);
  const bool is_in_build = &cuda_kernels_with_cudnn() != &cuda_kernels();
  if (is_in_build && d.head_dim != 80)
    CHECK(either > d.batch * d.heads * d.time * d.head_dim * 8);  // gradients of queries in f32, twice
  else
    CHECK(either == own);
}

TEST_CASE("attention by cuDNN is that of own kernels but for roundings", "[attention][cudnn]") {
  if (!is_on_real_gpu()) return skip("cuDNN needs a GPU");
  try {
    open_cudnn();
  } catch (const Error& error) {
    return skip(error.what());
  }
  const AttentionDims d =
      GENERATE(AttentionDims{2, 128, 2, 64}, AttentionDims{1, 2, 1, 64}, AttentionDims{1, 130, 3, 64},
               AttentionDims{2, 200, 4, 64, 2}, AttentionDims{1, 384, 2, 128}, AttentionDims{2, 257, 6, 128, 2},
               AttentionDims{3, 100, 4, 128, 1}, AttentionDims{4, 1024, 12, 64});
  CAPTURE(d.batch, d.time, d.heads, d.kv_heads, d.head_dim);
  Operands of(DType::bf16, d);
  ExecContext ctx = make_context();
  const Attention expected = attention(cuda_kernels(), ctx, of.qkv, of.dout, d);
  // A line on stderr says that cuDNN did not do it.
  const std::string said = stderr_of([&] {
    const Attention found = attention(cuda_kernels_with_cudnn(), ctx, of.qkv, of.dout, d);
    // Both round probabilities and gradients of scores to bf16, in different places.
    constexpr double kRoundings = 4 * 0x1.0p-8;
    require_close(found.out, expected.out.list(), kRoundings * largest_of(expected.out));
    require_close(found.lse, expected.lse.list(), 1e-4);
    require_close(found.dqkv, expected.dqkv.list(), kRoundings * largest_of(expected.dqkv));
  });
  CHECK(said == "");
}

}  // namespace zs::test::cudnn_test
