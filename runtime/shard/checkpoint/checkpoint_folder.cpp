#include "runtime/shard/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <string_view>
#include <tuple>

#include "runtime/base/parse_integer.h"
#include "runtime/base/reader_limits.h"
#include "runtime/shard/checkpoint/latest_checkpoint.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

std::string name_of_folder(const std::string& folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

void check_step(const CheckpointManifest& manifest, const std::string& folder) {
  const auto named = step_of(name_of_folder(folder));
  if (!named || *named == manifest.step) return;
  throw Error(ExitCode::checkpoint,
              fmt::format("the folder of step {} holds the checkpoint of step {}", *named, manifest.step), folder,
              "give it a name of its own, or move it elsewhere");
}

/// The folder that checkpoints are in is taken for one of them.
void check_not_root(const std::string& folder) {
  const std::vector<std::int64_t> steps = list_checkpoints(folder);
  if (steps.empty()) return;
  throw Error(ExitCode::checkpoint, fmt::format("this folder holds {} checkpoints, and is none itself", steps.size()),
              folder, fmt::format("name one of them, such as {}", step_name(steps.back())));
}

CheckpointManifest read_manifest(const std::string& folder) {
  std::error_code failed;
  const fs::file_status status = fs::status(folder, failed);
  if (failed && status.type() != fs::file_type::not_found)
    throw Error(ExitCode::checkpoint, "the checkpoint cannot be read: " + failed.message(), folder,
                advice_for(failed.value()));
  if (!fs::is_directory(status)) throw DamagedCheckpoint("there is no checkpoint", folder, kTryAnother);
  const std::string path = folder + "/" + kManifestFile;
  if (!fs::exists(path, failed)) check_not_root(folder);
  CheckpointManifest manifest = parse_manifest(FileReader(path).read_all(ReaderLimits::kManifestBytes), path);
  check_step(manifest, folder);
  return manifest;
}

std::string manifest_text(const Folder& root, const std::string& name) {
  return FileReader(root.folder(name), kManifestFile).read_all(ReaderLimits::kManifestBytes);
}

CheckpointManifest parse_manifest_of(const Folder& root, const std::string& name, const std::string& text) {
  return parse_manifest(text, root.path_of(name) + "/" + kManifestFile);
}

bool is_other_run(const CheckpointManifest& manifest, const CheckpointOwner& owner) {
  const auto run = manifest.attributes.find(CheckpointOwner::kAttribute);
  return !owner.run.empty() && run != manifest.attributes.end() && run->second != owner.run;
}

/// True where the folder is the only one with the checkpoint of another step than its name says.
bool is_other_step(const Folder& root, std::int64_t step, const CheckpointManifest& manifest, const std::string& text) {
  if (manifest.step == step) return false;
  try {
    return manifest_text(root, step_name(manifest.step)) != text;
  } catch (const DamagedCheckpoint&) {  // there is none under its own name
    return true;
  }
}

/// Nothing is removed from what a link leads to: it is not the run's own.
void check_is_own_place(const Folder& root) {
  if (!root.is_open() && root.error() != 0 && root.error() != ENOENT)
    throw file_error(ExitCode::cannot_create, "removing a checkpoint: opening the folder", root.error(), root.path());
}

void remove_leftovers(const Folder& root, const FolderIo& io, const CheckpointOwner& owner) {
  for (const std::string& name : names_in(root)) {
    for (const std::string_view suffix : {kWritingSuffix, kRemovingSuffix}) {
      if (!name.ends_with(suffix)) continue;
      const auto step = step_of(std::string_view(name).substr(0, name.size() - suffix.size()));
      if (step && (!owner.has_written || owner.has_written(*step)) && foreign_path(root, name).empty() &&
          !is_of_another_run(root, name, owner))
        io.remove_folder(root, name);
    }
  }
}

}  // namespace

std::string step_name(std::int64_t step) { return fmt::format("{}{}", kPrefix, step); }

std::string step_folder(const std::string& root, std::int64_t step) {
  return fmt::format("{}/{}", root, step_name(step));
}

std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto step = parse_integer<std::int64_t>(name);
  return step && *step >= 0 && name == fmt::format("{}", *step) ? step : std::nullopt;
}

