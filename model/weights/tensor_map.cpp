#include "model/weights/tensor_map.h"

#include <fmt/format.h>

#include <algorithm>

namespace zs {
namespace {

void append_range(std::vector<Block>& blocks, std::int64_t begin, std::int64_t count, std::int64_t columns) {
  const auto take = [&](const Block& block) {
    if (block.rows * block.columns == 0) return;
    blocks.push_back(block);
    begin += block.rows * block.columns, count -= block.rows * block.columns;
  };
  if (begin % columns != 0) take({begin / columns, 1, begin % columns, std::min(count, columns - begin % columns)});
  take({begin / columns, count / columns, 0, columns});
  take({begin / columns, 1, 0, count});
}

bool is_of_layers(const std::string& name) { return name.find("{}") != name.npos; }

template <class T, class Expand>
std::vector<T> for_layers(const std::vector<T>& from, std::int64_t layers, const Expand& expand) {
  std::vector<T> all;
  for (const T& one : from) expand(all, one, layers);
  return all;
}

}  // namespace

std::vector<Block> blocks_of(std::int64_t begin, std::int64_t count, std::int64_t run, std::int64_t stride,
                             std::int64_t columns) {
  std::vector<Block> blocks;
  if (count == 0) return blocks;
  if (count != run && stride == columns && begin % columns + run <= columns)
    return {{begin / columns, count / run, begin % columns, run}};
  for (std::int64_t i = 0; i < count / run; ++i) append_range(blocks, begin + i * stride, run, columns);
  return blocks;
}

std::vector<std::int64_t> shape_in_file(const TensorRule& rule, const Shape& parameter, std::int64_t rows) {
  std::vector<std::int64_t> dims(parameter.dims().begin(), parameter.dims().end());
  if (!dims.empty()) dims.front() = rows;
  if (rule.matrices > 0) dims.front() /= rule.matrices;
  if (rule.is_transposed) std::reverse(dims.begin(), dims.end());
  if (rule.matrices > 0 && rule.are_side_by_side)
    dims.back() *= rule.matrices;
  else if (rule.matrices > 0)
    dims.insert(dims.begin(), rule.matrices);
  return dims;
}

std::string of_layer(const std::string& name, std::int64_t layer) {
  std::string written = name;
  if (const auto at = written.find("{}"); at != written.npos) written.replace(at, 2, fmt::format("{}", layer));
  return written;
}

TensorMap expanded(const TensorMap& map, std::int64_t layers) {
  TensorMap all = map;
  all.rules = for_layers(map.rules, layers, [](auto& to, const TensorRule& rule, std::int64_t count) {
    if (!is_of_layers(rule.parameter)) return to.push_back(rule);
    for (std::int64_t layer = 0; layer < count; ++layer) {
      TensorRule& written = to.emplace_back(rule);
      written.parameter = of_layer(rule.parameter, layer);
      for (TensorPart& part : written.parts) part.tensor = of_layer(part.tensor, layer);
    }
  });
  all.passed_over = for_layers(map.passed_over, layers, [](auto& to, const std::string& name, std::int64_t count) {
    if (!is_of_layers(name)) return to.push_back(name);
    for (std::int64_t layer = 0; layer < count; ++layer) to.push_back(of_layer(name, layer));
  });
  return all;
}

std::string first_five(const std::vector<std::string>& problems) {
  constexpr std::size_t kMost = 5;
  std::string text = fmt::format("{} {}:", problems.size(), problems.size() == 1 ? "tensor" : "tensors"), last;
  for (std::size_t i = 0; i < std::min(kMost, problems.size()); ++i) {
    const std::string word = problems[i].substr(0, problems[i].find(' '));
    const bool is_said = word == last;
    text += fmt::format("{} {}",
                        i == 0    ? ""
                        : is_said ? ","
                                  : ";",
                        is_said ? problems[i].substr(word.size() + 1) : problems[i]);
    last = word;
  }
  return text + (problems.size() > kMost ? " ..." : "");
}

}  // namespace zs
