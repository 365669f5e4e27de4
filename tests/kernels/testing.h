#pragma once

#include <catch2/catch.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "tests/kernels/backend.h"

/// Buffers, comparisons and central differences for the kernels' tests.
namespace zs::test {

/// Elements in the kernels' own format, next to what they are worth in double precision.
class Values {
 public:
  /// One word more than it takes: the data of no elements is not null, which memcpy and its like may not be given.
  Values(DType dtype, std::int64_t elems)
      : dtype_(dtype), elems_(elems), words_(static_cast<std::size_t>((elems * size_of(dtype) + 7) / 8 + 1)) {}

  static Values random(DType dtype, std::int64_t elems, std::uint64_t seed, double scale = 1.0) {
    Values values(dtype, elems);
    const CounterRng rng(seed);
    for (std::int64_t i = 0; i < elems; ++i) values.set(i, scale * rng.normal(static_cast<std::uint64_t>(i)));
    return values;
  }
  static Values of(DType dtype, const std::vector<double>& list) {
    Values values(dtype, static_cast<std::int64_t>(list.size()));
    for (std::size_t i = 0; i < list.size(); ++i) values.set(static_cast<std::int64_t>(i), list[i]);
    return values;
  }
  /// What an output holds before its kernel runs: reading it shows.
  static Values poison(DType dtype, std::int64_t elems) {
    Values values(dtype, elems);
    std::memset(values.words_.data(), 0xff, values.words_.size() * 8);
    return values;
  }

  Buffer buffer() { return {words_.data(), elems_, dtype_, device_under_test()}; }
  DType dtype() const { return dtype_; }
  std::int64_t elems() const { return elems_; }
  double operator[](std::int64_t i) const {
    switch (dtype_) {
      case DType::f32: return static_cast<double>(at<float>(i));
      case DType::bf16: return static_cast<double>(static_cast<float>(at<BFloat16>(i)));
      case DType::f64: return at<double>(i);
      case DType::i32: return at<std::int32_t>(i);
      case DType::i64: return static_cast<double>(at<std::int64_t>(i));
      default: throw Error(ExitCode::internal, "no such values");
    }
  }
  void set(std::int64_t i, double value) {
    switch (dtype_) {
      case DType::f32: put(i, static_cast<float>(value)); break;
      case DType::bf16: put(i, BFloat16(static_cast<float>(value))); break;
      case DType::f64: put(i, value); break;
      case DType::i32: put(i, static_cast<std::int32_t>(value)); break;
      case DType::i64: put(i, static_cast<std::int64_t>(value)); break;
      default: throw Error(ExitCode::internal, "no such values");
    }
  }
  std::vector<double> list() const {
    std::vector<double> all;
    for (std::int64_t i = 0; i < elems_; ++i) all.push_back((*this)[i]);
    return all;
  }
  bool same_bytes(const Values& other) const {
    return elems_ == other.elems_ &&
           std::memcmp(words_.data(), other.words_.data(), static_cast<std::size_t>(elems_ * size_of(dtype_))) == 0;
  }

  template <class T>
  T at(std::int64_t i) const {
    T value;
    std::memcpy(&value, reinterpret_cast<const std::byte*>(words_.data()) + i * size_of(dtype_), sizeof(T));
    return value;
  }

 private:
  template <class T>
  void put(std::int64_t i, T value) {
    std::memcpy(reinterpret_cast<std::byte*>(words_.data()) + i * size_of(dtype_), &value, sizeof(T));
  }

  DType dtype_;
  std::int64_t elems_;
  TestVector<double> words_;  // aligned for every element type
};

/// Half a unit in the last place of a value of this dtype, relative; f32 kernels are allowed a few.
inline double rounding(DType dtype) { return dtype == DType::bf16 ? 0x1.0p-8 : 0x1.0p-22; }

/// Every element within `tolerance` (absolute) plus one rounding of its own.
inline void require_close(const Values& actual, const std::vector<double>& expected, double tolerance) {
  REQUIRE(actual.elems() == static_cast<std::int64_t>(expected.size()));
  for (std::int64_t i = 0; i < actual.elems(); ++i) {
    const double want = expected[static_cast<std::size_t>(i)], got = actual[i];
    if (std::isnan(want) && std::isnan(got)) continue;
    if (!(std::abs(got - want) <= tolerance + rounding(actual.dtype()) * std::abs(want))) {
      INFO("element " << i << " of " << actual.elems() << ": got " << got << ", expected " << want << ", off by "
                      << got - want);
      FAIL();
    }
  }
}

/// Runs `kernel(ctx, out...)` with 1, 2 and 3 threads on copies of `out`; all must leave the same bytes. Returns them.
template <class Kernel>
std::vector<Values> run(const std::vector<Values>& out, Kernel kernel) {
  std::vector<Values> first;
  for (const int threads : {1, 2, 3}) {
    std::vector<Values> results = out;
    ExecContext ctx = make_context(threads);
    kernel(ctx, results);
    if (first.empty()) {
      first = results;
      continue;
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      INFO("output " << i << " with 1 and with " << threads << " threads");
      REQUIRE(first[i].same_bytes(results[i]));
    }
  }
  return first;
}

/// d loss / d x[i] by central differences (step chosen for double precision).
template <class Loss>
double central_difference(std::vector<double> x, std::size_t i, Loss loss) {
  const double step = 1e-5 * std::max(1.0, std::abs(x[i])), at = x[i];
  x[i] = at + step;
  const double above = loss(x);
  x[i] = at - step;
  return (above - loss(x)) / (2 * step);
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
  return total;
}

/// Of kernels that go row by row.
struct RowSize {
  std::int64_t rows, width;
};
inline const std::vector<RowSize> kRowSizes = {{1, 1}, {3, 17}, {17, 3}, {100, 64}, {64, 768}, {301, 100}, {5, 1000}};

/// What a step tells its updates, as kernels read it.
inline Values scalars_of(const StepScalars& s) {
  return Values::of(DType::f32, {static_cast<double>(s.lr), static_cast<double>(s.bias_correction1),
                                 static_cast<double>(s.bias_correction2), static_cast<double>(s.clip_coefficient),
                                 static_cast<double>(s.grad_norm), static_cast<double>(s.skip)});
}

}  // namespace zs::test
