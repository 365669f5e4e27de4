#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "model/data/output_file.h"
#include "model/train/run_dir/run_dir.h"
#include "runtime/base/check.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "tests/model/temp_dir.h"

namespace zs::test {

namespace fs = std::filesystem;

/// Runs the case inside a fresh folder, because runs/ is relative.
class InTempDir : public TempDir {
 public:
  InTempDir() : before_(fs::current_path()) { fs::current_path(path()); }
  ~InTempDir() { fs::current_path(before_); }

 private:
  fs::path before_;
};

/// The code of the refusal; ok without one.
inline ExitCode refusal(const RunDirRequest& request) {
  try {
    create_run_dir(request, "text");
  } catch (const Error& error) {
    UNSCOPED_INFO(error.what());
    return error.code();
  }
  return ExitCode::ok;
}

/// A checkpoint without tensors, as the run in `dir` would write it.
inline void write_checkpoint(const std::string& dir, std::int64_t step) {
  CheckpointManifest manifest;
  manifest.step = step;
  RunMark mark = RunMark::find(dir).value();
  if (!mark.id().empty()) manifest.attributes[CheckpointOwner::kAttribute] = mark.id();
  mark.begin(checkpoint_name(step));
  const fs::path folder = fs::path(dir) / checkpoint_name(step);
  fs::create_directories(folder);
  write_file_atomically((folder / "manifest.json").string(), to_text(manifest));
}

}  // namespace zs::test
