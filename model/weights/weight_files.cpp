#include "model/weights/weight_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "model/data/utf8.h"
#include "model/json/strict_json.h"
#include "model/weights/weight_index.h"
#include "runtime/base/reader_limits.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

/// At most five names, and how many there are.
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", shortened(names[i]));
  return names.size() <= kShown ? text : fmt::format("{} and {} more", text, names.size() - kShown);
}

std::string dtypes_of(const SafetensorsHeader& header) {
  std::set<std::string_view> names;
  for (const SafetensorsHeader::Tensor& tensor : header.tensors) names.insert(name_of(tensor.dtype));
  return names.empty() ? "-" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

WeightFiles::WeightFiles(const std::string& path) {
  std::error_code failed;
  const fs::path named(path);
  const std::string folder = named.has_parent_path() ? named.parent_path().string() : ".";
  if (!fs::is_directory(named, failed)) {
    named.extension() == ".json" ? read_index(folder, named.filename().string())
                                 : add_file(folder, named.filename().string());
    return;
  }
  // As transformers does: one file goes before an index.
  for (const char* name : {kFile, kIndex}) {
    if (fs::symlink_status(named / name, failed).type() == fs::file_type::not_found) continue;
    name == kFile ? add_file(path, name) : read_index(path, name);
    return;
  }
  throw Error(ExitCode::model, fmt::format("the folder has neither {} nor {}", kFile, kIndex), path,
              "name a folder with weights in safetensors; convert others with transformers' save_pretrained");
}

void WeightFiles::add_file(const std::string& folder, const std::string& name) {
  const std::string path = (fs::path(folder) / name).string();
  const RegularFile file(path);
  char first[SafetensorsHeader::kLengthBytes] = {};
  const std::int64_t have = std::min<std::int64_t>(file.bytes(), sizeof first);
  file.read(0, first, have);
  const std::int64_t length = safetensors_header_bytes({first, static_cast<std::size_t>(have)}, file.bytes(), path);
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(sizeof first, text.data(), length);
  const std::int64_t data_begin = std::int64_t{sizeof first} + length;
  files_.push_back({name, path, file.identity(), data_begin, file.bytes(),
                    parse_safetensors_header(text, file.bytes() - data_begin, path)});
  const auto& tensors = files_.back().header.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [known, is_new] = tensors_.try_emplace(tensors[i].name, Tensor{files_.size() - 1, i});
    if (!is_new)
      refuse_weights(path, fmt::format("tensor \"{}\" is in {}, too", shortened(tensors[i].name),
                                       files_[known->second.file].name));
  }
}

void WeightFiles::read_index(const std::string& folder, const std::string& name) {
  const std::string path = (fs::path(folder) / name).string();
  const WeightIndex index = parse_weight_index(read_text_file(path, ReaderLimits::kIndexBytes), path);
  std::vector<std::string> files = index.files;
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) add_file(folder, file);
  const auto warn = [&](const std::string& what) { warnings_.push_back(fmt::format("{}: {}", path, what)); };
  std::vector<std::string> absent, unnamed;
  for (const auto& [tensor, file] : index.file_of) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || files_[found->second.file].name != index.files[file]) absent.push_back(tensor);
  }
  for (const auto& [tensor, place] : tensors_)
    if (!index.file_of.contains(tensor)) unnamed.push_back(tensor);
  if (!absent.empty()) warn(fmt::format("not in the file where the index has it: {}", some_of(absent)));
  if (!unnamed.empty()) warn(fmt::format("in a file, but not in the index: {}", some_of(unnamed)));
  if (index.total_bytes && *index.total_bytes != static_cast<double>(data_bytes()))
    warn(fmt::format("total_size of the index is {}, and the tensors have {} bytes",
                     *index.total_bytes < 0 ? "no number of bytes" : fmt::format("{}", *index.total_bytes),
                     data_bytes()));
}

const SafetensorsHeader::Tensor* WeightFiles::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &header_of(found->second);
}

RegularFile& WeightFiles::opened(std::size_t file) {
  if (open_ == nullptr || open_index_ != file) {
    open_ = std::make_unique<RegularFile>(files_[file].path);
    open_index_ = file;
    if (open_->identity() != files_[file].identity)
      throw Error(ExitCode::model, "the file changed while it was read", files_[file].path,
                  "leave it alone, and start again");
  }
  return *open_;
}

void WeightFiles::read(const std::string& name, std::int64_t offset, void* out, std::int64_t bytes) {
  const auto found = tensors_.find(name);
  ZS_CHECK(found != tensors_.end(), "no tensor {}", name);
  const SafetensorsHeader::Tensor& tensor = header_of(found->second);
  ZS_CHECK(offset >= 0 && bytes >= 0 && bytes <= tensor.end - tensor.begin - offset, "{} bytes at {} of {}", bytes,
           offset, name);
  opened(found->second.file).read(files_[found->second.file].data_begin + tensor.begin + offset, out, bytes);
}

std::int64_t WeightFiles::data_bytes() const {
  std::int64_t bytes = 0;
  for (const File& file : files_) bytes += file.bytes - file.data_begin;
  return bytes;
}

std::string describe_weights(const std::string& path) {
  const WeightFiles weights(path);
  std::string text = fmt::format("{:<44}{:>9}{:>18}  {}\n", "file", "tensors", "bytes", "dtypes");
  for (const WeightFiles::File& file : weights.files())
    text += fmt::format("{:<44}{:>9}{:>18}  {}\n", file.name, file.header.tensors.size(), file.bytes,
                        dtypes_of(file.header));
  for (const std::string& warning : weights.warnings()) text += fmt::format("warning: {}\n", escaped(warning));
  return text + fmt::format("{}: good: {} tensors, {} bytes of values\n", escaped(path), weights.tensors().size(),
                            weights.data_bytes());
}

}  // namespace zs
