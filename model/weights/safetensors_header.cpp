#include "model/weights/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <unordered_set>

#include "model/data/utf8.h"
#include "model/json/strict_json.h"

namespace zs {
namespace {

std::string tensor_named(const std::string& name) { return fmt::format("tensor \"{}\"", shortened(name)); }

/// A name that nobody can mistake for a path or a terminal's command.
void check_name(const std::string& name, const std::string& file) {
  if (name.empty()) refuse_weights(file, "a tensor's name is empty");
  if (has_control_characters(name))
    refuse_weights(file, fmt::format("{}: the name has control characters", tensor_named(name)));
  const bool climbs = name.front() == '/' || ("/" + name + "/").find("/../") != std::string::npos;
  if (climbs) refuse_weights(file, fmt::format("{}: the name is a path", tensor_named(name)));
}

/// Builds a SafetensorsHeader while the text is read, and stops at the first thing that does not belong there: nothing
/// is kept of what is not wanted, and nothing nests deeper than three.
class HeaderHandler final : public JsonHandler {
 public:
  explicit HeaderHandler(const std::string& file) : file_(file) {}

  SafetensorsHeader take() {
    if (!is_done_) refuse_weights(file_, "the header is no JSON object");
    return std::move(header_);
  }

 private:
  enum class At : std::uint8_t { outside, top, metadata, entry, list };
  enum Field : std::uint8_t { none = 0, dtype = 1, shape = 2, offsets = 4, all = 7 };

