#include "runtime/shard/checkpoint/manifest_json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/reader_limits.h"
#include "runtime/base/usage_error.h"

namespace zs {
namespace {

using nlohmann::json;

/// A parser's events, of which a reader takes those that it knows.
class Events : public json::json_sax_t {
 public:
  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }  // negative
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool string(string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 protected:
  /// A value that the reader has no use for; false ends the reading.
  virtual bool other() = 0;
};

class FormatReader final : public Events {
 public:
  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kLargest = static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    if (depth_ == 1 && key_ == "version" && value <= kLargest) found.version = static_cast<std::int64_t>(value);
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 1 && key_ == "format") found.format = value;
    return true;
  }
  bool start_object(std::size_t) override { return ++depth_, true; }
  bool start_array(std::size_t) override { return ++depth_, true; }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool key(string_t& key) override {
    if (depth_ == 1) key_ = key;
    return true;
  }

  ManifestFormat found;

 private:
  bool other() override { return true; }

  std::int64_t depth_ = 0;
  std::string key_;
};

/// The places of a manifest.
enum class Place : std::uint8_t {
  none,
  root,
  format,
  version,
  step,
  attributes,
  attribute,
  tensors,
  tensor,
  parameter,
  kind,
  dtype,
  shape,
  dim,
  part,
  part_number,
  files,
  file,
  bytes,
  digest,
  segments,
  segment,
  segment_number
};
enum class Type : std::uint8_t { object, array, text, number };

/// Rule of what may be there, in what, and of which type. An empty key: any key of an object, or the elements of an
/// array.
struct Rule {
  Place place, parent;
  std::string_view key;
  Type type;
  bool is_needed = true;  // the key must be there
};
constexpr std::array kRules = {Rule{Place::root, Place::none, "", Type::object},
                               Rule{Place::format, Place::root, "format", Type::text},
                               Rule{Place::version, Place::root, "version", Type::number},
                               Rule{Place::step, Place::root, "step", Type::number},
                               Rule{Place::attributes, Place::root, "attributes", Type::object},
                               Rule{Place::attribute, Place::attributes, "", Type::text},
                               Rule{Place::tensors, Place::root, "tensors", Type::array},
                               Rule{Place::tensor, Place::tensors, "", Type::object},
                               Rule{Place::parameter, Place::tensor, "parameter", Type::text},
                               Rule{Place::kind, Place::tensor, "kind", Type::text},
                               Rule{Place::dtype, Place::tensor, "dtype", Type::text},
                               Rule{Place::shape, Place::tensor, "shape", Type::array},
                               Rule{Place::dim, Place::shape, "", Type::number},
                               Rule{Place::part, Place::tensor, "part", Type::array, false},
                               Rule{Place::part_number, Place::part, "", Type::number},
                               Rule{Place::files, Place::root, "files", Type::array},
                               Rule{Place::file, Place::files, "", Type::object},
                               Rule{Place::bytes, Place::file, "bytes", Type::number},
                               Rule{Place::digest, Place::file, "digest", Type::text},
                               Rule{Place::segments, Place::file, "segments", Type::array},
                               Rule{Place::segment, Place::segments, "", Type::array},
                               Rule{Place::segment_number, Place::segment, "", Type::number}};

