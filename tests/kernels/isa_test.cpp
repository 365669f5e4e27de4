#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "kernels/cpu/host.h"
#include "tests/kernels/testing.h"

namespace zs::test::isa_test {
namespace {

using cpu::Data;
using cpu::Isa;

/// The instruction sets that this process may use, baseline first.
std::vector<const Isa*> available() {
  std::vector<const Isa*> list = cpu::available_isas();
  std::reverse(list.begin(), list.end());
  return list;
}

Data data(Values& values) { return {values.buffer().data, values.dtype() == DType::bf16}; }

/// kernel(isa, out) for every instruction set: the same bytes.
template <class Kernel>
void require_same_bits(const std::vector<Values>& out, Kernel kernel) {
  std::vector<Values> first;
  for (const Isa* isa : available()) {
    std::vector<Values> results = out;
    kernel(*isa, results);
    if (first.empty()) first = results;
    for (std::size_t i = 0; i < results.size(); ++i) {
      INFO("output " << i << " of " << isa->name << " and of baseline");
      REQUIRE(first[i].same_bytes(results[i]));
    }
  }
}

}  // namespace

namespace {

/// Kernels of a table, which is pointers to functions and nothing else, that no family has filled in.
std::ptrdiff_t missing(const KernelTable& table) {
  std::array<void (*)(), sizeof(KernelTable) / sizeof(void (*)())> kernels;
  static_assert(sizeof(kernels) == sizeof(KernelTable));
  std::memcpy(kernels.data(), &table, sizeof(table));
  return std::count(kernels.begin(), kernels.end(), nullptr);
}

}  // namespace

TEST_CASE("every family has filled in its kernels") {
  const KernelTable& cpu = cpu_kernels();
  REQUIRE(cpu.matmul_gelu == nullptr);
  REQUIRE(cpu.matmul_gelu_backward == nullptr);
  REQUIRE(cpu.cross_entropy_in_place == nullptr);
  REQUIRE(missing(cpu) == 3);
  // The kernels of mixtures of experts, and of sinks, are the CPU's alone so far.
  REQUIRE(cuda_kernels().experts.route == nullptr);
  REQUIRE(cuda_kernels().sinks.forward == nullptr);
  REQUIRE(missing(cuda_kernels()) == 13);
}

TEST_CASE("every instruction set gives the same bits, element by element") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t n = 1003;
  Values x = Values::random(dtype, n, 1, 3.0), y = Values::random(dtype, n, 2), wide = Values::random(DType::f32, n, 3);
  const Values empty = Values::poison(dtype, n);
  require_same_bits({empty, empty, empty, x}, [&](const Isa& isa, std::vector<Values>& o) {
    isa.cast(1, data(o[0]), data(wide), n);
    isa.add(1, data(o[1]), data(x), data(y), n);
    isa.scale(1, data(o[2]), data(x), n, 0.3f);
    isa.accumulate(1, data(o[3]), data(y), n);
  });
}

TEST_CASE("every instruction set rounds at random alike") {
  const std::int64_t n = 1003;
  Values wide = Values::random(DType::f32, n, 1);
  const Values empty = Values::poison(DType::bf16, n);
  require_same_bits({empty, empty}, [&](const Isa& isa, std::vector<Values>& o) {
    const auto bits = [&](std::size_t i) { return static_cast<std::uint16_t*>(o[i].buffer().data); };
    isa.stochastic_cast(1, bits(0), wide.buffer().as<float>(), n, {77, std::int64_t{5} << 33, n, 0});
    isa.stochastic_cast(1, bits(1), wide.buffer().as<float>(), n, {77, 3, 17, 100});
  });
}

