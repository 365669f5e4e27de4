#include "model/weights/weight_index.h"

#include <unordered_map>

#include "model/data/utf8.h"
#include "model/json/strict_json.h"

namespace zs {
namespace {

void check_shard_name(const std::string& name, const std::string& index) {
  const bool is_plain =
      !name.empty() && name.find('/') == name.npos && name != "." && name != ".." && !has_control_characters(name);
  if (!is_plain)
    refuse_weights(index, fmt::format("the index names \"{}\", which is no file beside it", shortened(name)));
}

/// Keeps weight_map, and of all else metadata.total_size alone.
class IndexHandler final : public JsonHandler {
 public:
  explicit IndexHandler(const std::string& file) : file_(file) {}

  WeightIndex take() {
    if (!is_object_) refuse_weights(file_, "the index is no JSON object");
    if (!has_map_) refuse_weights(file_, "the index has no weight_map, which says the file of each tensor");
    if (index_.file_of.empty()) refuse_weights(file_, "weight_map has no tensor");
    return std::move(index_);
  }

 private:
  enum class At : std::uint8_t { other, map, metadata };
  static constexpr std::string_view kMap = "weight_map", kMetadata = "metadata";

  bool start_object(std::size_t) override {
    value("an object");
    if (depth_ == 0) is_object_ = true;
    if (depth_ == 1 && key_ == kMap) at_ = At::map, has_map_ = true;
    if (depth_ == 1 && key_ == kMetadata) at_ = At::metadata, has_metadata_ = true;
    return ++depth_, true;
  }
  bool end_object() override {
    if (--depth_ == 1) at_ = At::other;
    return true;
  }
  bool start_array(std::size_t) override { return value("a list"), ++depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(std::string& name) override {
    if (depth_ == 1 && ((name == kMap && has_map_) || (name == kMetadata && has_metadata_)))
      refuse_weights(file_, fmt::format("the key \"{}\" occurs twice", name));
    if (depth_ == 2 && at_ == At::map) {
      if (index_.file_of.size() == ReaderLimits::kTensors)
        refuse_weights(file_, fmt::format("weight_map has more than {} tensors", ReaderLimits::kTensors));
      const auto [entry, is_new] = index_.file_of.try_emplace(name, 0);
      if (!is_new) refuse_weights(file_, fmt::format("the key \"{}\" occurs twice", shortened(name)));
      file_of_tensor_ = &entry->second;
    }
    key_ = name;
    return true;
  }
  bool string(std::string& name) override {
    if (depth_ != 2 || at_ != At::map) return value("a text"), true;
    const auto [known, is_new] = numbers_.try_emplace(name, index_.files.size());
    if (is_new) check_shard_name(name, file_), index_.files.push_back(name);
    *file_of_tensor_ = known->second;
    return true;
  }
  bool number_unsigned(std::uint64_t number) override { return count(static_cast<double>(number)); }
  bool number_float(double number, const std::string&) override { return count(number); }  // some divide: 8.0
  bool number_integer(std::int64_t) override { return value("a number"), true; }
  bool boolean(bool) override { return value("a boolean"), true; }
  bool null() override {
    if (depth_ == 1 && key_ == kMetadata) return true;
    return value("null"), true;
  }

  bool count(double number) {
    value("a number");
    if (is_total()) index_.total_bytes = number;
    return true;
  }
  bool is_total() const { return depth_ == 2 && at_ == At::metadata && key_ == "total_size"; }
  /// Refuses a value where something else belongs.
  void value(const char* what) {
    if (depth_ == 0 && std::string_view(what) != "an object") refuse_weights(file_, "the index is no JSON object");
    if (depth_ == 2 && at_ == At::map)
      refuse_weights(file_, fmt::format("weight_map: \"{}\" has no file name", shortened(key_)));
    if (depth_ == 1 && key_ == kMetadata && std::string_view(what) != "an object")
      refuse_weights(file_, "the index's metadata is no object");
    if (is_total()) index_.total_bytes = -1;
  }

  const std::string& file_;
  WeightIndex index_;
  std::unordered_map<std::string, std::size_t> numbers_;  // places of files
  std::size_t* file_of_tensor_ = nullptr;
  std::string key_;
  At at_ = At::other;
  int depth_ = 0;
  bool is_object_ = false, has_map_ = false, has_metadata_ = false;
};

}  // namespace

WeightIndex parse_weight_index(std::string_view text, const std::string& file) {
  IndexHandler handler(file);
  parse_strictly(text, file, "the file", handler);
  return handler.take();
}

}  // namespace zs
