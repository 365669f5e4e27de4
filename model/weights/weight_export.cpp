#include "model/weights/weight_export.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/tokenizer/tokenizer_config.h"
#include "model/weights/safetensors.h"
#include "model/weights/weight_files.h"

namespace zs {
namespace {

constexpr std::int64_t kExportElems = std::int64_t{1} << 20;  // at a time
namespace fs = std::filesystem;

std::int64_t stored_bytes(const ExportedTensor& tensor, FileDType dtype) { return tensor.elems() * bits_of(dtype) / 8; }

/// The tensors of each file: in their order, as many as fit.
std::vector<std::vector<ExportedTensor>> cut_into_files(const std::vector<ExportedTensor>& tensors,
                                                        const ExportOptions& options) {
  std::vector<std::vector<ExportedTensor>> files(1);
  std::int64_t bytes = 0;
  for (const ExportedTensor& tensor : tensors) {
    const std::int64_t more = stored_bytes(tensor, options.dtype);
    if (bytes > 0 && bytes + more > options.shard_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(tensor);
    bytes += more;
  }
  return files;
}

void write_tensors(ParameterSource& source, const std::vector<ExportedTensor>& tensors, const std::string& path,
                   FileDType dtype) {
  std::vector<TensorEntry> entries;
  for (const ExportedTensor& tensor : tensors) entries.emplace_back(tensor.name, dtype, tensor.shape);
  SafetensorsWriter file(path, entries, {{"format", "pt"}});
  std::vector<char> stored;
  for (const ExportedTensor& tensor : tensors) {
    for_each_piece(source, tensor, kExportElems, [&](const float* values, std::int64_t count) {
      const std::int64_t bytes = count * bits_of(dtype) / 8;
      check_overflow(dtype, values, count, tensor.name);
      if (dtype == FileDType::f32) return file.append(values, bytes);
      stored.resize(static_cast<std::size_t>(bytes));
      from_f32(dtype, values, stored.data(), count);
      file.append(stored.data(), bytes);
    });
  }
  file.finish();
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);  // where a file system cannot, the rename is as durable as it gets
  ::close(descriptor);
}

}  // namespace

std::vector<ExportedTensor> exported_tensors(const TensorMap& map, const std::vector<ParameterShape>& parameters) {
  std::map<std::string, Shape> shapes;
  for (const ParameterShape& parameter : parameters) shapes[parameter.name] = parameter.shape;
  std::vector<std::string> problems;
  std::vector<ExportedTensor> tensors;
  for (const TensorRule& rule : map.rules) {
    const auto found = shapes.find(rule.parameter);
    if (found == shapes.end()) {
      problems.push_back("missing " + rule.parameter);
      continue;
    }
    const Shape shape = found->second;
    std::int64_t row = 0;
    for (const TensorPart& part : rule.parts) {
      const std::int64_t rows = part.rows != 0 ? part.rows : rows_of(shape);
      std::vector<std::int64_t> dims(shape.dims().begin(), shape.dims().end());
      if (!dims.empty()) dims.front() = rows;
      if (rule.is_transposed) std::reverse(dims.begin(), dims.end());
      tensors.push_back({part.tensor, rule.parameter, Shape(dims), row, rows, columns_of(shape), rule.is_transposed});
      row += rows;
    }
    if (row > rows_of(shape))
      problems.push_back(fmt::format("{} is {}, which has not {} rows", rule.parameter, shape.str(), row));
    shapes.erase(found);
  }
  for (const auto& [name, shape] : shapes) problems.push_back("unknown " + name);
  if (!problems.empty())
    throw Error(ExitCode::model, "not the weights of their configuration, " + first_five(problems));
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return tensors;
}

void export_safetensors(ParameterSource& source, const TensorMap& map, const std::string& folder,
                        const ExportOptions& options) {
  const auto files = cut_into_files(exported_tensors(map, source.parameters()), options);
  std::map<std::string, std::string> file_of;
  std::int64_t bytes = 0, elems = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name =
        files.size() == 1 ? WeightFiles::kFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    write_tensors(source, files[i], (fs::path(folder) / name).string(), options.dtype);
    for (const ExportedTensor& tensor : files[i]) {
      file_of[tensor.name] = name;
      bytes += stored_bytes(tensor, options.dtype);
      elems += tensor.elems();
    }
  }
  if (files.size() == 1) return;
  nlohmann::ordered_json document;
  document["metadata"] = {{"total_parameters", elems}, {"total_size", bytes}};
  document["weight_map"] = file_of;
  write_file_atomically((fs::path(folder) / WeightFiles::kIndex).string(), document.dump(2) + "\n");
}

void export_file(ParameterSource& source, const TensorMap& map, const std::string& path) {
  write_tensors(source, exported_tensors(map, source.parameters()), path, FileDType::f32);
}

void check_overflow(FileDType dtype, const float* values, std::int64_t count, const std::string& tensor) {
  if (const auto value = first_overflow(dtype, values, count))
    throw Error(ExitCode::model, fmt::format("{} would be infinite as {}", *value, name_of(dtype)), tensor,
                dtype == FileDType::f16 ? "export as bf16 or f32" : "export as f32");
}

void copy_companions(const std::string& model, const std::string& tokenizer, const std::string& to) {
  std::error_code failed;
  const auto copy = [&](const fs::path& from, const fs::path& name) {
    if (!fs::is_regular_file(from, failed)) return;
    constexpr std::int64_t kMost = std::int64_t{1} << 30;
    write_file_atomically((fs::path(to) / name).string(), read_text_file(from.string(), kMost));
  };
  if (!model.empty()) copy(fs::path(model) / "generation_config.json", "generation_config.json");
  if (tokenizer.empty()) return;
  const TokenizerFiles files = find_tokenizer_files(tokenizer);
  copy(files.json, "tokenizer.json");
  copy(files.pieces, "tokenizer.model");
  const fs::path folder = files.folder;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                           "merges.txt", "chat_template.jinja", "chat_template.json"})
    copy(folder / name, name);
  const fs::path templates = "additional_chat_templates";
  if (fs::is_directory(folder / templates, failed)) fs::create_directory(to / templates, failed);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / templates, failed))
    copy(entry.path(), templates / entry.path().filename());
}

OutputFolder::OutputFolder(std::string path) : path_(std::move(path)) {
  const auto fail = [&](const std::string& what, const char* todo) {
    return Error(ExitCode::cannot_create, what, path_, todo);
  };
  std::error_code failed;
  const bool is_there = fs::exists(fs::symlink_status(path_, failed));
  if (is_there && (!fs::is_directory(fs::symlink_status(path_, failed)) || !fs::is_empty(path_, failed)))
    throw fail("there is something already", "name a new folder");
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  fs::create_directories(fs::absolute(path_).parent_path(), failed);
  temporary_ = fmt::format("{}.{}-0.tmp", path_, ::getpid());
  if (!fs::create_directory(temporary_, failed))
    throw fail("cannot create the folder" + (failed ? ": " + failed.message() : std::string()),
               "check the path and its permissions");
  has_temporary_ = true;
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (has_temporary_) fs::remove_all(temporary_, ignored);
}

void OutputFolder::commit() {
  sync_folder(temporary_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)  // takes the place of an empty folder
    throw Error(ExitCode::io, fmt::format("rename failed: {}", system_reason(errno)), path_, "name a new folder");
  has_temporary_ = false;
  sync_folder(fs::absolute(path_).parent_path().string());
}

}  // namespace zs
