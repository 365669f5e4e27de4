#include "model/weights/weight_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <set>

#include "model/weights/strict_json.h"

namespace zs {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kLargestIndex = 100'000'000;

/// Index of a model's files: the file of each tensor, and how many bytes all of them have.
struct Index {
  std::map<std::string, std::string> file_of;
  std::optional<std::int64_t> total_bytes;
};

void check_shard_name(const std::string& name, const std::string& index) {
  const bool is_plain =
      !name.empty() && name.find('/') == name.npos && name != "." && name != ".." && !has_control_characters(name);
  if (!is_plain)
    refuse_weights(index, fmt::format("the index names \"{}\", which is no file beside it", shortened(name)));
}

Index parse_index(const std::string& text, const std::string& file) {
  const nlohmann::json document = parse_document(text, file);
  if (!document.is_object()) refuse_weights(file, "the index is no JSON object");
  const auto map = document.find("weight_map");
  if (map == document.end() || !map->is_object())
    refuse_weights(file, "the index has no weight_map, which says the file of each tensor");
  Index index;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string()) refuse_weights(file, fmt::format("weight_map: \"{}\" has no file name", shortened(tensor)));
    check_shard_name(shard.get_ref<const std::string&>(), file);
    index.file_of[tensor] = shard.get<std::string>();
  }
  if (index.file_of.empty()) refuse_weights(file, "weight_map has no tensor");
  const auto metadata = document.find("metadata");
  if (metadata == document.end() || metadata->is_null()) return index;
  if (!metadata->is_object()) refuse_weights(file, "the index's metadata is no object");
  if (const auto total = metadata->find("total_size"); total != metadata->end()) {
    // Some writers have divided on the way: 8.0.
    const bool is_whole = total->is_number_unsigned() ||
                          (total->is_number_float() && total->get<double>() >= 0 && total->get<double>() < 0x1p53);
    const bool is_small =
        is_whole && (!total->is_number_unsigned() || total->get<std::uint64_t>() <= std::uint64_t{INT64_MAX});
    if (!is_small) refuse_weights(file, "the index's total_size is no number of bytes");
    index.total_bytes = total->get<std::int64_t>();
  }
  return index;
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
  const Index index = parse_index(read_text_file(path, kLargestIndex), path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.file_of) names.insert(file);
  for (const std::string& file : names) add_file(folder, file);
  for (const auto& [tensor, file] : index.file_of) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || files_[found->second.file].name != file)
      refuse_weights(path, fmt::format("tensor \"{}\" is not in {}, where the index has it", shortened(tensor), file));
  }
  for (const auto& [tensor, place] : tensors_) {
    if (!index.file_of.contains(tensor))
      refuse_weights(files_[place.file].path, fmt::format("tensor \"{}\" is not in the index", shortened(tensor)));
  }
  if (index.total_bytes && *index.total_bytes != data_bytes())
    refuse_weights(path, fmt::format("the tensors have {} bytes, and total_size of the index is {}", data_bytes(),
                                     *index.total_bytes));
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
  return text + fmt::format("{}: good: {} tensors, {} bytes of values\n", path, weights.tensors().size(),
                            weights.data_bytes());
}

}  // namespace zs
