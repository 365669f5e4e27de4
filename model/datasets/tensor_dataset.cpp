#include "model/datasets/tensor_dataset.h"

#include <cstring>
#include <limits>
#include <span>
#include <utility>

#include "model/data/bad_data.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

/// Integer of I32 or I64, at any alignment.
std::int64_t integer_at(FileDType dtype, const char* in) {
  std::int32_t narrow = 0;
  std::int64_t wide = 0;
  if (dtype == FileDType::i64) {
    std::memcpy(&wide, in, sizeof wide);
    return wide;
  }
  std::memcpy(&narrow, in, sizeof narrow);
  return narrow;
}

}  // namespace

TensorDataset::TensorDataset(const std::string& path, const std::vector<std::string>& names,
                             std::optional<std::uint64_t> seed)
    : files_(path), path_(path) {
  if (names.empty()) throw UsageError("a TensorDataset of no tensors", "name those that make a sample");
  std::int64_t first_rows = 0;
  for (const std::string& name : names) {
    columns_.push_back(column_of(name));
    const std::int64_t rows = files_.find(name)->shape.front();
    if (columns_.size() == 1) first_rows = rows;
    if (rows != first_rows)
      throw bad_data(fmt::format("tensor \"{}\" has {} rows, \"{}\" has {}", name, rows, names.front(), first_rows),
                     path, "name tensors that have a row for each sample");
  }
  order_.emplace(first_rows, seed);
}

TensorDataset::Column TensorDataset::column_of(const std::string& name) const {
  const SafetensorsHeader::Tensor* const found = files_.find(name);
  if (found == nullptr) throw bad_data(fmt::format("there is no tensor \"{}\"", name), path_, "name one that is there");
  const bool is_integer = found->dtype == FileDType::i32 || found->dtype == FileDType::i64;
  if (!is_integer && !is_parameter_dtype(found->dtype))
    throw bad_data(fmt::format("tensor \"{}\" is {}", name, name_of(found->dtype)), path_,
                   "store samples as F32, F16, BF16, I32 or I64");
  if (found->shape.empty() || found->elems() == 0)
    throw bad_data(fmt::format("tensor \"{}\" of shape {} has no rows", name, found->shape_text()), path_,
                   "the first dim is of samples");
  Column column{name, found->dtype, {found->shape.begin() + 1, found->shape.end()}, 0, 0};
  column.elems = found->elems() / found->shape.front();
  column.bytes = column.elems * bits_of(found->dtype) / 8;
  return column;
}

Tensor TensorDataset::read_column(Context& context, const Column& column, std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> dims{count};
  dims.insert(dims.end(), column.dims.begin(), column.dims.end());
  const Shape shape{std::span<const std::int64_t>(dims)};
  const auto size = static_cast<std::size_t>(count * column.elems);
  std::vector<float> floats(column.is_float() ? size : 0);
  std::vector<std::int32_t> integers(column.is_float() ? 0 : size);
  std::vector<char> row(static_cast<std::size_t>(column.bytes));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t number = row_of(first + i), at = i * column.elems;
    files_.read(column.name, number * column.bytes, row.data(), column.bytes);
    if (column.is_float()) {
      to_f32(column.dtype, row.data(), floats.data() + at, column.elems);
      continue;
    }
    for (std::int64_t j = 0; j < column.elems; ++j) {
      const std::int64_t value = integer_at(column.dtype, row.data() + j * column.bytes / column.elems);
      if (value != static_cast<std::int32_t>(value))
        throw bad_data(
            fmt::format("row {} of tensor \"{}\" has {}, which i32 has no room for", number, column.name, value), path_,
            "store smaller integers");
      integers[static_cast<std::size_t>(at + j)] = static_cast<std::int32_t>(value);
    }
  }
  return column.is_float() ? Tensor::from_host(context, shape, std::move(floats))
                           : Tensor::from_host(context, shape, std::move(integers));
}

std::vector<Tensor> TensorDataset::read(Context& context, std::int64_t first, std::int64_t count) {
  if (first < 0 || count < 0)
    throw UsageError(fmt::format("{} samples from {} on", count, first), "samples are counted from 0");
  std::vector<Tensor> tensors;
  for (const Column& column : columns_) tensors.push_back(read_column(context, column, first, count));
  return tensors;
}

std::vector<Tensor> TensorDataset::batch(Context& context, DataShare share, std::int64_t step, std::int64_t batch) {
  const SampleRange range = samples_of_rank(share, step, batch);
  return read(context, range.first, range.count);
}

}  // namespace zs
