#include <memory>

#include "runtime/device/cuda_device.h"
#include "tests/gpu/emulation/kernels.h"
#include "tests/kernels/testing.h"

/// Every barrier and every wait of attention's kernels is needed: each is left out once, and the results show it.
namespace zs::test {

const KernelTable& kernels_under_test() { return cuda_kernels(); }
DeviceKind device_under_test() { return DeviceKind::cuda; }
/// An emulated GPU has the host's.
Allocator& memory_under_test() {
  static const std::unique_ptr<Allocator> memory = make_cpu_allocator();
  return *memory;
}

namespace cuda_mistakes_test {
namespace {

/// Forward and backward, each thread in turn or backwards. Nothing: the emulator has found something itself.
std::vector<Values> attention(const AttentionDims& d, DType dtype, bool backwards) {
  EmulatedDriver driver({.is_immediate = true, .kernels = emulated_kernels()});
  driver.run_backwards(backwards);
  const CudaContext context(driver.table(), 0, false);
  context.make_current();
  CUstream_st* stream = nullptr;
  context.check(context.driver().stream_create(&stream, 1, 0), "cuStreamCreateWithPriority");
  const auto memory = make_cuda_allocator(context);
  constexpr std::int64_t kBytes = std::int64_t{1} << 20;
  const Buffer block{memory->allocate(kBytes), kBytes, DType::u8, DeviceKind::cuda};
  const std::int64_t elems = d.batch * d.time * d.heads * d.head_dim;
  Values qkv = Values::random(dtype, 3 * elems, 1), dout = Values::random(dtype, elems, 2);
  Values out = Values::poison(dtype, elems), dqkv = Values::poison(dtype, 3 * elems),
         lse = Values::poison(DType::f32, d.batch * d.heads * d.time);
  try {
    ExecContext ctx(1, stream, &context);
    ctx.set_memory({.scratch = block, .pinned = {}});
    cuda_kernels().attention_forward(ctx, out.buffer(), lse.buffer(), qkv.buffer(), d);
    cuda_kernels().attention_backward(ctx, dqkv.buffer(), dout.buffer(), out.buffer(), qkv.buffer(), lse.buffer(), d);
  } catch (const Error&) {
    return {};
  }
  return {out, lse, dqkv};
}

bool are_same(const std::vector<Values>& a, const std::vector<Values>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!a[i].same_bytes(b[i])) return false;
  return true;
}

struct Case {
  DType dtype;
  AttentionDims dims;
};

/// Leaves out the n-th of something for every n from `first` on, until there is none. How many there were.
template <class MistakeOf>
int leave_out_each(const Case& what, int first, const MistakeOf& mistake_of) {
  emulation::make_mistake({});
  const std::vector<Values> right = attention(what.dims, what.dtype, false);
  REQUIRE(right.size() == 3);
  REQUIRE(are_same(right, attention(what.dims, what.dtype, true)));
  for (int n = first;; ++n) {
    emulation::make_mistake(mistake_of(n));
    const bool is_found = !are_same(right, attention(what.dims, what.dtype, false)) ||
                          !are_same(right, attention(what.dims, what.dtype, true));
    const int made = emulation::mistakes_made();
    emulation::make_mistake({});
    if (made == 0) return n;
    INFO("number " << n);
    CHECK(is_found);
  }
}

const Case kTensor64{DType::bf16, {1, 150, 1, 64}}, kTensor128{DType::bf16, {1, 150, 1, 128}},
    kGeneral{DType::f32, {1, 128, 1, 20}};

}  // namespace

TEST_CASE("a barrier that is left out shows") {
  const Case what = GENERATE(kTensor64, kTensor128);
  CHECK(leave_out_each(what, 0, [](int n) { return emulation::Mistake{.barrier = n}; }) >= 3);
}

TEST_CASE("a barrier of the general kernels that is left out shows") {
  // The first one is for the tiles that follow.
  CHECK(leave_out_each(kGeneral, 1, [](int n) { return emulation::Mistake{.barrier = n}; }) > 20);
}

TEST_CASE("a wait for copies that is left out shows") {
  const Case what = GENERATE(kTensor64, kTensor128);
  CHECK(leave_out_each(what, 0, [](int n) { return emulation::Mistake{.wait = n}; }) >= 3);
}

TEST_CASE("a warp's barrier between writing and reading a tile that is left out shows") {
  const Case what = GENERATE(kTensor64, kTensor128);
  // The one before, which keeps the tile's readers from the writing, orders what ldmatrix has brought together here
  // already.
  const auto second = [](int n) { return emulation::Mistake{.warp_barrier = 2 * n + 1}; };
  CHECK(leave_out_each(what, 0, second) == 2);
}

}  // namespace cuda_mistakes_test
}  // namespace zs::test
