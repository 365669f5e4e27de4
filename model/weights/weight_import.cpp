#include "model/weights/weight_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "model/json/strict_json.h"

namespace zs {
namespace {

/// Elements that are read at a time where they cannot go where they belong at once.
constexpr std::int64_t kPieceElems = std::int64_t{1} << 18;

std::string shape_of(const std::vector<std::int64_t>& dims) { return fmt::format("({})", fmt::join(dims, ", ")); }

/// Shape that a file has of a part.
std::vector<std::int64_t> wanted_shape(const TensorRule& rule, const Shape& parameter, std::int64_t rows) {
  std::vector<std::int64_t> dims(parameter.dims().begin(), parameter.dims().end());
  if (!dims.empty()) dims.front() = rows;
  if (rule.is_transposed) std::reverse(dims.begin(), dims.end());
  return dims;
}

}  // namespace

WeightImport::WeightImport(const std::string& path, const TensorMap& map, const std::vector<ParameterShape>& parameters,
                           const std::string& what)
    : files_(path) {
  match(map, parameters, what);
}

std::string WeightImport::name_in_files(const std::string& name, const TensorMap& map) const {
  std::vector<std::string> names = {name};
  if (!map.prefix.empty() && name.starts_with(map.prefix)) names.push_back(name.substr(map.prefix.size()));
  if (!map.tied_head.empty() && name == map.token_embedding) names.push_back(map.tied_head);
  for (const std::string& known : names)
    if (files_.find(known) != nullptr) return known;
  return {};
}

void WeightImport::match(const TensorMap& map, const std::vector<ParameterShape>& parameters, const std::string& what) {
  std::map<std::string, const TensorRule*> rules;
  for (const TensorRule& rule : map.rules) rules[rule.parameter] = &rule;
  std::vector<std::string> problems;
  std::set<std::string> used;
  for (const ParameterShape& parameter : parameters) {
    const auto found = rules.find(parameter.name);
    ZS_CHECK(found != rules.end(), "no rule says where {} lies in files", parameter.name);
    const TensorRule& rule = *found->second;
    Place& place = places_[parameter.name];
    place.columns = columns_of(parameter.shape);
    place.is_transposed = rule.is_transposed;
    std::int64_t row = 0;
    for (const TensorPart& part : rule.parts) {
      const std::int64_t rows = part.rows != 0 ? part.rows : rows_of(parameter.shape);
      const std::string name = name_in_files(part.tensor, map);
      used.insert(name);
      const auto* const tensor = files_.find(name);
      const auto quantized = Nf4Tensor::find(files_, name);
      if (quantized)
        for (const std::string& other : quantized->others()) used.insert(other);
      if (tensor == nullptr) {
        problems.push_back("missing " + part.tensor);
      } else if (const auto wanted = wanted_shape(rule, parameter.shape, rows);
                 (quantized ? quantized->shape() : tensor->shape) != wanted) {
        problems.push_back(fmt::format("{} is {}, not {}", name,
                                       quantized ? shape_of(quantized->shape()) : tensor->shape_text(),
                                       shape_of(wanted)));
      } else if (!quantized && !is_parameter_dtype(tensor->dtype)) {
        problems.push_back(fmt::format("{} is {}, not F32, F16 or BF16", name, name_of(tensor->dtype)));
      } else {
        place.parts.push_back({name, tensor->dtype, row, rows, quantized});
      }
      row += rows;
    }
    if (place.parts.size() == 1 && rule.parts.front().tensor == map.token_embedding) match_twin(map, place, problems);
    ZS_CHECK(row <= rows_of(parameter.shape), "{} rows of {} for {}", row, parameter.shape.str(), parameter.name);
  }
  for (const std::string& name : map.passed_over)
    used.insert({name, name.starts_with(map.prefix) ? name.substr(map.prefix.size()) : name});
  used.insert(map.tied_head);
  for (const auto& [name, tensor] : files_.tensors())
    if (!used.contains(name)) problems.push_back("unknown " + shortened(name));
  if (problems.empty()) return;
  throw Error(ExitCode::model, fmt::format("not the {}, {}", what, first_five(problems)), files_.files().front().path);
}

void WeightImport::match_twin(const TensorMap& map, Place& place, std::vector<std::string>& problems) const {
  const Part& part = place.parts.front();
  const auto* const tensor =
      map.tied_head.empty() || part.tensor == map.tied_head ? nullptr : files_.find(map.tied_head);
  if (tensor == nullptr) return;
  if (const auto& wanted = files_.find(part.tensor)->shape; tensor->shape != wanted) {
    problems.push_back(fmt::format("{} is {}, not {}", map.tied_head, tensor->shape_text(), shape_of(wanted)));
  } else if (!is_parameter_dtype(tensor->dtype)) {
    problems.push_back(fmt::format("{} is {}, not F32, F16 or BF16", map.tied_head, name_of(tensor->dtype)));
  } else {
    place.twin = Part{map.tied_head, tensor->dtype, part.row, part.rows};
  }
}

void WeightImport::check_twin(const Place& place, const Block& block, const float* values) {
  std::vector<float> others(static_cast<std::size_t>(std::min(kPieceElems, block.columns)));
  const std::int64_t rows = std::min(block.rows, place.twin->row + place.twin->rows - block.row);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < block.columns; column += std::ssize(others)) {
      const std::int64_t count = std::min(std::ssize(others), block.columns - column);
      read_values(*place.twin, (block.row + row) * place.columns + block.column + column, others.data(), count);
      if (std::memcmp(others.data(), values + row * block.columns + column, static_cast<std::size_t>(count) * 4) == 0)
        continue;
      throw Error(ExitCode::model,
                  fmt::format("tie_word_embeddings is true, but {} has other values than {}", place.twin->tensor,
                              place.parts.front().tensor),
                  files_.files().front().path,
                  "set it to false in config.json to keep both, or remove the tensor that is not wanted");
    }
  }
}

