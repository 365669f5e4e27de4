#include "model/weights/nf4_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "model/json/strict_json.h"
#include "runtime/base/nf4_blocks.h"

namespace zs {
namespace {

constexpr const char *kState = ".quant_state.bitsandbytes__nf4", *kAbsmax = ".absmax", *kMap = ".quant_map",
                     *kNestedAbsmax = ".nested_absmax", *kNestedMap = ".nested_quant_map";
/// Length of a state: bitsandbytes writes about 200.
constexpr std::int64_t kMostStateBytes = 1 << 16;
constexpr std::int64_t kNestedValues = 256;
constexpr std::int64_t kDecodedElems = std::int64_t{1} << 18;  // at once

std::int64_t elems_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elems = 1;
  for (const std::int64_t dim : shape) elems *= dim;
  return elems;
}

template <class T>
std::vector<T> read_some(WeightFiles& files, const std::string& name, std::int64_t first, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  files.read(name, first * static_cast<std::int64_t>(sizeof(T)), values.data(),
             count * static_cast<std::int64_t>(sizeof(T)));
  return values;
}

}  // namespace

std::shared_ptr<const Nf4Tensor> Nf4Tensor::find(WeightFiles& files, const std::string& name) {
  if (files.find(name) == nullptr || files.find(name + kState) == nullptr) return nullptr;
  return std::shared_ptr<const Nf4Tensor>(new Nf4Tensor(files, name));
}

Nf4Tensor::Nf4Tensor(WeightFiles& files, std::string name) : name_(std::move(name)) {
  const std::string& file = files.files()[files.tensors().at(name_).file].path;
  read_state(files, file);
  const std::int64_t elems = elems_of(shape_), blocks = nf4_blocks(elems);
  check_tensor(files, name_, FileDType::u8, (elems + 1) / 2);
  check_tensor(files, name_ + kAbsmax, is_nested_ ? FileDType::u8 : FileDType::f32, blocks);
  check_tensor(files, name_ + kMap, FileDType::f32, std::ssize(kNf4Values));
  if (is_nested_) {
    check_tensor(files, name_ + kNestedAbsmax, FileDType::f32,
                 (blocks + nested_block_elems_ - 1) / nested_block_elems_);
    check_tensor(files, name_ + kNestedMap, FileDType::f32, kNestedValues);
  }
  const std::vector<float> map = read_some<float>(files, name_ + kMap, 0, std::ssize(kNf4Values));
  if (!std::equal(map.begin(), map.end(), kNf4Values.begin()))
    refuse_weights(file, fmt::format("{} has other values than NF4's", shortened(name_ + kMap)));
}

void Nf4Tensor::read_state(WeightFiles& files, const std::string& file) {
  const std::string name = name_ + kState;
  const auto refuse = [&](const std::string& what) {
    refuse_weights(file, fmt::format("{} {}", shortened(name), what));
  };
  const auto* const header = files.find(name);
  const std::int64_t bytes = elems_of(header->shape);
  if (header->dtype != FileDType::u8 || bytes > kMostStateBytes) refuse("is no short text");
  const std::vector<char> text = read_some<char>(files, name, 0, bytes);
  nlohmann::json state;
  if (const auto problem = read_json_tree({text.data(), text.size()}, state)) refuse(problem->what);
  if (!state.is_object()) refuse("is no object");
  const auto integer = [&](const char* key) {
    const auto found = state.find(key);
    return found != state.end() && found->is_number_unsigned() ? found->get<std::int64_t>() : std::int64_t{-1};
  };
  if (integer("blocksize") != kNf4BlockElems) refuse("has not a blocksize of 64");
  const auto shape = state.find("shape");
  if (shape == state.end() || !shape->is_array() || shape->empty() || shape->size() > 4) refuse("has no shape");
  std::int64_t elems = 1;
  for (const auto& dim : *shape) {
    constexpr std::int64_t kMostElems = std::int64_t{1} << 40;
    if (!dim.is_number_unsigned() || dim.get<std::uint64_t>() == 0 ||
        dim.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostElems / elems))
      refuse("has no shape");
    shape_.push_back(dim.get<std::int64_t>());
    elems *= shape_.back();
  }
  is_nested_ = state.contains("nested_blocksize");
  if (!is_nested_) return;
  nested_block_elems_ = integer("nested_blocksize");
  const auto offset = state.find("nested_offset");
  if (nested_block_elems_ < 1 || offset == state.end() || !offset->is_number()) refuse("has no nested offset");
  nested_offset_ = static_cast<float>(offset->get<double>());
  if (!std::isfinite(nested_offset_)) refuse("has no nested offset");
}

void Nf4Tensor::check_tensor(const WeightFiles& files, const std::string& name, FileDType dtype,
                             std::int64_t elems) const {
  const auto* const header = files.find(name);
  if (header != nullptr && header->dtype == dtype && elems_of(header->shape) == elems) return;
  refuse_weights(files.files()[files.tensors().at(name_).file].path,
                 header == nullptr ? fmt::format("{} is missing, for {} in NF4", shortened(name), shortened(name_))
                                   : fmt::format("{} is {} {}, not {} {}", shortened(name), elems_of(header->shape),
                                                 name_of(header->dtype), elems, name_of(dtype)));
}

std::vector<std::string> Nf4Tensor::others() const {
  std::vector<std::string> names = {name_ + kState, name_ + kAbsmax, name_ + kMap};
  if (is_nested_) names.insert(names.end(), {name_ + kNestedAbsmax, name_ + kNestedMap});
  return names;
}

std::vector<float> Nf4Tensor::magnitudes(WeightFiles& files, std::int64_t first, std::int64_t count) const {
  if (!is_nested_) return read_some<float>(files, name_ + kAbsmax, first, count);
  const auto codes = read_some<std::uint8_t>(files, name_ + kAbsmax, first, count);
  const auto values = read_some<float>(files, name_ + kNestedMap, 0, kNestedValues);
  const std::int64_t begin = first / nested_block_elems_, end = (first + count - 1) / nested_block_elems_ + 1;
  const auto most = read_some<float>(files, name_ + kNestedAbsmax, begin, end - begin);
  std::vector<float> magnitudes(codes.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const float scale = most[static_cast<std::size_t>((first + i) / nested_block_elems_ - begin)];
    const float product = values[codes[static_cast<std::size_t>(i)]] * scale;  // rounded before the sum
    magnitudes[static_cast<std::size_t>(i)] = product + nested_offset_;
  }
  return magnitudes;
}

void Nf4Tensor::read(WeightFiles& files, std::int64_t first, std::int64_t count, float* out) const {
  for (std::int64_t done = 0; done < count; done += kDecodedElems) {
    const std::int64_t at = first + done, end = std::min(first + count, at + kDecodedElems);
    const std::int64_t block = at / kNf4BlockElems;
    const auto most = magnitudes(files, block, (end - 1) / kNf4BlockElems + 1 - block);
    const auto codes = read_some<std::uint8_t>(files, name_, at / 2, (end + 1) / 2 - at / 2);
    for (std::int64_t i = at; i < end; ++i) {
      const unsigned both = codes[static_cast<std::size_t>(i / 2 - at / 2)];
      out[done + i - at] =
          kNf4Values[i % 2 == 0 ? both >> 4 : both & 15u] * most[static_cast<std::size_t>(i / kNf4BlockElems - block)];
    }
  }
}

}  // namespace zs