TEST_CASE("every instruction set rounds every kind of value to bf16 alike, between others of its kind and beside NaN") {
  std::vector<std::uint32_t> words;  // every upper half, with lower halves around the tie
  for (std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
    for (std::uint32_t upper = 0; upper < 0x10000; ++upper) words.push_back(upper << 16 | lower);
  const auto n = static_cast<std::int64_t>(words.size());
  Values wide(DType::f32, n), ones = Values::of(DType::bf16, std::vector<double>(static_cast<std::size_t>(n), 1.0)),
                              upper(DType::bf16, n);
  std::memcpy(wide.buffer().data, words.data(), words.size() * 4);
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto half = static_cast<std::uint16_t>(words[i] >> 16);
    std::memcpy(static_cast<std::byte*>(upper.buffer().data) + 2 * i, &half, 2);
  }
  const Values empty = Values::poison(DType::bf16, n);
  std::vector<Values> results;
  require_same_bits({empty, empty}, [&](const Isa& isa, std::vector<Values>& o) {
    isa.cast(1, data(o[0]), data(wide), n);
    isa.add(1, data(o[1]), data(upper), data(ones), n);
    results = o;
  });
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = wide.at<float>(i), y = static_cast<float>(upper.at<BFloat16>(i)) + 1.0f;
    const auto differs = [](float exact, BFloat16 got) {
      return std::isnan(exact) ? !std::isnan(static_cast<float>(got)) : BFloat16(exact).bits != got.bits;
    };
    wrong += differs(x, results[0].at<BFloat16>(i)) + differs(y, results[1].at<BFloat16>(i));
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("norms of many rows give the same bits, whether rows begin with a line of memory or anywhere") {
  const DType dtype = GENERATE(DType::f32, DType::bf16), parameters = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = 1101, width = GENERATE(512, 515),
                     n = rows * width;  // more than is stored through the caches
  const std::int64_t shift = GENERATE(0, 1), line = 64 / size_of(dtype);
  Values x = Values::random(dtype, n, 1, 2.0), dy = Values::random(dtype, n, 2),
         gamma = Values::random(parameters, width, 3);
  Values parts(DType::f32, cpu::row_blocks(rows).count * 2 * width), wide(DType::f32, 2 * width);
  const Values row = Values::poison(DType::f32, rows), column = Values::poison(DType::f32, width),
               plane = Values::poison(dtype, n);
  Values space(dtype, n + 2 * line);
  const auto shifted = [&] {  // `shift` elements after a line begins
    const auto address = reinterpret_cast<std::uintptr_t>(space.buffer().data);
    return Data{reinterpret_cast<void*>((address + 63) / 64 * 64 + static_cast<std::uintptr_t>(shift * size_of(dtype))),
                dtype == DType::bf16};
  };
  require_same_bits(
      {plane, plane, row, row, column, column, plane, plane, row, column}, [&](const Isa& isa, std::vector<Values>& o) {
        const auto f = [&](std::size_t i) { return o[i].buffer().as<float>(); };
        const auto take = [&](std::size_t i) {
          std::memcpy(o[i].buffer().data, shifted().address, static_cast<std::size_t>(n * size_of(dtype)));
        };
        float* scratch = wide.buffer().as<float>();
        const cpu::Rows shape{rows, width};
        isa.layer_norm_forward(1, {shifted(), data(x), data(gamma), data(gamma), f(2), f(3), scratch, shape, 1e-5f});
        take(0);
        isa.layer_norm_backward(1, {shifted(), data(dy), data(x), data(gamma), f(4), f(5), scratch,
                                    parts.buffer().as<float>(), f(2), f(3), shape});
        take(1);
        isa.layer_norm_forward(1, {shifted(), data(x), data(gamma), {}, nullptr, f(8), scratch, shape, 1e-5f});
        take(6);
        isa.layer_norm_backward(1, {shifted(), data(dy), data(x), data(gamma), f(9), nullptr, scratch,
                                    parts.buffer().as<float>(), nullptr, f(8), shape});
        take(7);
        const float *mean = f(2), *rstd = f(3), *rms_rstd = f(8);
        for (std::int64_t i = 0; i < n; i += 97) {
          const double gain = gamma[i % width], expected = (x[i] - static_cast<double>(mean[i / width])) *
                                                               static_cast<double>(rstd[i / width]) * gain +
                                                           gain;
          if (!(std::abs(o[0][i] - expected) <= (2 * rounding(dtype) + 1e-6) * (1.0 + std::abs(expected))))
            FAIL("element " << i << " is " << o[0][i]);
          const double by_rms = x[i] * static_cast<double>(rms_rstd[i / width]) * gain;
          if (!(std::abs(o[6][i] - by_rms) <= (2 * rounding(dtype) + 1e-6) * (1.0 + std::abs(by_rms))))
            FAIL("by RMS norm element " << i << " is " << o[6][i]);
        }
      });
}

TEST_CASE("norms of sums give the same bits, whether rows begin with a line of memory or anywhere") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = 1101, width = GENERATE(512, 515),
                     n = rows * width;  // more than is stored through the caches
  const bool is_layer = GENERATE(true, false);
  Values x = Values::random(dtype, n, 1, 2.0), dy = Values::random(dtype, n, 2),
         gamma = Values::random(DType::f32, width, 3);
  Values parts(DType::f32, cpu::row_blocks(rows).count * 2 * width), wide(DType::f32, 2 * width);
  const Values row = Values::poison(DType::f32, rows), column = Values::poison(DType::f32, width),
               plane = Values::poison(dtype, n + 1);
  const auto shifted = [&](Values& values, std::int64_t by) {
    return Data{static_cast<std::byte*>(values.buffer().data) + by * size_of(dtype), dtype == DType::bf16};
  };
  require_same_bits({plane, plane, plane, row, row, column, column}, [&](const Isa& isa, std::vector<Values>& o) {
    const auto f = [&](std::size_t i) { return o[i].buffer().as<float>(); };
    float *scratch = wide.buffer().as<float>(), *mean = is_layer ? f(3) : nullptr, *dbeta = is_layer ? f(6) : nullptr;
    const cpu::Rows shape{rows, width};
    isa.layer_norm_forward(1, {shifted(o[0], 1), data(x), data(gamma), data(gamma), mean, f(4), scratch, shape, 1e-5f,
                               data(dy), shifted(o[1], 1)});
    isa.layer_norm_backward(1, {shifted(o[2], 1), data(dy), shifted(o[1], 1), data(gamma), f(5), dbeta, scratch,
                                parts.buffer().as<float>(), mean, f(4), shape, data(x)});
  });
}

