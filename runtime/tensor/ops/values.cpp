#include "runtime/tensor/values.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>

#include "runtime/base/random.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/host_view.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/strided.h"

namespace zs {
namespace {

void require_values(const char* what, const Tensor& x) {
  if (!x) throw UsageError(fmt::format("{} of an empty tensor", what), "give it a value first");
  if (x.context().device().kind() == DeviceKind::meta)
    throw UsageError(fmt::format("{} of {}: the meta device holds no values", what, x.describe()));
}

/// Values as text, row by row.
class TextRows {
 public:
  explicit TextRows(const Tensor& x) : shape_(x.shape()), is_integer_(x.dtype() == DType::i32) {
    if (is_integer_) {
      const std::vector<std::int32_t> values = to_host_i32(x);
      values_.assign(values.begin(), values.end());
    } else {
      const std::vector<float> values = x.to_host();
      values_.assign(values.begin(), values.end());
    }
  }

  std::string text() const {
    if (shape_.rank() == 0) return number(0);
    return text_of_dim(0, 0);
  }

 private:
  std::string number(std::int64_t at) const {
    const double value = values_[static_cast<std::size_t>(at)];
    return is_integer_ ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value);
  }

  std::string text_of_dim(int dim, std::int64_t first) const {
    constexpr std::int64_t kEdge = 3;
    const std::int64_t count = shape_[dim];
    std::int64_t step = 1;
    for (int d = dim + 1; d < shape_.rank(); ++d) step *= shape_[d];
    const bool is_last = dim == shape_.rank() - 1;
    const std::string between = is_last ? ", " : ",\n" + std::string(static_cast<std::size_t>(dim) + 1, ' ');
    std::string text = "[";
    for (std::int64_t i = 0; i < count; ++i) {
      if (i > 0) text += between;
      if (count > 2 * kEdge + 1 && i == kEdge) {
        text += "...";
        i = count - kEdge - 1;
        continue;
      }
      text += is_last ? number(first + i) : text_of_dim(dim + 1, first + i * step);
    }
    return text + "]";
  }

  Shape shape_;
  bool is_integer_;
  std::vector<double> values_;
};

template <class Draw>
Tensor drawn(Context& context, const Shape& shape, const Draw& draw) {
  std::vector<float> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = draw(i);
  return Tensor::from_host(context, shape, std::move(values));
}

}  // namespace

double item(const Tensor& x) {
  require_values("item()", x);
  if (x.numel() != 1)
    throw UsageError(fmt::format("item() of {}", x.describe()), "it is of one element: use to_host(), sum() or mean()");
  return x.dtype() == DType::i32 ? to_host_i32(x).front() : static_cast<double>(x.to_host().front());
}

std::vector<std::int32_t> to_host_i32(const Tensor& x) {
  require_values("to_host_i32()", x);
  if (x.dtype() != DType::i32)
    throw UsageError(fmt::format("to_host_i32() of {}", x.describe()), "use to_host(), or cast(x, DType::i32)");
  const HostView view(x.context(), x.context().stream(), x.buffer());
  return {view.as<std::int32_t>(), view.as<std::int32_t>() + x.numel()};
}

std::string text_of(const Tensor& x) {
  require_values("text_of()", x);
  return x.describe() + "\n" + TextRows(x).text();
}

void print(const Tensor& x, const std::string& name) {
  require_values("print()", x);
  const std::string text = text_of(x);
  std::printf("%s%s%s\n", name.c_str(), name.empty() ? "" : ": ", text.c_str());
}

Tensor full(Context& context, const Shape& shape, float value, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::i32)
    throw UsageError(fmt::format("op full: of {}", name_of(dtype)), "make it f32, bf16 or i32");
  if (dtype == DType::i32 && (std::trunc(value) != value || std::abs(value) > 16777216.0f))
    throw UsageError(fmt::format("op full: i32 elements of {}", value), "give an integer of at most 2^24");
  return computed("full", context, shape, dtype, MapOp::copy, {value});
}