std::vector<std::int64_t> list_checkpoints(const Folder& root) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : names_in(root)) {
    if (const auto step = step_of(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::vector<std::int64_t> list_checkpoints(const std::string& root) {
  return list_checkpoints(Folder::open(root, Folder::Links::followed));
}

std::string latest_checkpoint(const std::string& root) {
  const std::vector<std::int64_t> steps = list_checkpoints(root);
  return steps.empty() ? std::string() : step_folder(root, steps.back());
}

bool is_of_another_run(const Folder& root, const std::string& name, const CheckpointOwner& owner) {
  try {
    return is_other_run(parse_manifest_of(root, name, manifest_text(root, name)), owner);
  } catch (const DamagedCheckpoint&) {  // the manifest does not say
    return false;
  }
}

std::optional<Error> why_kept(const Folder& root, std::int64_t step, const CheckpointOwner& owner) {
  const std::string name = step_name(step), folder = root.path_of(name);
  const auto kept = [](const std::string& what, const std::string& where) {
    return Error(ExitCode::cannot_create, what, where, "move it elsewhere, or set another run.dir");
  };
  try {
    if (owner.has_written && !owner.has_written(step))
      return kept("this is in the way, and was not written by the run", folder);
    if (const std::string foreign = foreign_path(root, name); !foreign.empty())
      return kept("this is not a checkpoint's, and stays", foreign);
    const std::string text = manifest_text(root, name);
    const CheckpointManifest manifest = parse_manifest_of(root, name, text);
    if (is_other_step(root, step, manifest, text))
      return kept("this is the checkpoint of another step, and stays", folder);
    if (is_other_run(manifest, owner)) return kept("this is another run's checkpoint, and stays", folder);
  } catch (const DamagedCheckpoint&) {  // the checkpoint is of no use to anybody
  } catch (const Error& error) {        // the checkpoint may be good
    return error;
  }
  return std::nullopt;
}

void remove_checkpoint(const Folder& root, std::int64_t step, const FolderIo& io) {
  const std::string name = step_name(step), removing = name + kRemovingSuffix;
  io.remove_folder(root, removing);
  io.rename(root, name, removing);
  io.sync_folder(root);
  io.remove_folder(root, removing);
}

void prune_checkpoints(const Folder& root, std::int64_t keep, FileWatch* watch, const CheckpointOwner& owner,
                       std::optional<std::int64_t> best) {
  check_is_own_place(root);
  const FolderIo io(watch);
  std::vector<std::int64_t> steps = list_checkpoints(root);
  std::erase_if(steps, [&](std::int64_t step) { return owner.has_written && !owner.has_written(step); });
  if (steps.empty()) return;
  const std::string newest = step_name(steps.back());
  const CheckpointManifest manifest = parse_manifest_of(root, newest, manifest_text(root, newest));
  if (is_other_run(manifest, owner)) return;
  check_step(manifest, root.path_of(newest));
  remove_leftovers(root, io, owner);
  if (keep <= 0 || std::ssize(steps) <= keep) return;
  std::erase_if(steps, [&](std::int64_t step) { return why_kept(root, step, owner).has_value(); });
  for (std::ptrdiff_t i = 0; i < std::ssize(steps) - keep; ++i) {
    const std::int64_t step = steps[static_cast<std::size_t>(i)];
    if (step != best) remove_checkpoint(root, step, io);
  }
}

void remove_later_checkpoints(const Folder& root, std::int64_t step, FileWatch* watch, const CheckpointOwner& owner) {
  check_is_own_place(root);
  const FolderIo io(watch);
  std::vector<std::int64_t> steps = list_checkpoints(root);
  std::erase_if(steps, [&](std::int64_t other) { return other <= step; });
  for (const std::int64_t later : steps) {
    if (const auto problem = why_kept(root, later, owner)) throw *problem;
  }
  for (auto later = steps.rbegin(); later != steps.rend(); ++later) remove_checkpoint(root, *later, io);
}

CheckpointReader::CheckpointReader(std::string folder)
    : folder_(std::move(folder)), manifest_(read_manifest(folder_)), index_(manifest_.index()) {
  for (std::size_t i = 0; i < manifest_.tensors.size(); ++i)
    numbers_[{manifest_.tensors[i].parameter, manifest_.tensors[i].kind}].push_back(static_cast<std::int64_t>(i));
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
  return found == numbers_.end() ? std::nullopt : std::optional(found->second.front());
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

struct CheckpointReader::Part {
  int file;
  std::int64_t offset;
  DType saved;
  Buffer out;
};

void CheckpointReader::find_parts(const Request& request, std::vector<Part>& parts) const {
  const CheckpointTensor& saved = manifest_.tensors.at(static_cast<std::size_t>(request.tensor));
  const std::vector<std::int64_t>& numbers = numbers_.at({saved.parameter, saved.kind});
  const TensorParts of_saved = saved.parts();
  for (std::int64_t at = 0; at < request.out.elems;) {
    const auto [part, element] = of_saved.find(request.begin + at);
    const std::int64_t count = std::min(request.out.elems - at, of_saved.left(element));
    for (const ReadPart& found : index_.find({numbers.at(static_cast<std::size_t>(part)), element, count}))
      parts.push_back({found.file, found.offset, saved.dtype, request.out.slice(at + found.target, found.count)});
    at += count;
  }
}

void CheckpointReader::read(const std::vector<Request>& requests, const Store& store) {
  std::vector<Part> parts;
  for (const Request& request : requests) {
    const CheckpointTensor& saved = manifest_.tensors.at(static_cast<std::size_t>(request.tensor));
    ZS_CHECK(store || (request.out.dtype == saved.dtype && request.out.device == DeviceKind::cpu),
             "{} is read into {} on {}", saved.parameter, name_of(request.out.dtype), name_of(request.out.device));
    find_parts(request, parts);
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return std::tie(a.file, a.offset) < std::tie(b.file, b.offset); });
  for (const Part& part : parts) {
    if (!store) {
      file(part.file).read(part.offset, part.out.data, part.out.bytes());
      continue;
    }
    constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
    const std::int64_t elem_bytes = size_of(part.saved), most = kPieceBytes / elem_bytes;
    std::vector<std::byte> piece;
    for (std::int64_t at = 0; at < part.out.elems; at += most) {
      const Buffer out = part.out.slice(at, std::min(most, part.out.elems - at));
      piece.resize(static_cast<std::size_t>(out.elems * elem_bytes));
      file(part.file).read(part.offset + at * elem_bytes, piece.data(), out.elems * elem_bytes);
      store(out, piece.data());
    }
  }
}

void CheckpointReader::verify() {
  for (int number = 0; number < static_cast<int>(manifest_.files.size()); ++number) file(number).verify();
}

}  // namespace zs
