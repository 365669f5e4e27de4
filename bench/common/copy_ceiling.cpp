#include "bench/common/copy_ceiling.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "bench/common/clock.h"

namespace zs::bench {
namespace {

constexpr std::int64_t kLine = 64;

void copy_plain(char* out, const char* in, std::int64_t bytes) {
  std::memcpy(out, in, static_cast<std::size_t>(bytes));
}

/// Addresses and size are multiples of 64.
void copy_streaming(char* out, const char* in, std::int64_t bytes) {
#if defined(__SSE2__)
  for (std::int64_t i = 0; i < bytes; i += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_load_si128(reinterpret_cast<const __m128i*>(in + i)));
  _mm_sfence();
#else
  copy_plain(out, in, bytes);
#endif
}

/// GB/s, read and written, of one copy by the whole team.
double copy_rate(ExecContext& exec, Buffer out, Buffer in, void (*copy)(char*, const char*, std::int64_t)) {
  const int threads = exec.threads();
  const std::int64_t part = (out.bytes() / threads + kLine - 1) / kLine * kLine;
  const auto start = Clock::now();
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
  for (int i = 0; i < threads; ++i) {
    const std::int64_t first = std::min(i * part, out.bytes()), count = std::min(part, out.bytes() - first);
    copy(static_cast<char*>(out.data) + first, static_cast<const char*>(in.data) + first, count);
  }
  return 2e-9 * static_cast<double>(out.bytes()) / std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

CopyCeiling::CopyCeiling(const DeviceOptions& options, std::int64_t cache_bytes)
    : device_(Device::create(DeviceKind::cpu, options)) {
  Stream& stream = device_->stream(StreamRole::compute);
  const std::int64_t bytes = 2 * Pool::rounded(cache_bytes);
  out_ = device_->pool().acquire(bytes, stream, "bench");
  in_ = device_->pool().acquire(bytes, stream, "bench");
  const Buffer out = out_.buffer(DType::u8, bytes), in = in_.buffer(DType::u8, bytes);
  stream.enqueue({"fill", {}, {out, in}}, [out, in](ExecContext&) {  // before it, the pages are not there
    std::memset(out.data, 1, static_cast<std::size_t>(out.bytes()));
    std::memset(in.data, 2, static_cast<std::size_t>(in.bytes()));
  });
}

void CopyCeiling::measure(int rounds) {
  const Buffer out = out_.buffer(DType::u8, out_.bytes()), in = in_.buffer(DType::u8, in_.bytes());
  device_->stream(StreamRole::compute).enqueue({"copy", {in}, {out}}, [=, this](ExecContext& exec) {
    for (int i = 0; i < rounds; ++i) {
      memcpy_ = std::max(memcpy_, copy_rate(exec, out, in, copy_plain));
      streaming_ = std::max(streaming_, copy_rate(exec, out, in, copy_streaming));
    }
  });
  device_->synchronize();
}

void CopyCeiling::copy(bool is_streaming, int times) {
  const Buffer out = out_.buffer(DType::u8, out_.bytes()), in = in_.buffer(DType::u8, in_.bytes());
  device_->stream(StreamRole::compute).enqueue({"copy", {in}, {out}}, [=](ExecContext& exec) {
    for (int i = 0; i < times; ++i) copy_rate(exec, out, in, is_streaming ? copy_streaming : copy_plain);
  });
  device_->synchronize();
}

}  // namespace zs::bench
