#include "model/weights/mxfp4_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "model/json/strict_json.h"

namespace zs {
namespace {

constexpr std::int64_t kBlockElems = 32, kBlockBytes = kBlockElems / 2;
constexpr std::int64_t kDecodedBlocks = std::int64_t{1} << 13;  // at once
/// Values of the codes of E2M1.
constexpr std::array<float, 16> kValues = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float scale_of(std::uint8_t exponent) {
  constexpr int kBias = 127, kNan = 255;
  return exponent == kNan ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, exponent - kBias);
}

std::vector<std::uint8_t> read_bytes(WeightFiles& files, const std::string& name, std::int64_t first,
                                     std::int64_t count) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  files.read(name, first, bytes.data(), count);
  return bytes;
}

}  // namespace

bool Mxfp4Tensor::is_part(const WeightFiles& files, const std::string& name) {
  for (const auto& [own, other] : {std::pair(kBlocks, kScales), std::pair(kScales, kBlocks)})
    if (name.ends_with(own) && files.find(name.substr(0, name.size() - own.size()).append(other)) != nullptr)
      return true;
  return false;
}

Mxfp4Tensor::Mxfp4Tensor(const WeightFiles& files, const std::string& codes)
    : codes_(codes), scales_(codes.substr(0, codes.size() - kBlocks.size()).append(kScales)) {
  const auto refuse = [&](const std::string& what) {
    refuse_weights(files.files()[files.tensors().at(codes_).file].path, what);
  };
  const auto &blocks = *files.find(codes_), *const scales = files.find(scales_);
  if (scales == nullptr) refuse(fmt::format("{} is missing, for {} in MXFP4", shortened(scales_), shortened(codes_)));
  const auto describe = [](const auto& tensor) {
    return fmt::format("{} {}", name_of(tensor.dtype), tensor.shape_text());
  };
  shape_ = blocks.shape;
  if (blocks.dtype != FileDType::u8 || std::ssize(shape_) < 2 || shape_.back() != kBlockBytes)
    refuse(fmt::format("{} is {}, not U8 (..., {})", shortened(codes_), describe(blocks), kBlockBytes));
  shape_.pop_back();
  if (scales->dtype != FileDType::u8 || scales->shape != shape_)
    refuse(fmt::format("{} is {}, not U8 ({})", shortened(scales_), describe(*scales), fmt::join(shape_, ", ")));
  shape_.back() *= kBlockElems;
}

void Mxfp4Tensor::read(WeightFiles& files, std::int64_t first, std::int64_t count, float* out) const {
  const std::int64_t last_block = (first + count - 1) / kBlockElems;
  for (std::int64_t block = first / kBlockElems; count > 0 && block <= last_block; block += kDecodedBlocks) {
    const std::int64_t blocks = std::min(kDecodedBlocks, last_block + 1 - block);
    const auto codes = read_bytes(files, codes_, block * kBlockBytes, blocks * kBlockBytes),
               scales = read_bytes(files, scales_, block, blocks);
    const std::int64_t begin = std::max(first, block * kBlockElems),
                       end = std::min(first + count, (block + blocks) * kBlockElems);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t at = i - block * kBlockElems;
      const unsigned both = codes[static_cast<std::size_t>(at / 2)];
      out[i - first] =
          kValues[at % 2 == 0 ? both & 15u : both >> 4] * scale_of(scales[static_cast<std::size_t>(at / kBlockElems)]);
    }
  }
}

}  // namespace zs