TEST_CASE("every instruction set gives the same bits, sum by sum") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = 137, width = 101, n = rows * width;
  Values x = Values::random(dtype, n, 1), dy = Values::random(dtype, n, 2),
         gamma = Values::random(DType::f32, width, 3);
  const Values row = Values::poison(DType::f32, rows), column = Values::poison(DType::f32, width),
               full = Values::poison(dtype, n);
  Values parts(DType::f32, cpu::row_blocks(rows).count * 2 * width), wide(DType::f32, 2 * width);
  require_same_bits({full, row, row, full, column, column, column, Values(DType::f64, 2), Values(DType::i64, 1)},
                    [&](const Isa& isa, std::vector<Values>& o) {
                      const auto f = [&](std::size_t i) { return o[i].buffer().as<float>(); };
                      float *g = gamma.buffer().as<float>(), *scratch = parts.buffer().as<float>();
                      const cpu::Rows shape{rows, width};
                      isa.layer_norm_forward(1, {data(o[0]), data(x), data(gamma), data(gamma), f(1), f(2),
                                                 wide.buffer().as<float>(), shape, 1e-5f});
                      isa.layer_norm_backward(1, {data(o[3]), data(dy), data(x), data(gamma), f(4), f(5),
                                                  wide.buffer().as<float>(), scratch, f(1), f(2), shape});
                      isa.column_sums(1, f(6), scratch, data(dy), shape);
                      o[7].set(0, isa.sum(1, g, width));
                      o[7].set(1, isa.squares(1, data(x), n));
                      o[8].set(0, static_cast<double>(isa.fixed_point_squares(1, data(x), n, 0x1.0p30)));
                    });
}