  bool start_object(std::size_t) override {
    if (at_ == At::outside && !is_done_) return at_ = At::top, true;
    if (at_ == At::top) {
      if (key_ == kMetadata) return at_ = At::metadata, true;
      if (header_.tensors.size() == ReaderLimits::kTensors)
        refuse_weights(file_, fmt::format("more than {} tensors", ReaderLimits::kTensors));
      header_.tensors.emplace_back().name = key_;
      fields_ = none, offsets_.clear();
      return at_ = At::entry, true;
    }
    unexpected("an object");
  }
  bool key(std::string& name) override {
    if (at_ == At::top) {
      if (!names_.insert(name).second)
        refuse_weights(file_, fmt::format("the name \"{}\" occurs twice", shortened(name)));
      if (name != kMetadata) check_name(name, file_);
      key_ = name;
    } else if (at_ == At::metadata) {
      if (header_.metadata.size() == ReaderLimits::kMetadataEntries)
        refuse_weights(file_, fmt::format("__metadata__ has more than {} entries", ReaderLimits::kMetadataEntries));
      if (!header_.metadata.try_emplace(name).second)
        refuse_weights(file_, fmt::format("__metadata__ has \"{}\" twice", shortened(name)));
      key_ = name;
    } else {
      field_ = name == "dtype" ? dtype : name == "shape" ? shape : name == "data_offsets" ? offsets : none;
      if (field_ == none) refuse_weights(file_, fmt::format("{}: unknown field \"{}\"", where(), shortened(name)));
      if ((fields_ & field_) != 0) refuse_weights(file_, fmt::format("{}: {} occurs twice", where(), name));
      fields_ |= field_;
    }
    return true;
  }
  bool end_object() override {
    if (at_ == At::entry) {
      if (fields_ != all)
        refuse_weights(file_, fmt::format("{}: {} is missing", where(),
                                          (fields_ & dtype) == 0   ? "dtype"
                                          : (fields_ & shape) == 0 ? "shape"
                                                                   : "data_offsets"));
      end_entry();
    }
    is_done_ = at_ == At::top;
    at_ = is_done_ ? At::outside : At::top;
    return true;
  }
  bool start_array(std::size_t) override {
    if (at_ != At::entry || field_ == dtype) unexpected("a list");
    return at_ = At::list, true;
  }
  bool end_array() override { return at_ = At::entry, true; }
  bool string(std::string& value) override {
    if (at_ == At::metadata) return header_.metadata[key_] = value, true;
    if (at_ != At::entry || field_ != dtype) unexpected("a text");
    const auto known = find_file_dtype(value);
    if (!known) refuse_weights(file_, fmt::format("{}: unknown dtype \"{}\"", where(), shortened(value)));
    header_.tensors.back().dtype = *known;
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (at_ != At::list) unexpected("a number");
    if (value > std::uint64_t{INT64_MAX}) refuse_weights(file_, fmt::format("{}: {} is too large", where(), value));
    std::vector<std::int64_t>& list = field_ == shape ? header_.tensors.back().shape : offsets_;
    if (list.size() >= (field_ == shape ? ReaderLimits::kTensorDims : 2))
      refuse_weights(file_, field_ == shape ? fmt::format("{}: more than {} dims", where(), ReaderLimits::kTensorDims)
                                            : fmt::format("{}: more than two data_offsets", where()));
    list.push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool number_integer(std::int64_t value) override { unexpected(fmt::format("the number {}", value)); }
  bool number_float(double, const std::string& text) override { unexpected("the number " + shortened(text)); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool null() override { unexpected("null"); }

  void end_entry() {
    SafetensorsHeader::Tensor& tensor = header_.tensors.back();
    if (offsets_.size() != 2)
      refuse_weights(file_, fmt::format("{}: {} data_offsets instead of two", where(), offsets_.size()));
    tensor.begin = offsets_[0], tensor.end = offsets_[1];
    tensor.shape.shrink_to_fit();
  }
  std::string where() const { return tensor_named(header_.tensors.back().name); }
  [[noreturn]] void unexpected(const std::string& what) const {
    const char* const wanted = field_ == dtype   ? "a dtype is wanted"
                               : field_ == shape ? "a shape is a list of whole numbers from 0"
                                                 : "data_offsets are two whole numbers from 0";
    if (at_ == At::outside) refuse_weights(file_, fmt::format("the header is {}, not a JSON object", what));
    if (at_ == At::top) refuse_weights(file_, fmt::format("\"{}\" is {}, not an object", shortened(key_), what));
    if (at_ == At::metadata)
      refuse_weights(file_,
                     fmt::format("__metadata__ has {} in \"{}\": only texts may be there", what, shortened(key_)));
    refuse_weights(file_, fmt::format("{}: {} where {}", where(), what, wanted));
  }

  static constexpr const char* kMetadata = "__metadata__";
  const std::string& file_;
  SafetensorsHeader header_;
  At at_ = At::outside;
  bool is_done_ = false;
  std::string key_;
  std::unordered_set<std::string> names_;
  Field field_ = none;
  std::uint8_t fields_ = none;
  std::vector<std::int64_t> offsets_;
};

void check_size(const SafetensorsHeader::Tensor& tensor, const std::string& file) {
  const std::string where = tensor_named(tensor.name);
  std::int64_t bits = 1;
  bool is_too_large = false;
  for (const std::int64_t dim : tensor.shape) is_too_large = is_too_large || __builtin_mul_overflow(bits, dim, &bits);
  if (is_too_large || __builtin_mul_overflow(bits, bits_of(tensor.dtype), &bits))
    refuse_weights(file, fmt::format("{}: the shape is too large", where));
  if (bits % 8 != 0) refuse_weights(file, fmt::format("{}: {} bits are no whole bytes", where, bits));
  if (tensor.begin > tensor.end)
    refuse_weights(file,
                   fmt::format("{}: data_offsets [{}, {}] end before they begin", where, tensor.begin, tensor.end));
  if (tensor.end - tensor.begin != bits / 8)
    refuse_weights(file, fmt::format("{}: {} {} has {} bytes, data_offsets {}", where, name_of(tensor.dtype),
                                     tensor.shape_text(), bits / 8, tensor.end - tensor.begin));
}

/// Byte after byte belongs to one tensor, from the first to the last of the file.
void check_ranges(const SafetensorsHeader& header, std::int64_t data_bytes, const std::string& file) {
  std::int64_t end = 0;
  for (const SafetensorsHeader::Tensor& tensor : header.tensors) {
    const std::string where = tensor_named(tensor.name);
    if (tensor.end > data_bytes)
      refuse_weights(file, fmt::format("{}: data_offsets [{}, {}], but the file ends at {}", where, tensor.begin,
                                       tensor.end, data_bytes));
    if (tensor.begin < end)
      refuse_weights(
          file, fmt::format("{}: its bytes begin at {}, within another's, which end at {}", where, tensor.begin, end));
    if (tensor.begin > end)
      refuse_weights(file, fmt::format("{}: its bytes begin at {}, and those from {} belong to no tensor", where,
                                       tensor.begin, end));
    end = tensor.end;
  }
  if (end != data_bytes) refuse_weights(file, fmt::format("the last {} bytes belong to no tensor", data_bytes - end));
}

}  // namespace

std::int64_t SafetensorsHeader::Tensor::elems() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string SafetensorsHeader::Tensor::shape_text() const { return fmt::format("({})", fmt::join(shape, ", ")); }

std::int64_t safetensors_header_bytes(std::string_view first_bytes, std::int64_t file_bytes, const std::string& file) {
  if (file_bytes < SafetensorsHeader::kLengthBytes || std::ssize(first_bytes) < SafetensorsHeader::kLengthBytes)
    refuse_weights(file, fmt::format("{} bytes are too few for a safetensors file", file_bytes));
  std::uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), sizeof length);
  if (length > std::uint64_t{SafetensorsHeader::kLargest})
    refuse_weights(file, fmt::format("this is no safetensors file: its header would have {} bytes, more than {}",
                                     length, SafetensorsHeader::kLargest));
  const auto room = static_cast<std::uint64_t>(file_bytes - SafetensorsHeader::kLengthBytes);
  if (length > room)
    refuse_weights(file, fmt::format("the header has {} bytes, of which the file has {}", length, room));
  return static_cast<std::int64_t>(length);
}

SafetensorsHeader parse_safetensors_header(std::string_view text, std::int64_t data_bytes, const std::string& file) {
  HeaderHandler handler(file);
  parse_strictly(text, file, "the header", handler);
  SafetensorsHeader header = handler.take();
  for (const SafetensorsHeader::Tensor& tensor : header.tensors) check_size(tensor, file);
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  check_ranges(header, data_bytes, file);
  return header;
}

}  // namespace zs
