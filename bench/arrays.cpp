#include "bench/arrays.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/random.h"

namespace zs::bench {
namespace {

constexpr std::int64_t kPeriod = 65537;

template <class T>
void repeat(Buffer out, float low, float high) {
  const CounterRng rng(1);
  std::vector<T> values(static_cast<std::size_t>(std::min(out.elems, kPeriod)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = T(low + (high - low) * static_cast<float>(rng.uniform(i)));
  for (std::int64_t first = 0; first < out.elems; first += kPeriod) {
    const std::int64_t count = std::min(kPeriod, out.elems - first);
    std::memcpy(static_cast<void*>(out.as<T>() + first), values.data(), static_cast<std::size_t>(count) * sizeof(T));
  }
}

}  // namespace

void enqueue_random(Stream& stream, Buffer out, float low, float high) {
  stream.enqueue({"fill", {}, {out}}, [out, low, high](ExecContext&) {
    out.dtype == DType::f32 ? repeat<float>(out, low, high) : repeat<BFloat16>(out, low, high);
  });
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
  stream_.enqueue({"fill", {}, {out}}, [out, limit, set](ExecContext&) {
    for (std::int64_t i = 0; i < out.elems; ++i)
      out.as<std::int32_t>()[i] = static_cast<std::int32_t>((i + set * out.elems) * 7919 % limit);
  });
  return out;
}

Buffer Arrays::floats(std::vector<float> values) {
  const Buffer out = acquire(static_cast<std::int64_t>(values.size()), DType::f32);
  stream_.enqueue({"fill", {}, {out}},
                  [out, values = std::move(values)](ExecContext&) { std::copy(values.begin(), values.end(), out.as<float>()); });
  return out;
}

Buffer Arrays::zeros(std::int64_t elems, DType dtype) {
  const Buffer out = acquire(elems, dtype);
  stream_.enqueue({"fill", {}, {out}}, [out](ExecContext&) { std::memset(out.data, 0, static_cast<std::size_t>(out.bytes())); });
  return out;
}

}  // namespace zs::bench
