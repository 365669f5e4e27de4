#include "model/weights/weight_import.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "model/json/strict_json.h"
#include "model/weights/mxfp4_tensor.h"

namespace zs {
namespace {

/// Elements that are read at a time where they cannot go where they belong at once.
constexpr std::int64_t kPieceElems = std::int64_t{1} << 18;

std::string shape_of(const std::vector<std::int64_t>& dims) { return fmt::format("({})", fmt::join(dims, ", ")); }

/// Elements of short rows that are read at a time where only some of them are wanted.
constexpr std::int64_t kShortElems = 256;

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
  for (const std::string& known : names) {
    if (files_.find(known) != nullptr) return known;
    if (const std::string codes = known + std::string(Mxfp4Tensor::kBlocks); files_.find(codes) != nullptr)
      return codes;
  }
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
    place.matrices = std::max<std::int64_t>(1, rule.matrices);
    place.interleaved = rule.interleaved;
    place.are_side_by_side = rule.are_side_by_side;
    std::int64_t row = 0;
    for (const TensorPart& part : rule.parts) {
      const std::int64_t rows = part.rows != 0 ? part.rows : rows_of(parameter.shape);
      const std::string name = name_in_files(part.tensor, map);
      used.insert(name);
      const auto* const tensor = files_.find(name);
      const auto quantized = QuantizedTensor::find(files_, name);
      if (quantized)
        for (const std::string& other : quantized->others()) used.insert(other);
      TensorRule stored = rule;
      if (quantized && quantized->is_by_rows()) stored.is_transposed = false;
      if (tensor == nullptr) {
        problems.push_back("missing " + part.tensor);
      } else if (const auto wanted = shape_in_file(stored, parameter.shape, rows);
                 (quantized ? quantized->shape() : tensor->shape) != wanted) {
        problems.push_back(fmt::format("{} is {}, not {}", name,
                                       quantized ? shape_of(quantized->shape()) : tensor->shape_text(),
                                       shape_of(wanted)));
      } else if (!quantized && !is_parameter_dtype(tensor->dtype)) {
        problems.push_back(fmt::format("{} is {}, not F32, F16 or BF16", name, name_of(tensor->dtype)));
      } else {
        place.parts.push_back({name, tensor->dtype, row, rows, stored.is_transposed, quantized});
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
                out + (first - block.row) * block.columns);
    end = part.row + part.rows;
  }
  if (place.twin) check_twin(place, block, out);
  const std::int64_t padding = std::clamp<std::int64_t>(block.row + block.rows - end, 0, block.rows);
  std::fill_n(out + (block.rows - padding) * block.columns, padding * block.columns, 0.0f);
}

void WeightImport::read_part(const Place& place, const Part& part, const Block& block, float* out) {
  if (place.are_side_by_side) return read_side_by_side(place, part, block, out);
  const std::int64_t matrix_rows = part.rows / place.matrices, run = matrix_rows / place.interleaved;
  std::int64_t row = block.row - part.row;
  for (const std::int64_t end = row + block.rows; row < end;) {  // run after run
    const std::int64_t matrix = row / matrix_rows, number = row % matrix_rows / run, at = row % run,
                       rows = std::min(end - row, run - at);
    const Lines lines{.matrix = matrix * matrix_rows * place.columns,
                      .first = at * place.interleaved + number,
                      .step = place.interleaved,
                      .rows = rows,
                      .length = matrix_rows};
    if (part.is_transposed)
      read_transposed(part, lines, block, out);
    else
      read_rows(part, lines, place.columns, block, out);
    out += rows * block.columns;
    row += rows;
  }
}

void WeightImport::read_side_by_side(const Place& place, const Part& part, const Block& block, float* out) {
  const std::int64_t rows = part.rows / place.matrices, run = rows / place.interleaved;
  lines_.resize(static_cast<std::size_t>(part.rows * place.columns));
  read_values(part, 0, lines_.data(), part.rows * place.columns);
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const std::int64_t row = block.row - part.row + i, at = row % rows, line = at % run * place.interleaved + at / run;
    for (std::int64_t c = 0; c < block.columns; ++c) {
      const std::int64_t column = (block.column + c) * place.matrices + row / rows;
      out[i * block.columns + c] = lines_[static_cast<std::size_t>(line * place.columns * place.matrices + column)];
    }
  }
}

void WeightImport::read_rows(const Part& part, const Lines& lines, std::int64_t columns, const Block& block,
                             float* out) {
  const std::int64_t begin = lines.matrix + lines.first * columns + block.column;
  if (lines.step == 1 && block.columns == columns) return read_values(part, begin, out, lines.rows * columns);
  const std::int64_t at_once = std::max<std::int64_t>(1, kShortElems / columns), apart = lines.step * columns;
  for (std::int64_t row = 0; row < lines.rows; row += at_once) {
    const std::int64_t rows = std::min(at_once, lines.rows - row), count = (rows - 1) * apart + block.columns;
    lines_.resize(static_cast<std::size_t>(count));
    read_values(part, begin + row * apart, lines_.data(), count);
    for (std::int64_t i = 0; i < rows; ++i)
      std::copy_n(lines_.begin() + i * apart, block.columns, out + (row + i) * block.columns);
  }
}

/// Some columns at a time: in the file each is a line, of which the rows are a part.
void WeightImport::read_transposed(const Part& part, const Lines& lines, const Block& block, float* out) {
  const std::int64_t span = (lines.rows - 1) * lines.step + 1,
                     most = std::max<std::int64_t>(1, std::min<std::int64_t>(64, kPieceElems / span));
  lines_.resize(static_cast<std::size_t>(most * span));
  for (std::int64_t column = 0; column < block.columns; column += most) {
    const std::int64_t count = std::min(most, block.columns - column);
    const std::int64_t first = lines.matrix + (block.column + column) * lines.length + lines.first;
    if (span == lines.length) {
      read_values(part, first, lines_.data(), count * span);
    } else {
      for (std::int64_t i = 0; i < count; ++i)
        read_values(part, first + i * lines.length, lines_.data() + i * span, span);
    }
    for (std::int64_t row = 0; row < lines.rows; ++row)
      for (std::int64_t i = 0; i < count; ++i)
        out[row * block.columns + column + i] = lines_[static_cast<std::size_t>(i * span + row * lines.step)];
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
