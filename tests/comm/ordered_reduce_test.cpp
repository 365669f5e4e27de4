#include "comm/ordered_reduce.h"

#include "comm/ordered_reduce_loops.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "runtime/base/random.h"
#include "tests/comm/arrays.h"

namespace ordered_reduce_test {

using namespace zs;

namespace {

/// One reduction of parts whose numbers differ in size by 2^20, so that sums in another order have other bits.
struct Case {
  std::size_t parts;
  std::int64_t elems;
  bool has_start;
  std::int64_t offset;  ///< of every array, in elements: vectors begin anywhere
};

template <class T>
std::vector<T> numbers(std::size_t part, const Case& c) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < c.offset + c.elems; ++i) {
    const float value =
        test::real(static_cast<int>(part), i) * static_cast<float>(1 << (part * 7 + static_cast<std::size_t>(i)) % 20);
    values.push_back(static_cast<T>(value));
  }
  return values;
}

template <class Part, class Out, class Acc>
bool is_right(const Case& c, ReduceOp op) {
  std::vector<std::vector<Part>> parts;
  std::vector<const std::byte*> starts;
  for (std::size_t p = 0; p < c.parts; ++p) parts.push_back(numbers<Part>(p, c));
  for (const auto& part : parts) starts.push_back(reinterpret_cast<const std::byte*>(part.data() + c.offset));
  std::vector<Out> out = numbers<Out>(c.parts, c), expected = out;
  for (auto i = static_cast<std::size_t>(c.offset); i < out.size(); ++i) {
    Acc sum = c.has_start ? static_cast<Acc>(out[i]) : static_cast<Acc>(parts[0][i]);
    for (std::size_t p = c.has_start ? 0 : 1; p < c.parts; ++p) {
      const Acc next = static_cast<Acc>(parts[p][i]);
      sum = op == ReduceOp::sum ? sum + next : op == ReduceOp::max ? std::max(sum, next) : std::min(sum, next);
    }
    expected[i] = static_cast<Out>(sum);
  }
  auto* const to = reinterpret_cast<std::byte*>(out.data() + c.offset);
  ordered_reduce({starts, DTypeOf<Part>::value, c.has_start ? to : nullptr, to, DTypeOf<Out>::value, c.elems, op});
  return out.empty() || std::memcmp(out.data(), expected.data(), out.size() * sizeof(Out)) == 0;
}

