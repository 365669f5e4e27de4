#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zs {

/// Arguments of `train tune`.
struct TuneRequest {
  std::string model;                        ///< a folder
  std::vector<std::string> data;            ///< files, patterns, folders
  std::int64_t rank = 16;                   ///< rank of the adapters; 0: the whole model is trained
  std::vector<std::string> overrides = {};  ///< "key=value": keys that go into the file, too
};

/// The configuration that `train tune` writes: the keys that differ from their defaults, each in a line, to be edited.
/// Immutable.
class TuneFile {
 public:
  /// Takes the data's format from the first line of its first file, and sizes from the model's folder; the file will be
  /// `path`. Error(config), Error(dataset), Error(model).
  TuneFile(const TuneRequest& request, std::string path);

  /// The file's text, with keys changed as --set would ("train.micro_batch=8").
  std::string text(const std::vector<std::string>& changes = {}) const;

 private:
  using Keys = std::vector<std::pair<std::string, std::string>>;  // and their values as TOML

  static std::string text_of(const Keys& keys);
  Keys changed(Keys keys, const std::vector<std::string>& changes) const;

  std::string path_;
  Keys keys_;
};

/// "tune-Qwen3-0.6B.toml" for a folder of that name.
std::string default_tune_file(const std::string& model);

}  // namespace zs
