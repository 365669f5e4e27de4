#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/shard/checkpoint/checkpoint_plan.h"
#include "runtime/shard/placement/partition.h"

namespace zs {

/// One tensor of the training state: a parameter's "master" (its f32 weights), or the optimizer's "adamw.m" or
/// "adamw.v" for it.
struct CheckpointTensor {
  std::string parameter, kind;
  DType dtype = DType::f32;
  Shape shape;              ///< shape of the whole
  ParameterPart part = {};  ///< part of it that the tensor is, where ranks own parts of a parameter; each is saved

  TensorParts parts() const { return {shape, part}; }
};

/// One rank's data file: its length, the digest of its table of checksums, and what lies where.
struct CheckpointFile {
  std::int64_t bytes = 0;
  std::uint64_t digest = 0;
  std::vector<SavedSegment> segments;
};

/// Contents of a checkpoint. `attributes` are the trainer's: whatever it needs beside tensors to go on.
struct CheckpointManifest {
  static constexpr int kVersion = 1;

  std::int64_t step = 0;
  std::map<std::string, std::string> attributes;
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointFile> files;  ///< files of rank 0, 1 ...

  std::vector<std::int64_t> numels() const;
  std::vector<std::int64_t> element_bytes() const;
  SegmentIndex index() const;
};

/// The manifest as a JSON document that begins with the checksum (XXH3) of the rest. The same manifest gives the same
/// bytes.
std::string to_text(const CheckpointManifest& manifest);

/// Reads it back. Whatever is not a manifest, byte for byte as it was written, is a DamagedCheckpoint that names
/// `where`; so is one that speaks of files or elements that cannot be. Another version is an Error(checkpoint).
/// Allocates no more than a multiple of the text's length, however deep it is nested; Error(out_of_memory) where that
/// is not to be had.
CheckpointManifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace zs