void WeightImport::read(const std::string& parameter, const Block& block, float* out) {
  const Place& place = places_.at(parameter);
  std::int64_t end = 0;  // rows that some part has
  for (const Part& part : place.parts) {
    const std::int64_t first = std::max(block.row, part.row),
                       last = std::min(block.row + block.rows, part.row + part.rows);
    if (first < last)
      read_part(place, part, {first, last - first, block.column, block.columns},
                out + (first - block.row) * block.columns, block.columns);
    end = part.row + part.rows;
  }
  if (place.twin) check_twin(place, block, out);
  const std::int64_t padding = std::clamp<std::int64_t>(block.row + block.rows - end, 0, block.rows);
  std::fill_n(out + (block.rows - padding) * block.columns, padding * block.columns, 0.0f);
}

void WeightImport::read_part(const Place& place, const Part& part, const Block& block, float* out,
                             std::int64_t out_columns) {
  const std::int64_t row = block.row - part.row;
  if (place.is_transposed) return read_transposed(part, row, block, out, out_columns);
  if (block.columns == place.columns) return read_values(part, row * place.columns, out, block.rows * block.columns);
  for (std::int64_t i = 0; i < block.rows; ++i)
    read_values(part, (row + i) * place.columns + block.column, out + i * out_columns, block.columns);
}

/// Some columns at a time: in the file each is a row, of which this is a part.
void WeightImport::read_transposed(const Part& part, std::int64_t row_in_part, const Block& block, float* out,
                                   std::int64_t out_columns) {
  const std::int64_t most = std::max<std::int64_t>(1, std::min<std::int64_t>(64, kPieceElems / block.rows));
  columns_.resize(static_cast<std::size_t>(most * block.rows));
  for (std::int64_t column = 0; column < block.columns; column += most) {
    const std::int64_t count = std::min(most, block.columns - column);
    const std::int64_t first = (block.column + column) * part.rows + row_in_part;
    if (block.rows == part.rows) {
      read_values(part, first, columns_.data(), count * block.rows);
    } else {
      for (std::int64_t i = 0; i < count; ++i)
        read_values(part, first + i * part.rows, columns_.data() + i * block.rows, block.rows);
    }
    for (std::int64_t row = 0; row < block.rows; ++row)
      for (std::int64_t i = 0; i < count; ++i)
        out[row * out_columns + column + i] = columns_[static_cast<std::size_t>(i * block.rows + row)];
  }
}

void WeightImport::read_values(const Part& part, std::int64_t first, float* out, std::int64_t count) {
  if (part.quantized) return part.quantized->read(files_, first, count, out);
  const std::int64_t size = bits_of(part.dtype) / 8;
  if (part.dtype == FileDType::f32) return files_.read(part.tensor, first * size, out, count * size);
  stored_.resize(static_cast<std::size_t>(std::min(count, kPieceElems) * size));
  for (std::int64_t done = 0; done < count; done += kPieceElems) {
    const std::int64_t piece = std::min(kPieceElems, count - done);
    files_.read(part.tensor, (first + done) * size, stored_.data(), piece * size);
    to_f32(part.dtype, stored_.data(), out + done, piece);
  }
}

}  // namespace zs