TEST_CASE("every instruction set gives the same bits, position by position") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const AttentionDims d{2, 37, 3, GENERATE(6, 64, 130), 1};
  const std::int64_t n = d.batch * d.time * qkv_width_of(d);
  Values qkv = Values::random(dtype, n, 1), scratch(DType::f32, cpu::rotary_scratch_elems(d));
  require_same_bits({Values::poison(dtype, n)}, [&](const Isa& isa, std::vector<Values>& o) {
    isa.rotary(1, {data(o[0]), data(qkv), d, 0.87, false, scratch.buffer().as<float>()});
  });
}

TEST_CASE("every instruction set agrees on what it fuses") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = 11, width = 1003, n = rows * width;
  Values x = Values::random(dtype, n, 1, 3.0), dy = Values::random(dtype, n, 2),
         logits = Values::random(DType::f32, n, 3, 3.0);
  Values targets = Values::of(DType::i32, std::vector<double>(static_cast<std::size_t>(rows), 3.0));
  x.set(5, 1e30);
  x.set(6, -88.0);
  std::vector<std::vector<double>> first;
  for (const Isa* isa : available()) {
    std::vector<Values> o(5, Values::poison(dtype, n));
    Values gated = Values::poison(dtype, n / 2), slopes = Values::poison(dtype, n / 2 * 2);
    Values losses(DType::f32, rows), lse(DType::f32, rows);
    isa->gelu_forward(1, data(o[0]), data(x), n, GeluKind::tanh);
    isa->gelu_forward(1, data(o[1]), data(x), n, GeluKind::erf);
    isa->gelu_backward(1, data(o[2]), data(dy), data(x), n, GeluKind::tanh);
    isa->gelu_backward(1, data(o[3]), data(dy), data(x), n, GeluKind::erf);
    const cpu::CrossEntropy ce{losses.buffer().as<float>(),
                               lse.buffer().as<float>(),
                               logits.buffer().as<float>(),
                               data(o[4]),
                               targets.buffer().as<std::int32_t>(),
                               rows,
                               width,
                               width,
                               0.5f};
    isa->cross_entropy_forward(1, ce);
    isa->cross_entropy_backward(1, ce);
    isa->swiglu_forward(1, data(gated), data(x), {1, n / 2});
    isa->swiglu_backward(1, data(slopes), data(dy), data(x), {1, n / 2});
    o.push_back(losses);
    o.push_back(lse);
    o.push_back(gated);
    o.push_back(slopes);
    for (std::size_t i = 0; i < o.size(); ++i) {
      INFO("output " << i << " of " << isa->name << " and of baseline");
      if (first.size() < o.size()) first.push_back(o[i].list());
      require_close(o[i], first[i], 1e-6);  // three roundings in an exponential, of values up to 4
    }
  }
}

TEST_CASE("every instruction set agrees on attention") {
  const AttentionDims d{1, 130, 2, 40};
  const std::int64_t elems = d.time * d.heads * d.head_dim;
  Values qkv = Values::random(DType::f32, 3 * elems, 1), dout = Values::random(DType::f32, elems, 2);
  Values scratch(DType::f32, cpu::attention_scratch_elems(d) + 16);
  Values sinks = Values::random(DType::f32, d.heads, 3);
  const bool has_sinks = GENERATE(false, true);
  std::vector<double> first_out, first_gradient, first_dsinks;
  for (const Isa* isa : available()) {
    Values out(DType::f32, elems), lse(DType::f32, d.heads * d.time), dqkv(DType::f32, 3 * elems),
        dsinks(DType::f32, d.heads);
    const cpu::Attention args{.out = data(out),
                              .qkv = data(qkv),
                              .dout = data(dout),
                              .dqkv = data(dqkv),
                              .lse = lse.buffer().as<float>(),
                              .dims = d,
                              .scratch = scratch.buffer().as<float>(),
                              .scratch_elems = cpu::attention_scratch_elems(d),
                              .sinks = has_sinks ? data(sinks) : cpu::Data{}};
    isa->attention_forward(1, args);
    isa->attention_backward(1, args);
    if (has_sinks) isa->attention_dsinks(1, dsinks.buffer().as<float>(), args);
    if (first_out.empty()) {
      first_out = out.list();
      first_gradient = dqkv.list();
      first_dsinks = dsinks.list();
    }
    INFO(isa->name);
    require_close(out, first_out, 2e-6);  // fused and separate products and sums round differently
    require_close(dqkv, first_gradient, 1e-5);
    require_close(dsinks, first_dsinks, 1e-4);  // sums of 5000 products
  }
}

