#include <catch2/catch.hpp>
#include <functional>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/random.h"
#include "tests/gpu/emulation/cuda.h"
// Behind it: the functions that the emulator has.
#include "kernels/cuda/warp.h"

/// The emulator's own: warps, tensor cores, copies, and what it finds.
namespace zs::test::cuda_warp_test {
namespace {

using emulation::run_grid;

constexpr unsigned kLanes = 32;

emulation::Launch one_warp(bool backwards, std::size_t shared_bytes = 0) {
  return {{1}, {kLanes}, shared_bytes, backwards};
}

/// bf16 elements, row-major.
struct Matrix {
  int rows, columns;
  std::vector<BFloat16> elems;

  Matrix(int r, int c, std::uint64_t seed) : rows(r), columns(c) {
    const CounterRng rng(seed);
    for (int i = 0; i < r * c; ++i) elems.emplace_back(static_cast<float>(rng.normal(static_cast<std::uint64_t>(i))));
  }
  BFloat16 at(int row, int column) const { return elems[static_cast<std::size_t>(row * columns + column)]; }
  /// Two elements as a register holds them.
  static std::uint32_t pair(BFloat16 low, BFloat16 high) {
    return low.bits | static_cast<std::uint32_t>(high.bits) << 16;
  }
};

using Product = std::vector<float>;  // (16, 8)

/// a (16, 16) times b (16, 8).
Product plain_product(const Matrix& a, const Matrix& b) {
  Product c;
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += static_cast<float>(a.at(row, k)) * static_cast<float>(b.at(k, column));
      c.push_back(sum);
    }
  return c;
}

/// Where the PTX ISA says that a lane's elements of the result are.
void store(Product& c, const float (&mine)[4]) {
  const int lane = static_cast<int>(threadIdx.x), group = lane >> 2, in_group = lane % 4;
  for (int i = 0; i < 4; ++i)
    c[static_cast<std::size_t>((i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1))] = mine[i];
}

}  // namespace