class ManifestReader final : public Events {
 public:
  explicit ManifestReader(CheckpointManifest& manifest) : manifest_(manifest) {}

  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kLargest = static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max());
    const Rule* const rule = enter(Type::number);
    return rule != nullptr && (value <= kLargest || refuse()) && take(rule->place, static_cast<std::int64_t>(value));
  }
  bool string(string_t& value) override {
    const Rule* const rule = enter(Type::text);
    return rule != nullptr && take(rule->place, value);
  }
  bool start_object(std::size_t) override { return open(Type::object); }
  bool start_array(std::size_t) override { return open(Type::array); }
  bool end_object() override {
    for (const Rule& rule : kRules) {
      if (rule.parent == open_.back().place && !rule.key.empty() && rule.is_needed &&
          (open_.back().seen & bit(rule.place)) == 0)
        return refuse(rule.key);
    }
    return open_.pop_back(), true;
  }
  bool end_array() override {
    const Place place = open_.back().place;
    open_.pop_back();
    if (place == Place::shape && !take_shape()) return refuse("shape");
    if (place == Place::part && !take_part()) return refuse("part");
    return place != Place::segment || take_segment();
  }
  bool key(string_t& key) override {
    key_ = key;
    return true;
  }

  std::string problem;

 private:
  struct Open {
    Place place;
    std::uint32_t seen;  // places in an object
  };
  static std::uint32_t bit(Place place) { return std::uint32_t{1} << static_cast<int>(place); }

  bool other() override { return refuse(); }
  bool refuse(std::string_view key) {
    problem = fmt::format("the manifest has no valid \"{}\"", key);
    return false;
  }
  bool refuse() { return refuse(key_); }

  /// The rule of the value that comes now; null where there is none for it, or it has come before.
  const Rule* enter(Type type) {
    const Place parent = open_.empty() ? Place::none : open_.back().place;
    const auto rule = std::find_if(kRules.begin(), kRules.end(), [&](const Rule& candidate) {
      return candidate.parent == parent && (candidate.key.empty() || candidate.key == key_);
    });
    const bool is_one = rule != kRules.end() && !rule->key.empty();
    if (rule == kRules.end() || rule->type != type || (is_one && (open_.back().seen & bit(rule->place)) != 0))
      return refuse(), nullptr;
    if (is_one) open_.back().seen |= bit(rule->place);
    return &*rule;
  }

  bool open(Type type) {
    const Rule* const rule = enter(type);
    if (rule == nullptr) return false;
    if (rule->place == Place::tensor) manifest_.tensors.emplace_back();
    if (rule->place == Place::file) manifest_.files.emplace_back();
    if (rule->place == Place::shape) dims_.clear();
    if (rule->place == Place::part) part_.clear();
    if (rule->place == Place::segment) row_size_ = 0;
    open_.push_back({rule->place, 0});
    return true;
  }

  bool take(Place place, std::int64_t value) {
    switch (place) {
      case Place::step: manifest_.step = value; return true;
      case Place::dim: dims_.push_back(value); return dims_.size() <= Shape::kMaxDims || refuse();
      case Place::bytes: manifest_.files.back().bytes = value; return true;
      case Place::part_number:
        part_.push_back(value);
        return part_.size() <= ReaderLimits::kManifestPartNumbers || refuse();
      case Place::segment_number:
        if (row_size_ == row_.size()) return refuse();
        row_[row_size_++] = value;
        return true;
      default: return true;  // the version, which is known
    }
  }

  bool take(Place place, std::string& value) {
    switch (place) {
      case Place::attribute: return take_attribute(value) || refuse();
      case Place::parameter: manifest_.tensors.back().parameter = std::move(value); return true;
      case Place::kind: manifest_.tensors.back().kind = std::move(value); return true;
      case Place::dtype: return take_dtype(value) || refuse();
      case Place::digest: return take_digest(value) || refuse();
      default: return true;  // the format, which is known
    }
  }

  bool take_attribute(std::string& value) {
    return manifest_.attributes.size() < ReaderLimits::kManifestAttributes &&
           manifest_.attributes.emplace(key_, std::move(value)).second;
  }

  bool take_shape() {
    try {
      manifest_.tensors.back().shape = Shape(dims_);
      return true;
    } catch (const UsageError&) {
      return false;
    }
  }

  bool take_dtype(const std::string& name) {
    for (const DType dtype : {DType::f32, DType::u8}) {
      if (name != name_of(dtype)) continue;
      manifest_.tensors.back().dtype = dtype;
      return true;
    }
    return false;
  }

  bool take_digest(const std::string& digits) {
    std::uint64_t& digest = manifest_.files.back().digest;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), digest, 16);
    return error == std::errc() && stop == digits.data() + digits.size() && digits == fmt::format("{:016x}", digest);
  }

  bool take_part() {
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    if (part_.size() < 3 || std::max({part_[0], part_[1], part_[2]}) > kMost || part_[2] < 2) return false;
    ParameterPart& part = manifest_.tensors.back().part;
    part = {static_cast<int>(part_[0]), static_cast<int>(part_[1]), static_cast<int>(part_[2]), {}};
    part.blocks.assign(part_.begin() + 3, part_.end());
    return true;
  }

  bool take_segment() {
    const bool has_runs = row_size_ == 6;
    if ((row_size_ != 4 && !has_runs) || (has_runs && row_[4] < 2)) return refuse();
    manifest_.files.back().segments.push_back(
        {row_[0], row_[1], row_[2], row_[3], has_runs ? row_[4] : 1, has_runs ? row_[5] : 0});
    return true;
  }

  CheckpointManifest& manifest_;
  std::vector<Open> open_;  // no deeper than the rules are
  std::string key_;
  std::vector<std::int64_t> dims_, part_;
  std::array<std::int64_t, 6> row_{};
  std::size_t row_size_ = 0;
};

}  // namespace

ManifestFormat manifest_format(std::string_view json_text) {
  FormatReader reader;
  return json::sax_parse(json_text, &reader) ? reader.found : ManifestFormat{};
}

std::string read_manifest_json(std::string_view json_text, CheckpointManifest& manifest) {
  ManifestReader reader(manifest);
  if (json::sax_parse(json_text, &reader)) return {};
  return reader.problem.empty() ? "the manifest is no JSON object" : reader.problem;
}

}  // namespace zs
