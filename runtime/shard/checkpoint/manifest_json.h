#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "runtime/shard/checkpoint/checkpoint_manifest.h"

namespace zs {

/// Format and version that a manifest says it has; nothing where it does not, or not well.
struct ManifestFormat {
  std::string format;
  std::optional<std::int64_t> version;
};

/// Reads these two of a JSON text, whatever else it holds and however deep: it may be of another version.
ManifestFormat manifest_format(std::string_view json_text);

/// Reads a manifest of this version from a JSON text into `manifest`, which is empty. What is wrong with it, or
/// nothing. Both readers take the text as a stream of events: memory is what the manifest holds, never a tree of the
/// text.
std::string read_manifest_json(std::string_view json_text, CheckpointManifest& manifest);

}  // namespace zs
