#include "model/weights/weight_export.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "model/tokenizer/tokenizer_config.h"
#include "model/weights/regular_file.h"
#include "model/weights/safetensors.h"
#include "model/weights/weight_files.h"
#include "runtime/base/reader_limits.h"

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

/// Removes what killed exports have left: empty, or with a mark that nobody has locked.
void remove_leftovers(const std::string& path) {
  const fs::path parent = fs::absolute(path).parent_path();
  for (const std::string& name : leftovers_beside(path)) {
    std::error_code failed;
    if (fs::remove(parent / name, failed)) continue;  // takes no folder that has anything in it
    const Folder folder = Folder::open((parent / name).string());
    const File mark = folder.is_open() ? folder.file(kWritingMark, O_RDWR) : File();
    if (mark.is_open() && mark.lock() == File::Lock::taken) fs::remove_all(parent / name, failed);
  }
}

constexpr std::array kCompanions = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "chat_template.jinja",   "chat_template.json"};

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
      tensors.push_back({part.tensor, rule.parameter, Shape(shape_in_file(rule, shape, rows)), row, rows,
                         columns_of(shape), rule.is_transposed, rule.are_side_by_side,
                         std::max<std::int64_t>(1, rule.matrices), rule.interleaved});
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

std::vector<std::string> copy_companions(const std::string& model, const std::string& tokenizer,
                                         const std::string& to) {
  std::vector<std::string> left_out;
  std::error_code failed;
  const auto copy = [&](const std::string& folder, const std::string& name, const std::string& as) {
    if (!fs::is_regular_file(fs::path(folder) / name, failed)) return;
    if (const auto file = file_of_model(folder, name))
      write_file_atomically((fs::path(to) / as).string(), read_text_file(*file, ReaderLimits::kCompanionBytes));
    else
      left_out.push_back(
          fmt::format("{}/{} is a link that leads out of the model's folder, and is not exported: put the file there",
                      folder, name));
  };
  constexpr const char* kGeneration = "generation_config.json";
  if (!model.empty()) copy(model, kGeneration, kGeneration);
  if (tokenizer.empty()) return left_out;
  const TokenizerFiles files = find_tokenizer_files(tokenizer);
  const auto name_of_file = [](const std::string& path) { return fs::path(path).filename().string(); };
  if (!files.json.empty()) copy(files.folder, name_of_file(files.json), "tokenizer.json");
  if (!files.pieces.empty()) copy(files.folder, name_of_file(files.pieces), "tokenizer.model");
  for (const char* name : kCompanions) copy(files.folder, name, name);
  const fs::path templates = "additional_chat_templates";
  if (fs::is_directory(fs::path(files.folder) / templates, failed)) fs::create_directory(to / templates, failed);
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(files.folder) / templates, failed))
    copy(files.folder, (templates / entry.path().filename()).string(), (templates / entry.path().filename()).string());
  return left_out;
}

OutputFolder::OutputFolder(std::string path, MayReplace may_replace)
    : path_(std::move(path)), may_replace_(std::move(may_replace)) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  check_place();
  std::error_code failed;
  fs::create_directories(fs::absolute(path_).parent_path(), failed);
  remove_leftovers(path_);
  make_temporary();
}

void OutputFolder::check_place() const {
  std::error_code failed;
  const fs::file_status status = fs::symlink_status(path_, failed);
  const bool is_free = !fs::exists(status) || (fs::is_directory(status) && fs::is_empty(path_, failed));
  if (!is_free && !(may_replace_ && may_replace_(path_)))
    throw Error(ExitCode::cannot_create, "there is something already", path_, "name a new folder");
}

void OutputFolder::make_temporary() {
  const auto check = [&](int error) {
    if (error != 0)
      throw Error(ExitCode::cannot_create, "cannot create the folder: " + system_reason(error), path_,
                  advice_for(error));
  };
  int error = EEXIST;
  constexpr int kMostTries = 100;
  for (int attempt = 0; attempt < kMostTries && error == EEXIST; ++attempt) {
    temporary_ = fmt::format("{}.{}-{}.tmp", path_, ::getpid(), attempt);
    error = make_folder(temporary_);
  }
  check(error);
  mark_ = Folder::open(temporary_).file(kWritingMark, O_RDWR | O_CREAT | O_EXCL);
  check(mark_.error());
  static_cast<void>(mark_.lock());
}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (mark_.is_open()) fs::remove_all(temporary_, ignored);
}

void OutputFolder::commit(const std::function<void()>& before) {
  const auto check_io = [&](const char* operation, int error) {
    if (error != 0) throw file_error(ExitCode::io, operation, error, path_);
  };
  check_io("fsync of the folder", sync_folder(temporary_));
  check_place();
  if (before) before();
  // Until it has its name the mark stays: by it the next one knows what a kill leaves here, also of what is replaced.
  std::error_code failed;
  if (fs::exists(fs::symlink_status(path_, failed)) && !fs::is_empty(path_, failed)) {
    static_cast<void>(Folder::open(path_).file(kWritingMark, O_RDWR | O_CREAT));
    check_io("rename", exchange_names(temporary_, path_));
    fs::remove_all(temporary_, failed);
  } else {
    check_io("rename", ::rename(temporary_.c_str(), path_.c_str()) == 0 ? 0 : errno);  // takes an empty folder's place
  }
  check_io("removing", Folder::open(path_).remove_file(kWritingMark));
  check_io("close", mark_.close());
  check_io("fsync of the folder", sync_folder(fs::absolute(path_).parent_path().string()));
}

}  // namespace zs