Tensor arange(Context& context, std::int64_t count, std::int64_t first, std::int64_t step) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  const auto fits = [](std::int64_t value) { return value >= -kLargest && value <= kLargest; };
  if (count < 0 || !fits(count) || !fits(first) || !fits(step) ||
      !fits(first + step * std::max<std::int64_t>(count - 1, 0)))
    throw UsageError(fmt::format("op arange: {} numbers from {} on, in steps of {}", count, first, step),
                     "all are i32");
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int32_t>(first + static_cast<std::int64_t>(i) * step);
  return Tensor::from_host(context, {count}, std::move(values));
}

Tensor one_hot(const Tensor& ids, std::int64_t classes, DType dtype) {
  require_ids("one_hot", "ids", ids);
  if (classes < 1 || classes > 16777216)
    throw UsageError(fmt::format("op one_hot: {} classes", classes), "give a number from 1 to 2^24");
  if (dtype != DType::f32 && dtype != DType::bf16)
    throw UsageError(fmt::format("op one_hot: of {}", name_of(dtype)), "make it f32 or bf16");
  if (ids.shape().rank() == Shape::kMaxDims)
    throw UsageError(fmt::format("op one_hot of {}", ids.describe()), "reshape it to fewer dims");
  std::vector<std::int64_t> sizes(ids.shape().dims().begin(), ids.shape().dims().end());
  sizes.push_back(1);
  const Tensor column = ids.detach().reshape(Shape(std::span<const std::int64_t>(sizes)));
  sizes.back() = classes;
  return computed("one_hot", ids.context(), Shape(std::span<const std::int64_t>(sizes)), dtype, MapOp::eq,
                  {column, arange(ids.context(), classes)});
}

std::uint64_t random_key(std::initializer_list<std::int64_t> numbers) {
  std::uint64_t key = mix64(numbers.size());
  for (const std::int64_t number : numbers) key = mix64(key ^ mix64(static_cast<std::uint64_t>(number)));
  return key;
}

Tensor random_normal(Context& context, const Shape& shape, std::uint64_t key, float mean, float deviation) {
  if (!(deviation >= 0)) throw UsageError(fmt::format("op random_normal: a deviation of {}", deviation));
  const CounterRng rng(key);
  return drawn(context, shape, [&](std::size_t i) {
    return static_cast<float>(static_cast<double>(mean) + static_cast<double>(deviation) * rng.normal(i));
  });
}

Tensor random_uniform(Context& context, const Shape& shape, std::uint64_t key, float low, float high) {
  if (!(low < high)) throw UsageError(fmt::format("op random_uniform: between {} and {}", low, high));
  const CounterRng rng(key);
  const double span = static_cast<double>(high) - static_cast<double>(low);
  const float below = std::nextafter(high, low);
  return drawn(context, shape, [&](std::size_t i) {
    return std::min(static_cast<float>(static_cast<double>(low) + span * rng.uniform(i)), below);
  });
}

Tensor random_integers(Context& context, const Shape& shape, std::uint64_t key, std::int32_t low, std::int32_t high) {
  if (low >= high) throw UsageError(fmt::format("op random_integers: from {} to below {}", low, high));
  const CounterRng rng(key);
  const double span = static_cast<double>(high) - static_cast<double>(low);
  std::vector<std::int32_t> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int32_t>(low + static_cast<std::int64_t>(span * rng.uniform(i)));
  return Tensor::from_host(context, shape, std::move(values));
}

Tensor random_order(Context& context, std::int64_t count, std::uint64_t key) {
  if (count < 0 || count > std::numeric_limits<std::int32_t>::max())
    throw UsageError(fmt::format("op random_order: of {} numbers", count));
  const CounterRng rng(key);
  std::vector<std::int32_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  for (std::size_t i = values.size(); i > 1; --i)  // Fisher, Yates
    std::swap(values[i - 1], values[static_cast<std::size_t>(rng.uniform(i) * static_cast<double>(i))]);
  return Tensor::from_host(context, {count}, std::move(values));
}

}  // namespace zs
