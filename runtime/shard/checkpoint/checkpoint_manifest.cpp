#include "runtime/shard/checkpoint/checkpoint_manifest.h"

#include <xxhash.h>

#include <map>
#include <new>
#include <nlohmann/json.hpp>

#include "runtime/shard/checkpoint/checkpoint_data.h"
#include "runtime/shard/checkpoint/manifest_json.h"

namespace zs {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "zshard checkpoint";
// The document is `{"checksum": "<16 hex digits>", "manifest": <body>}` and a line end; the checksum is of the body's
// bytes.
constexpr std::string_view kBegin = "{\"checksum\": \"", kMiddle = "\", \"manifest\": ", kEnd = "}\n";
constexpr std::size_t kDigits = 16;

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::string framed(std::string_view body) {
  return fmt::format("{}{}{}{}{}", kBegin, hex(XXH3_64bits(body.data(), body.size())), kMiddle, body, kEnd);
}

/// The checks of what a manifest says, and their refusals; everything it says is doubted.
class Checker {
 public:
  explicit Checker(const std::string& where) : where_(where) {}

  [[noreturn]] void fail(const std::string& what) const { throw DamagedCheckpoint(what, where_, kTryAnother); }

  /// The body, whose checksum is right.
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

  void check_version(const ManifestFormat& found) const {
    if (found.format != kFormat) fail("this is no manifest of a checkpoint");
    if (!found.version) fail("the manifest has no valid \"version\"");
    if (*found.version == CheckpointManifest::kVersion) return;
    throw Error(ExitCode::checkpoint,
                fmt::format("the checkpoint has format version {}, this program reads {}", *found.version,
                            CheckpointManifest::kVersion),
                where_, "use the program that wrote it");
  }

  void check(const CheckpointManifest& manifest) const {
    for (const CheckpointTensor& tensor : manifest.tensors) check_shape(tensor);
    for (const CheckpointFile& file : manifest.files) {
      for (const SavedSegment& segment : file.segments) check_segment(segment, file.bytes, manifest);
      check_places(file, manifest);
    }
    check_complete(manifest);
  }

 private:
  void check_shape(const CheckpointTensor& tensor) const {
    std::int64_t bytes = size_of(tensor.dtype);
    for (const std::int64_t dim : tensor.shape.dims()) {
      if (__builtin_mul_overflow(bytes, dim, &bytes)) fail(fmt::format("the shape of {} cannot be", tensor.parameter));
    }
    const auto& [dim, index, count, blocks] = tensor.part;
    bool is_right =
        count >= 1 && index < count && (count == 1 || (dim < tensor.shape.rank() && tensor.shape[dim] % count == 0));
    std::int64_t left = is_right && !blocks.empty() ? tensor.shape[dim] : 0;
    for (const std::int64_t block : blocks) {
      is_right = is_right && block > 0 && block % count == 0 && block <= left;
      if (is_right) left -= block;
    }
    if (!is_right || left != 0) fail(fmt::format("the part of {} cannot be", tensor.parameter));
  }

  void check_segment(const SavedSegment& segment, std::int64_t file_bytes, const CheckpointManifest& manifest) const {
    if (segment.tensor >= std::ssize(manifest.tensors)) fail("a segment is of no tensor");
    const CheckpointTensor& tensor = manifest.tensors[static_cast<std::size_t>(segment.tensor)];
    const std::int64_t numel = tensor.parts().numel(), length = segment.runs > 1 ? segment.stride : numel;
    if (segment.runs > 1 &&
        (segment.stride < 1 || numel % segment.stride != 0 || numel / segment.stride != segment.runs))
      fail(fmt::format("a segment's runs do not make up {}", tensor.parameter));
    if (segment.count < 1 || segment.begin > length || segment.count > length - segment.begin)
      fail(fmt::format("a segment lies outside of {}", tensor.parameter));
    if (segment.offset > file_bytes || segment.elems() > (file_bytes - segment.offset) / size_of(tensor.dtype))
      fail("a segment lies outside of its file");
  }

  /// Segments lie where a save lays them: after the header, and after each other.
  void check_places(const CheckpointFile& file, const CheckpointManifest& manifest) const {
    std::int64_t end = sizeof(DataHeader);
    for (const SavedSegment& segment : file.segments) {
      if (segment.offset < end || segment.offset - end >= kSegmentAlign || segment.offset % kSegmentAlign != 0)
        fail("a segment lies where no save puts it: in the header, or over another one");
      end =
          segment.offset + segment.elems() * size_of(manifest.tensors[static_cast<std::size_t>(segment.tensor)].dtype);
    }
  }

  void check_complete(const CheckpointManifest& manifest) const {
    const SegmentIndex index = manifest.index();
    std::map<std::pair<std::string, std::string>, std::vector<const CheckpointTensor*>> parts;
    for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
      const CheckpointTensor& tensor = manifest.tensors[i];
      auto& known = parts[{tensor.parameter, tensor.kind}];
      if (std::ssize(known) > tensor.part.index) fail(fmt::format("{} is there twice", tensor.parameter));
      if (std::ssize(known) < tensor.part.index) fail(fmt::format("{} lacks a part", tensor.parameter));
      known.push_back(&tensor);
      if (!index.is_complete(static_cast<std::int64_t>(i)))
        fail(fmt::format("the saved parts of {} do not make it up", tensor.parameter));
    }
    for (const auto& [name, of_one] : parts)
      for (const CheckpointTensor* tensor : of_one)
        if (std::ssize(of_one) != tensor->part.count || tensor->part.dim != of_one[0]->part.dim ||
            tensor->part.blocks != of_one[0]->part.blocks || tensor->shape != of_one[0]->shape ||
            tensor->dtype != of_one[0]->dtype)
          fail(fmt::format("the parts of {} are not those of one tensor", name.first));
  }

  const std::string& where_;
};

CheckpointManifest parse(std::string_view text, const std::string& where) {
  const Checker checker(where);
  const std::string_view body = checker.unframed(text);
  checker.check_version(manifest_format(body));
  CheckpointManifest manifest;
  if (const std::string problem = read_manifest_json(body, manifest); !problem.empty()) checker.fail(problem);
  checker.check(manifest);
  return manifest;
}

}  // namespace

std::vector<std::int64_t> CheckpointManifest::numels() const {
  std::vector<std::int64_t> numels;
  for (const CheckpointTensor& tensor : tensors) numels.push_back(tensor.parts().numel());
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
    if (const auto& [dim, index, count, blocks] = tensor.part; count > 1) {
      std::vector<std::int64_t> numbers{dim, index, count};
      numbers.insert(numbers.end(), blocks.begin(), blocks.end());
      tensors.back()["part"] = numbers;
    }
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

CheckpointManifest parse_manifest(std::string_view text, const std::string& where) {
  try {
    return parse(text, where);
  } catch (const std::bad_alloc&) {
    throw Error(ExitCode::out_of_memory, fmt::format("no memory for a manifest of {} bytes", text.size()), where,
                "give the job more memory");
  }
}

}  // namespace zs
