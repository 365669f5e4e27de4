#pragma once

#include <cstdlib>
#include <cstring>

#include "comm/communicator.h"
#include "runtime/base/random.h"

namespace zs::test {

template <class... Args>
void expect(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) throw std::runtime_error(fmt::format(text, std::forward<Args>(args)...));
}

/// Where the tests' arrays are, by the environment variable ZSHARD_TEST_MEMORY: "ordinary", "mixed" (here and there,
/// and not on every rank alike), else in the communicator's arena.
inline bool is_in_arena(int rank, std::int64_t n) {
  const char* const wanted = std::getenv("ZSHARD_TEST_MEMORY");
  const std::string_view memory = wanted == nullptr ? "" : wanted;
  return memory == "mixed" ? (rank + n / 2) % 2 == 0 : memory != "ordinary";
}

/// Where they are for communicators over GPUs: what both the GPU and the tests reach. Null: the arena, which is the
/// host's memory where GPUs are emulated.
inline Allocator*& memory_of_gpu_arrays() {
  thread_local Allocator* memory = nullptr;
  return memory;
}

/// n elements from a communicator's arena (see above), filled with a pattern, with a guard behind them.
template <class T>
class Array {
 public:
  Array(Communicator& comm, std::int64_t n)
      : device_(comm.arena().device()),
        ordinary_(is_in_arena(comm.rank(), n) || device_ == DeviceKind::cuda ? nullptr : make_cpu_allocator()),
        memory_(ordinary_                                                          ? *ordinary_
                : device_ == DeviceKind::cuda && memory_of_gpu_arrays() != nullptr ? *memory_of_gpu_arrays()
                                                                                   : comm.arena()),
        n_(n),
        data_(static_cast<T*>(memory_.allocate(bytes()))) {
    std::memset(static_cast<void*>(data_), kPattern, static_cast<std::size_t>(bytes()));
  }
  ~Array() { memory_.deallocate(data_, bytes()); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  Buffer buffer() const { return {data_, n_, DTypeOf<T>::value, device_}; }
  T& operator[](std::int64_t i) { return data_[i]; }

  template <class Value>
  void fill(Value value) {
    for (std::int64_t i = 0; i < n_; ++i) data_[i] = value(i);
  }
  /// Equal bit for bit, and nothing written behind the end.
  template <class Value>
  void expect_is(const char* what, int rank, Value value) const {
    for (std::int64_t i = 0; i < n_; ++i) {
      const T wanted = value(i);
      if (std::memcmp(&data_[i], &wanted, sizeof(T)) == 0) continue;
      expect(false, "{} on rank {}: element {} of {} ({}) is {}, expected {}", what, rank, i, n_,
             name_of(DTypeOf<T>::value), shown(data_[i]), shown(wanted));
    }
    const auto* guard = reinterpret_cast<const unsigned char*>(data_ + n_);
    for (int i = 0; i < kGuardBytes; ++i)
      expect(guard[i] == kPattern, "{} on rank {}: written behind the end", what, rank);
  }

 private:
  static constexpr int kGuardBytes = 128;
  static constexpr unsigned char kPattern = 0xa5;
  static double shown(T value) {
    if constexpr (std::is_same_v<T, BFloat16>) {
      return static_cast<float>(value);
    } else {
      return static_cast<double>(value);
    }
  }
  std::int64_t bytes() const { return n_ * static_cast<std::int64_t>(sizeof(T)) + kGuardBytes; }

  DeviceKind device_;
  std::unique_ptr<Allocator> ordinary_;
  Allocator& memory_;
  std::int64_t n_;
  T* data_;
};

/// Small integers, different for every rank: sums over 8 ranks are exact in every type, bf16 included.
template <class T>
T whole(int rank, std::int64_t i) {
  const auto value = static_cast<int>((i * 7 + rank * 13 + i / 29) % 29) - 14;
  if constexpr (std::is_same_v<T, BFloat16>) return BFloat16(static_cast<float>(value));
  return static_cast<T>(value);
}

/// The same where T is carried in f32; else whole numbers that f32 has not, so that only sums in T are right: those of
/// 9 are exact.
template <class T>
T wide(int rank, std::int64_t i) {
  if constexpr (std::is_same_v<T, std::int64_t>) return whole<T>(rank, i) * ((T{1} << 54) + 1);
  if constexpr (std::is_same_v<T, std::int32_t> || std::is_same_v<T, double>)
    return whole<T>(rank, i) * T{(1 << 24) + 1};
  return whole<T>(rank, i);
}

/// Real numbers of very different sizes, so that every order of addition gives other bits.
inline float real(int rank, std::int64_t i) {
  const CounterRng rng(17, static_cast<std::uint64_t>(rank));
  const auto counter = static_cast<std::uint64_t>(i);
  return static_cast<float>(std::ldexp(rng.uniform(counter) - 0.5, static_cast<int>(rng.bits(counter) % 12)));
}

template <class Body>
void of_every_dtype(const Body& body) {
  body(float{});
  body(BFloat16{});
  body(double{});
  body(std::int32_t{});
  body(std::int64_t{});
  body(std::uint8_t{});
  body(std::uint16_t{});
}

}  // namespace zs::test
