#include "runtime/shard/checkpoint_manifest.h"

#include <xxhash.h>

#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/shard/checkpoint_io.h"

namespace zs {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "zshard checkpoint";
// The document is `{"checksum": "<16 hex digits>", "manifest": <body>}` and a line end; the checksum is of the body's bytes.
constexpr std::string_view kBegin = "{\"checksum\": \"", kMiddle = "\", \"manifest\": ", kEnd = "}\n";
constexpr std::size_t kDigits = 16;

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::string framed(std::string_view body) {
  return fmt::format("{}{}{}{}{}", kBegin, hex(XXH3_64bits(body.data(), body.size())), kMiddle, body, kEnd);
}

/// Turns a JSON document into a manifest; everything it says is doubted.
class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  CheckpointManifest read(std::string_view text) const {
    const json root = json::parse(unframed(text), nullptr, false);
    if (!root.is_object()) fail("the manifest is no JSON object");
    check_version(root);
    CheckpointManifest manifest;
    manifest.step = number(root, "step");
    for (const auto& [key, value] : member(root, "attributes", json::value_t::object).items()) {
      if (!value.is_string()) fail("an attribute of the manifest is no string");
      manifest.attributes[key] = value.get<std::string>();
    }
    for (const json& tensor : member(root, "tensors", json::value_t::array)) manifest.tensors.push_back(read_tensor(tensor));
    for (const json& file : member(root, "files", json::value_t::array)) manifest.files.push_back(read_file(file, manifest));
    check_complete(manifest);
    return manifest;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(ExitCode::checkpoint, what, where_, kTryAnother); }

  std::string_view unframed(std::string_view text) const {
    const std::size_t head = kBegin.size() + kDigits + kMiddle.size();
    if (text.size() < head + kEnd.size() || !text.starts_with(kBegin) || !text.ends_with(kEnd) ||
        text.substr(kBegin.size() + kDigits, kMiddle.size()) != kMiddle)
      fail("this is no whole manifest of a checkpoint");
    const std::string_view body = text.substr(head, text.size() - head - kEnd.size());
    const std::string expected(text.substr(kBegin.size(), kDigits)), found = hex(XXH3_64bits(body.data(), body.size()));
    if (found != expected) fail(fmt::format("the manifest is damaged: checksum {}, expected {}", found, expected));
    return body;
  }

  void check_version(const json& root) const {
    if (!root.contains("format") || root["format"] != kFormat) fail("this is no manifest of a checkpoint");
    if (const auto version = number(root, "version"); version != CheckpointManifest::kVersion) {
      throw Error(ExitCode::checkpoint,
                  fmt::format("the checkpoint has format version {}, this program reads {}", version, CheckpointManifest::kVersion), where_,
                  "use the program that wrote it");
    }
  }