TEST_CASE("a product of the emulated tensor cores is the plain product, with fragments as documented") {
  const Matrix a(16, 16, 1), b(16, 8, 2);
  Product c(16 * 8);
  run_grid(one_warp(GENERATE(false, true)), true, [&] {
    const int lane = static_cast<int>(threadIdx.x), group = lane >> 2, in_group = lane % 4;
    std::uint32_t left[4], right[2];
    for (int i = 0; i < 8; i += 2) {  // a_i: row group for i in 0, 1, 4, 5; column 8 further from i = 4 on
      const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8, column = in_group * 2 + (i >= 4 ? 8 : 0);
      left[i / 2] = Matrix::pair(a.at(row, column), a.at(row, column + 1));
    }
    for (int i = 0; i < 4; i += 2) {
      const int row = in_group * 2 + (i >= 2 ? 8 : 0);
      right[i / 2] = Matrix::pair(b.at(row, group), b.at(row + 1, group));
    }
    float sums[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    cuda::multiply(sums, left, right[0], right[1]);
    store(c, sums);
  });
  const Product expected = plain_product(a, b);
  for (std::size_t i = 0; i < c.size(); ++i) REQUIRE(c[i] == Approx(expected[i] + 1.0f).margin(1e-5));
}

TEST_CASE("matrices come from shared memory as the operands of products") {
  // b is there twice: its transpose (column by column), read as it is, and itself, read transposed.
  const Matrix a(16, 16, 1), b(16, 8, 2);
  const bool is_transposed = GENERATE(false, true);
  Product c(16 * 8);
  const auto chunk = [](int row, int which) {
    return row * 2 + (which ^ (row >> 2 & 1));
  };  // rows of 32 bytes in banks of their own
  run_grid(one_warp(GENERATE(false, true), 3 * 16 * 32), true, [&] {
    const int lane = static_cast<int>(threadIdx.x);
    cuda::Words* const left = cuda::dynamic_shared();
    cuda::Words* const columns = left + 32;
    cuda::Words* const rows = columns + 32;
    for (int i = lane; i < 16 * 16; i += static_cast<int>(kLanes)) {
      const int row = i / 16, k = i % 16;
      reinterpret_cast<BFloat16*>(left + chunk(row, k / 8))[k % 8] = a.at(row, k);
      reinterpret_cast<BFloat16*>(columns + chunk(row, k / 8))[k % 8] = b.at(k, row % 8);  // rows 8 .. 15: b again
      reinterpret_cast<BFloat16*>(rows + chunk(row, k / 8))[k % 8] = b.at(row, k % 8);
    }
    cuda::sync_warp();
    std::uint32_t x[4], y[4];
    cuda::load_matrices(x, left + chunk(lane & 15, lane >> 4));
    if (is_transposed)
      cuda::load_matrices_transposed(y, rows + chunk(lane & 15, lane >> 4));
    else
      cuda::load_matrices(y, columns + chunk((lane & 7) + (lane >> 4) * 8, lane >> 3 & 1));
    float sums[4] = {}, again[4] = {};
    cuda::multiply(sums, x, y[0], y[1]);
    cuda::multiply(again, x, y[2], y[3]);
    for (int i = 0; i < 4; ++i)
      if (sums[i] != again[i]) throw std::logic_error("the second operand differs");
    store(c, sums);
  });
  const Product expected = plain_product(a, b);
  for (std::size_t i = 0; i < c.size(); ++i) REQUIRE(c[i] == Approx(expected[i]).margin(1e-5));
}

TEST_CASE("lanes get each other's values, meeting after meeting") {
  std::vector<float> sums(kLanes);
  run_grid(one_warp(GENERATE(false, true)), true, [&] {
    float sum = static_cast<float>(threadIdx.x);
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += cuda::shuffle_xor(sum, lanes);
    sums[threadIdx.x] = sum;
  });
  for (const float sum : sums) CHECK(sum == 31.0f * 32.0f / 2.0f);
}

TEST_CASE("copies to shared memory are there after the wait and not before") {
  std::vector<cuda::Words> from(kLanes);
  for (unsigned i = 0; i < kLanes; ++i) from[i].w[0] = i + 1;
  std::vector<std::uint32_t> before(kLanes), after(kLanes), missing(kLanes);
  run_grid(one_warp(false, 2 * kLanes * sizeof(cuda::Words)), true, [&] {
    const unsigned lane = threadIdx.x;
    cuda::Words* const shared = cuda::dynamic_shared();
    cuda::copy_async(shared + lane, from.data() + lane, true);
    cuda::copy_async(shared + kLanes + lane, from.data() + lane, false);
    before[lane] = shared[lane].w[0];
    cuda::wait_copies();
    after[lane] = shared[lane].w[0];
    missing[lane] = shared[kLanes + lane].w[0];
  });
  for (unsigned i = 0; i < kLanes; ++i) {
    CHECK(before[i] == 0xffffffffu);
    CHECK(after[i] == i + 1);
    CHECK(missing[i] == 0);
  }
}

TEST_CASE("what a GPU would not forgive is an error") {
  struct Wrong {
    const char* what;
    std::function<void()> kernel;
  };
  const auto lane = [] { return static_cast<int>(threadIdx.x); };
  cuda::Words source[2] = {};
  const std::vector<Wrong> list = {
      {"some threads of a warp do not come",
       [&] {
         if (lane() != 5) cuda::sync_warp();
       }},
      {"some threads of a warp do not come", [&] { lane() == 5 ? __syncthreads() : cuda::sync_warp(); }},
      {"comes to", [&] { lane() == 5 ? static_cast<void>(cuda::shuffle_xor(0.0f, 1)) : cuda::sync_warp(); }},
      {"copies are under way", [&] { cuda::copy_async(cuda::dynamic_shared(), source, true); }},
      {"beyond shared memory", [&] { cuda::copy_async(cuda::dynamic_shared() + 64, source, true); }},
      {"not aligned",
       [&] {
         auto* const odd = reinterpret_cast<cuda::Words*>(reinterpret_cast<std::uintptr_t>(source) + 4);
         cuda::copy_async(cuda::dynamic_shared(), odd, true);
       }},
      {"share banks",
       [&] {
         std::uint32_t out[4];
         cuda::load_matrices(out, cuda::dynamic_shared() + lane() % 8 * 8);
       }},
      {"not in shared memory",
       [&] {
         std::uint32_t out[4];
         cuda::load_matrices(out, source);
       }},
  };
  for (const Wrong& wrong : list) {
    INFO(wrong.what);
    CHECK_THROWS_WITH(run_grid(one_warp(false, 64 * sizeof(cuda::Words)), true, wrong.kernel),
                      Catch::Contains(wrong.what));
  }
}

}  // namespace zs::test::cuda_warp_test
