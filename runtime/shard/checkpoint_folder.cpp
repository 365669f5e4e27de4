#include "runtime/shard/checkpoint_folder.h"
#include "runtime/base/whole_number.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <tuple>

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::int64_t kLargestManifest = std::int64_t{1} << 30;

/// N of "step-N", written as a number is; nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto step = whole_number<std::int64_t>(name);
  return step && *step >= 0 && name == fmt::format("{}", *step) ? step : std::nullopt;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

CheckpointManifest read_manifest(const std::string& folder) {
  std::error_code failed;
  if (!fs::is_directory(folder, failed)) throw Error(ExitCode::checkpoint, "there is no checkpoint", folder, kTryAnother);
  const std::string path = folder + "/" + kManifestFile;
  return parse_manifest(FileReader(path).read_all(kLargestManifest), path);
}

/// Renamed first, so that a removal which is killed leaves no half checkpoint under a good name.
void remove_checkpoint(const std::string& root, std::int64_t step, const FolderIo& io) {
  const std::string folder = step_folder(root, step), removing = folder + kRemovingSuffix;
  io.remove_folder(removing);
  io.rename(folder, removing);
  io.sync_folder(root);
  io.remove_folder(removing);
}

void remove_leftovers(const std::string& root, const FolderIo& io) {
  for (const std::string& name : names_in(root)) {
    for (const std::string_view suffix : {kWritingSuffix, kRemovingSuffix}) {
      if (name.ends_with(suffix) && step_of(std::string_view(name).substr(0, name.size() - suffix.size())))
        io.remove_folder(fmt::format("{}/{}", root, name));
    }
  }
}

}  // namespace

std::string step_folder(const std::string& root, std::int64_t step) { return fmt::format("{}/{}{}", root, kPrefix, step); }

std::string data_file_name(std::size_t rank) { return fmt::format("rank-{}.bin", rank); }

std::vector<std::int64_t> list_checkpoints(const std::string& root) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(root)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

void prune_checkpoints(const std::string& root, std::int64_t keep, FileWatch* watch) {
  const FolderIo io(watch);
  const std::vector<std::int64_t> steps = list_checkpoints(root);
  if (steps.empty()) return;
  read_manifest(step_folder(root, steps.back()));
  remove_leftovers(root, io);
  const auto count = static_cast<std::int64_t>(steps.size());
  for (std::int64_t i = 0; keep > 0 && i < count - keep; ++i) remove_checkpoint(root, steps[static_cast<std::size_t>(i)], io);
}

void remove_later_checkpoints(const std::string& root, std::int64_t step, FileWatch* watch) {
  const FolderIo io(watch);
  const std::vector<std::int64_t> steps = list_checkpoints(root);
  for (auto later = steps.rbegin(); later != steps.rend() && *later > step; ++later) remove_checkpoint(root, *later, io);
}

CheckpointReader::CheckpointReader(std::string folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)), index_(manifest_.index()) {
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i)
    numbers_[{manifest_.tensors[i].parameter, manifest_.tensors[i].kind}] = static_cast<std::int64_t>(i);
  check_folder();
}

void CheckpointReader::check_folder() const {
  std::set<std::string> expected{kManifestFile};
  for (std::size_t rank = 0; rank < manifest_.files.size(); ++rank) expected.insert(data_file_name(rank));
  for (const std::string& name : names_in(folder_)) {
    if (expected.erase(name) == 0)
      throw Error(ExitCode::checkpoint, "a file does not belong to the checkpoint", folder_ + "/" + name, "move it elsewhere");
  }
  if (!expected.empty()) {
    throw Error(ExitCode::checkpoint, fmt::format("a checkpoint of {} data files lacks {}", manifest_.files.size(), expected.size()),
                folder_ + "/" + *expected.begin(), kTryAnother);
  }
}

std::optional<std::int64_t> CheckpointReader::find(const std::string& parameter, const std::string& kind) const {
  const auto found = numbers_.find({parameter, kind});
  return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

DataFileReader& CheckpointReader::file(int number) {
  if (number != open_number_) {
    const CheckpointFile& saved = manifest_.files.at(static_cast<std::size_t>(number));
    DataHeader expected;
    expected.rank = number;
    expected.ranks = static_cast<std::int64_t>(manifest_.files.size());
    expected.step = manifest_.step;
    open_number_ = -1;
    open_ = std::make_unique<DataFileReader>(folder_ + "/" + data_file_name(static_cast<std::size_t>(number)), saved.bytes, saved.digest,
                                             expected);
    open_number_ = number;
  }
  return *open_;
}

void CheckpointReader::read(const std::vector<Request>& requests, const Store& store) {
  struct Part {
    int file;
    std::int64_t offset;
    Buffer out;
  };
  std::vector<Part> parts;
  for (const Request& request : requests) {
    const CheckpointTensor& saved = manifest_.tensors.at(static_cast<std::size_t>(request.tensor));
    ZS_CHECK(request.out.dtype == saved.dtype && (store || request.out.device == DeviceKind::cpu), "{} is read into {} on {}",
             saved.parameter, name_of(request.out.dtype), name_of(request.out.device));
    for (const ReadPart& part : index_.find({request.tensor, request.begin, request.out.elems}))
      parts.push_back({part.file, part.offset, request.out.slice(part.target, part.count)});
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return std::tie(a.file, a.offset) < std::tie(b.file, b.offset); });
  for (const Part& part : parts) {
    if (!store) {
      file(part.file).read(part.offset, part.out.data, part.out.bytes());
      continue;
    }
    constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
    const std::int64_t elem_bytes = size_of(part.out.dtype), most = kPieceBytes / elem_bytes;
    std::vector<std::byte> piece;
    for (std::int64_t at = 0; at < part.out.elems; at += most) {
      const Buffer out = part.out.slice(at, std::min(most, part.out.elems - at));
      piece.resize(static_cast<std::size_t>(out.bytes()));
      file(part.file).read(part.offset + at * elem_bytes, piece.data(), out.bytes());
      store(out, piece.data());
    }
  }
}

void CheckpointReader::verify() {
  for (int number = 0; number < static_cast<int>(manifest_.files.size()); ++number) file(number).verify();
}

}  // namespace zs