  const json& member(const json& object, const char* key, json::value_t type) const {
    if (!object.is_object() || !object.contains(key) || object[key].type() != type)
      fail(fmt::format("the manifest has no valid \"{}\"", key));
    return object[key];
  }
  std::int64_t as_number(const json& value, const char* key) const {
    constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargest) fail(fmt::format("the manifest has no valid \"{}\"", key));
    return value.get<std::int64_t>();
  }
  std::int64_t number(const json& object, const char* key) const {
    return as_number(member(object, key, json::value_t::number_unsigned), key);
  }
  std::string text(const json& object, const char* key) const { return member(object, key, json::value_t::string).get<std::string>(); }

  CheckpointTensor read_tensor(const json& value) const {
    CheckpointTensor tensor{text(value, "parameter"), text(value, "kind"), DType::f32, {}};
    if (text(value, "dtype") != name_of(DType::f32)) fail(fmt::format("tensor {} is not f32", tensor.parameter));
    std::vector<std::int64_t> dims;
    std::int64_t bytes = size_of(tensor.dtype);
    for (const json& dim : member(value, "shape", json::value_t::array)) {
      dims.push_back(as_number(dim, "shape"));
      if (dims.size() > Shape::kMaxDims || __builtin_mul_overflow(bytes, dims.back(), &bytes))
        fail(fmt::format("the shape of {} cannot be", tensor.parameter));
    }
    tensor.shape = Shape(dims);
    return tensor;
  }

  CheckpointFile read_file(const json& value, const CheckpointManifest& manifest) const {
    CheckpointFile file{number(value, "bytes"), 0, {}};
    const std::string digest = text(value, "digest");
    const auto parsed = std::from_chars(digest.data(), digest.data() + digest.size(), file.digest, 16);
    if (digest.size() != kDigits || parsed.ec != std::errc() || hex(file.digest) != digest) fail("the manifest has no valid \"digest\"");
    for (const json& row : member(value, "segments", json::value_t::array)) {
      if (!row.is_array() || (row.size() != 4 && row.size() != 6)) fail("the manifest has no valid \"segments\"");
      std::array<std::int64_t, 6> numbers{0, 0, 0, 0, 1, 0};
      for (std::size_t i = 0; i < row.size(); ++i) numbers[i] = as_number(row[i], "segments");
      if (row.size() == 6 && numbers[4] < 2) fail("the manifest has no valid \"segments\"");
      file.segments.push_back({numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]});
      check_segment(file.segments.back(), file.bytes, manifest);
    }
    return file;
  }

  void check_segment(const SavedSegment& segment, std::int64_t file_bytes, const CheckpointManifest& manifest) const {
    if (segment.tensor >= static_cast<std::int64_t>(manifest.tensors.size())) fail("a segment is of no tensor");
    const CheckpointTensor& tensor = manifest.tensors[static_cast<std::size_t>(segment.tensor)];
    const std::int64_t numel = tensor.shape.numel(), length = segment.runs > 1 ? segment.stride : numel;
    if (segment.runs > 1 && (segment.stride < 1 || numel % segment.stride != 0 || numel / segment.stride != segment.runs))
      fail(fmt::format("a segment's runs do not make up {}", tensor.parameter));
    if (segment.count < 1 || segment.begin > length || segment.count > length - segment.begin)
      fail(fmt::format("a segment lies outside of {}", tensor.parameter));
    if (segment.offset > file_bytes || segment.elems() > (file_bytes - segment.offset) / size_of(tensor.dtype))
      fail("a segment lies outside of its file");
  }

  void check_complete(const CheckpointManifest& manifest) const {
    const SegmentIndex index = manifest.index();
    std::set<std::pair<std::string, std::string>> names;
    for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
      const CheckpointTensor& tensor = manifest.tensors[i];
      if (!names.insert({tensor.parameter, tensor.kind}).second) fail(fmt::format("{} is there twice", tensor.parameter));
      if (!index.is_complete(static_cast<std::int64_t>(i))) fail(fmt::format("the saved parts of {} do not make it up", tensor.parameter));
    }
  }

  const std::string& where_;
};

}  // namespace

std::vector<std::int64_t> CheckpointManifest::numels() const {
  std::vector<std::int64_t> numels;
  for (const CheckpointTensor& tensor : tensors) numels.push_back(tensor.shape.numel());
  return numels;
}

std::vector<std::int64_t> CheckpointManifest::element_bytes() const {
  std::vector<std::int64_t> bytes;
  for (const CheckpointTensor& tensor : tensors) bytes.push_back(size_of(tensor.dtype));
  return bytes;
}

SegmentIndex CheckpointManifest::index() const {
  std::vector<std::vector<SavedSegment>> segments;
  for (const CheckpointFile& file : files) segments.push_back(file.segments);
  return {segments, numels(), element_bytes()};
}

std::string to_text(const CheckpointManifest& manifest) {
  json tensors = json::array(), files = json::array();
  for (const CheckpointTensor& tensor : manifest.tensors) {
    tensors.push_back({{"parameter", tensor.parameter},
                       {"kind", tensor.kind},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", std::vector<std::int64_t>(tensor.shape.dims().begin(), tensor.shape.dims().end())}});
  }
  for (const CheckpointFile& file : manifest.files) {
    json segments = json::array();
    for (const SavedSegment& s : file.segments) {
      segments.push_back(json::array({s.tensor, s.begin, s.count, s.offset}));
      if (s.runs > 1) segments.back().insert(segments.back().end(), {s.runs, s.stride});
    }
    files.push_back({{"bytes", file.bytes}, {"digest", hex(file.digest)}, {"segments", std::move(segments)}});
  }
  const json root = {{"format", kFormat},
                     {"version", CheckpointManifest::kVersion},
                     {"step", manifest.step},
                     {"attributes", manifest.attributes},
                     {"tensors", std::move(tensors)},
                     {"files", std::move(files)}};
  return framed(root.dump(-1, ' ', false, json::error_handler_t::replace));
}

CheckpointManifest parse_manifest(std::string_view text, const std::string& where) { return Reader(where).read(text); }

}  // namespace zs
