#include "model/weights/safetensors.h"

#include <bit>
#include <nlohmann/json.hpp>
#include <set>

namespace zs {
namespace {

constexpr std::size_t kHeaderAlignment = 8;
constexpr std::size_t kLargestHeader = 100'000'000;  // largest header that the reference reader accepts

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

std::int64_t checked_bytes(const TensorEntry& entry) {
  std::int64_t bytes = bits_of(entry.dtype) / 8;
  for (const std::int64_t dim : entry.shape.dims())
    ZS_CHECK(!__builtin_mul_overflow(bytes, dim, &bytes), "tensor {} is too large", entry.name);
  return bytes;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, const std::vector<TensorEntry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();  // keeps the order of the offsets
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names;
  for (const TensorEntry& entry : entries) {
    ZS_CHECK(!entry.name.empty() && entry.name != "__metadata__", "a tensor cannot be named '{}'", entry.name);
    ZS_CHECK(names.insert(entry.name).second, "two tensors named {}", entry.name);
    const std::int64_t begin = total_;
    ZS_CHECK(!__builtin_add_overflow(total_, checked_bytes(entry), &total_), "the file is too large at tensor {}",
             entry.name);
    ranges_.push_back({entry.name, entry.dtype, begin, total_});
  }
  // ordered_json looks a key up linearly, so the members go in as one list: a model has thousands.
  auto& members = header.get_ref<nlohmann::ordered_json::object_t&>();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    nlohmann::ordered_json entry;
    entry["dtype"] = name_of(entries[i].dtype);
    entry["shape"] = std::vector<std::int64_t>(entries[i].shape.dims().begin(), entries[i].shape.dims().end());
    entry["data_offsets"] = {ranges_[i].begin, ranges_[i].end};
    members.push_back({entries[i].name, std::move(entry)});
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    ZS_CHECK(false, "a name or metadata value is not UTF-8");
  }
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  ZS_CHECK(text.size() <= kLargestHeader, "a header of {} bytes", text.size());
  const std::uint64_t length = text.size();
  file_.write(&length, sizeof length);
  file_.write(text.data(), text.size());
}

void SafetensorsWriter::append(const void* data, std::int64_t bytes) {
  ZS_CHECK(bytes >= 0 && bytes <= total_ - written_, "{} bytes after {} of {}", bytes, written_, total_);
  file_.write(data, static_cast<std::size_t>(bytes));
  written_ += bytes;
}

void SafetensorsWriter::append_tensor(const std::string& name, const Buffer& data) {
  ZS_CHECK(next_ < ranges_.size() && ranges_[next_].name == name, "tensor {} is not the next of the header", name);
  const Range& range = ranges_[next_++];
  ZS_CHECK(data.device == DeviceKind::cpu && file_dtype(data.dtype) == range.dtype,
           "tensor {}: {} on {}, header says {}", name, name_of(data.dtype), name_of(data.device),
           name_of(range.dtype));
  ZS_CHECK(written_ == range.begin && data.bytes() == range.end - range.begin,
           "tensor {}: {} bytes at {}, header says [{}, {})", name, data.bytes(), written_, range.begin, range.end);
  append(data.data, data.bytes());
}

void SafetensorsWriter::finish() {
  ZS_CHECK(written_ == total_, "{} of {} bytes were written", written_, total_);
  file_.commit();
}

}  // namespace zs