template <class Part, class Out, class Acc>
std::vector<std::string> wrong_ones() {
  std::vector<std::string> wrong;
  for (std::size_t parts = 1; parts <= 18; ++parts) {
    for (const std::int64_t elems : {0, 1, 15, 16, 33, 2048, 4100}) {
      for (const bool has_start : {false, true}) {
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
          const Case c{parts, elems, has_start, elems % 3};
          if (!is_right<Part, Out, Acc>(c, op))
            wrong.push_back(
                fmt::format("{} parts, {} elements, start {}, op {}", parts, elems, has_start, static_cast<int>(op)));
        }
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("a fold takes any number of parts in their order, element by element") {
  CHECK(wrong_ones<float, float, float>() == std::vector<std::string>{});
  CHECK(wrong_ones<BFloat16, float, float>() == std::vector<std::string>{});
  CHECK(wrong_ones<float, BFloat16, float>() == std::vector<std::string>{});
  CHECK(wrong_ones<BFloat16, BFloat16, float>() == std::vector<std::string>{});
  CHECK(wrong_ones<double, double, double>() == std::vector<std::string>{});
  CHECK(wrong_ones<std::int32_t, std::int32_t, std::int32_t>() == std::vector<std::string>{});
  CHECK(wrong_ones<std::int64_t, std::int64_t, std::int64_t>() == std::vector<std::string>{});
}

namespace {

/// Any bits: numbers of every size, subnormal ones, infinities and NaNs.
template <class T>
std::vector<T> any_bits(std::int64_t count, std::uint64_t seed) {
  std::vector<T> values(static_cast<std::size_t>(count));
  const CounterRng rng(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t bits = rng.bits(static_cast<std::uint64_t>(i));
    std::memcpy(static_cast<void*>(&values[static_cast<std::size_t>(i)]), &bits, sizeof(T));
  }
  return values;
}

/// What a loop gives, but that NaNs are alike: which of two a processor keeps is its own affair.
template <class Part, class Out>
std::vector<double> reduced(const ordered_reduce_loops::Isa& isa, std::size_t parts, std::int64_t elems,
                            std::int64_t offset, ReduceOp op, bool has_start) {
  std::vector<std::vector<Part>> values;
  std::vector<const std::byte*> starts;
  for (std::size_t p = 0; p < parts; ++p) values.push_back(any_bits<Part>(elems + offset, p));
  for (const auto& part : values) starts.push_back(reinterpret_cast<const std::byte*>(part.data() + offset));
  std::vector<Out> out = any_bits<Out>(elems + offset, 99);
  auto* const to = reinterpret_cast<std::byte*>(out.data() + offset);
  CHECK(isa.run(
      {starts.data(), parts, DTypeOf<Part>::value, has_start ? to : nullptr, to, DTypeOf<Out>::value, elems, op}));
  std::vector<double> result;
  for (const Out x : out) {
    const double value = static_cast<double>(static_cast<float>(x));
    result.push_back(value == value ? value : 1e300);
  }
  return result;
}

template <class Part, class Out>
void check_all_isas() {
  for (const std::size_t parts : {std::size_t{1}, std::size_t{2}, std::size_t{4}, std::size_t{8}, std::size_t{11}})
    for (const std::int64_t elems : {1, 7, 33, 2049, 4100})
      for (const bool has_start : {false, true})
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
          const auto run = [&](const ordered_reduce_loops::Isa& isa) {
            return reduced<Part, Out>(isa, parts, elems, elems % 3, op, has_start);
          };
          const std::vector<double> expected = run(ordered_reduce_loops::baseline::kIsa);
          for (const ordered_reduce_loops::Isa* isa : ordered_reduce_loops::available()) {
            INFO(isa->name << ", " << parts << " parts of " << elems << ", start " << has_start << ", op "
                           << static_cast<int>(op));
            CHECK(run(*isa) == expected);
          }
        }
}

}  // namespace

TEST_CASE("a fold has the same bits for every instruction set") {
  REQUIRE(ordered_reduce_loops::available().back() == &ordered_reduce_loops::baseline::kIsa);
  check_all_isas<float, float>();
  check_all_isas<BFloat16, BFloat16>();
  check_all_isas<BFloat16, float>();
  check_all_isas<float, BFloat16>();
}

TEST_CASE("a fold into bf16 rounds to nearest even and keeps NaN") {
  const std::vector<float> a = {1.00390625f, 1.01171875f, -1.00390625f, std::numeric_limits<float>::quiet_NaN(),
                                3.4e38f,     1e-40f,      0.0f};
  const std::vector<const std::byte*> starts = {reinterpret_cast<const std::byte*>(a.data())};
  for (const ordered_reduce_loops::Isa* isa : ordered_reduce_loops::available()) {
    std::vector<BFloat16> out(a.size());
    CHECK(isa->run({starts.data(), 1, DType::f32, nullptr, reinterpret_cast<std::byte*>(out.data()), DType::bf16,
                    static_cast<std::int64_t>(a.size()), ReduceOp::sum}));
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(out[i].bits == BFloat16(a[i]).bits);
  }
}

TEST_CASE("a fold may write over any one of its parts") {
  for (std::size_t over = 0; over < 10; ++over) {
    const Case c{10, 4100, false, 0};
    std::vector<std::vector<float>> parts;
    std::vector<const std::byte*> starts;
    for (std::size_t p = 0; p < c.parts; ++p) parts.push_back(numbers<float>(p, c));
    for (const auto& part : parts) starts.push_back(reinterpret_cast<const std::byte*>(part.data()));
    std::vector<float> expected = parts[0];
    for (std::size_t p = 1; p < c.parts; ++p)
      std::transform(expected.begin(), expected.end(), parts[p].begin(), expected.begin(), std::plus<>());
    ordered_reduce(
        {starts, DType::f32, nullptr, reinterpret_cast<std::byte*>(parts[over].data()), DType::f32, c.elems});
    CHECK(parts[over] == expected);
  }
}

TEST_CASE("sums of integers wrap") {
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::int32_t> a(100, kMost), b(100, 2);
  const std::vector<const std::byte*> starts = {reinterpret_cast<const std::byte*>(a.data()),
                                                reinterpret_cast<const std::byte*>(b.data())};
  std::vector<std::int32_t> sum(100);
  ordered_reduce({starts, DType::i32, nullptr, reinterpret_cast<std::byte*>(sum.data()), DType::i32, 100});
  CHECK(sum == std::vector<std::int32_t>(100, std::numeric_limits<std::int32_t>::min() + 1));
  const std::vector<std::uint8_t> c(100, 250), d(100, 9);
  const std::vector<const std::byte*> small = {reinterpret_cast<const std::byte*>(c.data()),
                                               reinterpret_cast<const std::byte*>(d.data())};
  std::vector<std::uint8_t> rest(100);
  ordered_reduce({small, DType::u8, nullptr, reinterpret_cast<std::byte*>(rest.data()), DType::u8, 100});
  CHECK(rest == std::vector<std::uint8_t>(100, 3));
}

}  // namespace ordered_reduce_test
