#include "bench/common/arrays.h"

#include <algorithm>

#include "runtime/base/random.h"

namespace zs::bench {
namespace {

constexpr std::int64_t kPeriod = 65537;

/// Enqueues the copying of what the host has to the beginning of `out`, and of that to all the rest of it, in pieces
/// that double.
template <class T>
void enqueue_repeated(Stream& stream, Buffer out, std::vector<T> values) {
  stream.enqueue({"fill", {}, {out}}, [out, values = std::move(values)](ExecContext& exec) {
    if (out.empty()) return;
    const auto known = static_cast<std::int64_t>(values.size());
    kernels_of(exec).upload(exec, out.slice(0, known), values.data());
    for (std::int64_t done = known; done < out.elems;) {
      const std::int64_t count = std::min(done, out.elems - done);
      kernels_of(exec).copy(exec, out.slice(done, count), out.slice(0, count));
      done += count;
    }
  });
}

template <class T>
std::vector<T> random_values(std::int64_t count, float low, float high) {
  const CounterRng rng(1);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = T(low + (high - low) * static_cast<float>(rng.uniform(i)));
  return values;
}

}  // namespace

const KernelTable& kernels_of(const ExecContext& exec) {
  return exec.native_stream() != nullptr ? cuda_kernels() : cpu_kernels();
}

void enqueue_random(Stream& stream, Buffer out, float low, float high) {
  const std::int64_t count = std::min(out.elems, kPeriod);
  if (out.dtype == DType::f32)
    enqueue_repeated(stream, out, random_values<float>(count, low, high));
  else
    enqueue_repeated(stream, out, random_values<BFloat16>(count, low, high));
}

Buffer Arrays::acquire(std::int64_t elems, DType dtype) {
  memory_.push_back(pool_.acquire(elems * size_of(dtype), stream_, "bench"));
  own_bytes_ += elems * size_of(dtype);
  return memory_.back().buffer(dtype, elems);
}

Buffer Arrays::random(std::int64_t elems, DType dtype, float low, float high) {
  const Buffer out = acquire(elems, dtype);
  enqueue_random(stream_, out, low, high);
  return out;
}

Buffer Arrays::shared_random(const std::string& name, std::int64_t elems, DType dtype) {
  const auto found = shared_.find(name);
  if (found != shared_.end()) return found->second;
  const Buffer out = random(elems, dtype);
  own_bytes_ -= out.bytes();
  shared_bytes_ += out.bytes();
  return shared_.emplace(name, out).first->second;
}

Buffer Arrays::ids(std::int64_t elems, std::int64_t limit, int set) {
  const Buffer out = acquire(elems, DType::i32);
  std::vector<std::int32_t> values(static_cast<std::size_t>(elems));
  for (std::int64_t i = 0; i < elems; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((i + set * elems) * 7919 % limit);
  enqueue_repeated(stream_, out, std::move(values));
  return out;
}

Buffer Arrays::floats(std::vector<float> values) {
  const Buffer out = acquire(static_cast<std::int64_t>(values.size()), DType::f32);
  enqueue_repeated(stream_, out, std::move(values));
  return out;
}

Buffer Arrays::zeros(std::int64_t elems, DType dtype) {
  const Buffer out = acquire(elems, dtype);
  stream_.enqueue({"fill", {}, {out}}, [out](ExecContext& exec) { kernels_of(exec).zero(exec, out); });
  return out;
}

}  // namespace zs::bench
