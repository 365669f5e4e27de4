#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "runtime/base/parse_integer.h"

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

std::string name_of_folder(const std::string& folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

CheckpointManifest read_manifest(const std::string& folder) {
  std::error_code failed;
  const fs::file_status status = fs::status(folder, failed);
  if (failed && status.type() != fs::file_type::not_found)
    throw Error(ExitCode::checkpoint, "the checkpoint cannot be read: " + failed.message(), folder,
                advice_for(failed.value()));
  if (!fs::is_directory(status)) throw DamagedCheckpoint("there is no checkpoint", folder, kTryAnother);
  const std::string path = folder + "/" + kManifestFile;
  CheckpointManifest manifest = parse_manifest(FileReader(path).read_all(kLargestManifest), path);
  if (const auto named = step_of(name_of_folder(folder)); named && *named != manifest.step)
    throw Error(ExitCode::checkpoint,
                fmt::format("the folder of step {} holds the checkpoint of step {}", *named, manifest.step), folder,
                "give it a name of its own, or move it elsewhere");
  return manifest;
}

/// True if the folder is the only one with the checkpoint of another step than its name says. A damaged one says
/// nothing.
bool is_other_step(const std::string& root, std::int64_t step) {
  const std::string path = step_folder(root, step) + "/" + kManifestFile;
  try {
    const std::string text = FileReader(path).read_all(kLargestManifest);
    const std::int64_t held = parse_manifest(text, path).step;
    return held != step && FileReader(step_folder(root, held) + "/" + kManifestFile).read_all(kLargestManifest) != text;
  } catch (const DamagedCheckpoint& error) {
    return error.where() != path;  // there is none under its own name
  }
}

/// Renamed first, so that a removal which is killed leaves no half checkpoint under a good name.
void remove_checkpoint(const std::string& root, std::int64_t step, const FolderIo& io) {
  const std::string folder = step_folder(root, step), removing = folder + kRemovingSuffix;
  io.remove_folder(removing);
  io.rename(folder, removing);
  io.sync_folder(root);
  io.remove_folder(removing);
}

void remove_leftovers(const std::string& root, const FolderIo& io, const StepFilter& is_own) {
  for (const std::string& name : names_in(root)) {
    for (const std::string_view suffix : {kWritingSuffix, kRemovingSuffix}) {
      const std::string path = fmt::format("{}/{}", root, name);
      if (!name.ends_with(suffix)) continue;
      const auto step = step_of(std::string_view(name).substr(0, name.size() - suffix.size()));
      if (step && (!is_own || is_own(*step)) && foreign_path(path).empty()) io.remove_folder(path);
    }
  }
}

}  // namespace

std::string step_folder(const std::string& root, std::int64_t step) {
  return fmt::format("{}/{}{}", root, kPrefix, step);
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto step = parse_integer<std::int64_t>(name);
  return step && *step >= 0 && name == fmt::format("{}", *step) ? step : std::nullopt;
}

std::vector<std::int64_t> list_checkpoints(const std::string& root) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(root)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<Error> why_kept(const std::string& root, std::int64_t step, const StepFilter& is_own) {
  const std::string folder = step_folder(root, step);
  const auto kept = [](const std::string& what, const std::string& where) {
    return Error(ExitCode::cannot_create, what, where, "move it elsewhere, or set another run.dir");
  };
  try {
    if (is_own && !is_own(step)) return kept("this is in the way, and was not written by the run", folder);
    if (const std::string foreign = foreign_path(folder); !foreign.empty())
      return kept("this is not a checkpoint's, and stays", foreign);
    if (is_other_step(root, step)) return kept("this is the checkpoint of another step, and stays", folder);
  } catch (const Error& error) {  // the checkpoint may be good
    return error;
  }
  return std::nullopt;
}

void prune_checkpoints(const std::string& root, std::int64_t keep, FileWatch* watch, const StepFilter& is_own,
                       std::optional<std::int64_t> best) {
  const FolderIo io(watch);
  std::vector<std::int64_t> steps = list_checkpoints(root);
  std::erase_if(steps, [&](std::int64_t step) { return is_own && !is_own(step); });
  if (steps.empty()) return;
  read_manifest(step_folder(root, steps.back()));
  remove_leftovers(root, io, is_own);
  if (keep <= 0 || std::ssize(steps) <= keep) return;
  std::erase_if(steps, [&](std::int64_t step) { return why_kept(root, step, is_own).has_value(); });
  for (std::ptrdiff_t i = 0; i < std::ssize(steps) - keep; ++i) {
    const std::int64_t step = steps[static_cast<std::size_t>(i)];
    if (step != best) remove_checkpoint(root, step, io);
  }
}

void remove_later_checkpoints(const std::string& root, std::int64_t step, FileWatch* watch, const StepFilter& is_own) {
  const FolderIo io(watch);
  std::vector<std::int64_t> steps = list_checkpoints(root);
  std::erase_if(steps, [&](std::int64_t other) { return other <= step; });
  for (const std::int64_t later : steps) {
    if (const auto problem = why_kept(root, later, is_own)) throw *problem;
  }
  for (auto later = steps.rbegin(); later != steps.rend(); ++later) remove_checkpoint(root, *later, io);
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
      throw Error(ExitCode::checkpoint, "a file does not belong to the checkpoint", folder_ + "/" + name,
                  "move it elsewhere");
  }
  if (!expected.empty()) {
    throw DamagedCheckpoint(
        fmt::format("a checkpoint of {} data files lacks {}", manifest_.files.size(), expected.size()),
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
    open_ = std::make_unique<DataFileReader>(folder_ + "/" + data_file_name(static_cast<std::size_t>(number)),
                                             saved.bytes, saved.digest, expected);
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
    ZS_CHECK(request.out.dtype == saved.dtype && (store || request.out.device == DeviceKind::cpu),
             "{} is read into {} on {}", saved.parameter, name_of(request.out.dtype), name_of(request.out.device));
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