TEST_CASE("the instruction set is the one that was asked for") {
  const char* wanted = std::getenv("ZSHARD_ISA");
  if (wanted == nullptr) wanted = available().back()->name;
  REQUIRE(std::string_view(cpu_isa()) == wanted);
  if (std::string_view(wanted) != "amx" && std::string_view(wanted) != "avx512") REQUIRE_FALSE(cpu_has_bf16_products());
}

TEST_CASE("an unknown instruction set is a usage error", "[.bad-isa]") {
  try {
    cpu_kernels();
    FAIL("no error");
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::usage);
    REQUIRE_THAT(error.what(), Catch::Contains("ZSHARD_ISA=sse9"));
  }
}

namespace {

cpu::MapOperand operand(Values& values, std::initializer_list<std::int64_t> strides) {
  cpu::MapOperand result{values.buffer().data, values.dtype(), {}, 0};
  std::copy(strides.begin(), strides.end(), result.strides);
  return result;
}

/// Numbers that every function takes.
Values above_zero(DType dtype, std::int64_t n, std::uint64_t seed) {
  Values values = Values::random(dtype, n, seed);
  for (std::int64_t i = 0; i < n; ++i) values.set(i, 0.1 + std::abs(values[i]));
  return values;
}

}  // namespace

TEST_CASE("every instruction set maps elements to the same bits, whatever their strides") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = 13, width = 77, n = rows * width;
  Values x = above_zero(dtype, n, 1), row = above_zero(dtype, width, 2), turned = above_zero(DType::f32, n, 3);
  const Values empty = Values::poison(dtype, n);
  for (int op = 0; op <= static_cast<int>(MapOp::pow_exponent_gradient); ++op) {
    CAPTURE(op);
    require_same_bits({empty, empty}, [&](const Isa& isa, std::vector<Values>& o) {
      cpu::MapLoop args{static_cast<MapOp>(op), 2, {rows, width}, n, operand(o[0], {width, 1}), {}};
      args.in[0] = operand(x, {width, 1});
      args.in[1] = operand(row, {0, 1});
      args.in[2] = operand(turned, {1, rows});
      isa.map(1, args);
      args.out = operand(o[1], {1, rows});
      args.in[1] = {nullptr, DType::f32, {}, 1.5f};
      isa.map(1, args);
    });
  }
}

TEST_CASE("every instruction set reduces to the same bits, in lines and across them") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t rows = 131, width = 77;
  Values x = Values::random(dtype, rows * width, 1);
  const auto reduce = [&](const Isa& isa, ReduceKind kind, Values& out, bool is_by_rows) {
    const cpu::ReduceDims by_row{1, {rows}, {width}, rows}, by_column{1, {width}, {1}, width};
    isa.reduce(1, {kind, out.buffer().data, out.dtype(), data(x), is_by_rows ? by_row : by_column,
                   is_by_rows ? by_column : by_row, 0.5f});
  };
  require_same_bits({Values::poison(dtype, rows), Values::poison(dtype, width), Values::poison(dtype, rows),
                     Values::poison(DType::i32, width)},
                    [&](const Isa& isa, std::vector<Values>& o) {
                      reduce(isa, ReduceKind::sum, o[0], true);
                      reduce(isa, ReduceKind::sum, o[1], false);
                      reduce(isa, ReduceKind::max, o[2], true);
                      reduce(isa, ReduceKind::argmax, o[3], false);
                    });
}

}  // namespace zs::test::isa_test
