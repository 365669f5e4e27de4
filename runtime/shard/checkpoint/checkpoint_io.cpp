#include "runtime/shard/checkpoint/checkpoint_io.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <filesystem>
#include <system_error>

#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

/// A disk that is full or broken is another kind of problem than a place that cannot be used.
[[noreturn]] void fail_to(FileOp op, int error, const std::string& path) {
  const bool is_disk = is_no_space(error) || error == EIO || error == EFBIG;
  const bool is_place = !is_disk && (op == FileOp::make_folder || op == FileOp::create);
  throw file_error(is_place ? ExitCode::cannot_create : ExitCode::io,
                   fmt::format("saving a checkpoint: {}", name_of(op)), error, path);
}

void note(FileWatch* watch, FileOp op, const std::string& path) {
  if (watch != nullptr) watch->before(op, path);
}

Error cannot_list(int error, const std::string& folder) {
  return {ExitCode::checkpoint, fmt::format("the folder cannot be listed: {}", system_reason(error)), folder,
          advice_for(error)};
}

}  // namespace

std::string data_file_name(std::size_t rank) { return fmt::format("rank-{}.bin", rank); }

std::vector<std::string> names_in(const Folder& folder) {
  std::vector<std::string> names;
  const int error = folder.is_open() ? folder.names(names) : folder.error();
  if (error == 0 || error == ENOENT) return names;
  throw cannot_list(error, folder.path());
}

std::vector<std::string> names_in(const std::string& folder) {
  return names_in(Folder::open(folder, Folder::Links::followed));
}

std::string foreign_path(const Folder& root, const std::string& name) {
  constexpr std::string_view kBegin = "rank-", kEnd = ".bin";
  const auto is_data_file = [&](std::string_view file) {
    if (!file.starts_with(kBegin) || !file.ends_with(kEnd) || file.size() < kBegin.size() + kEnd.size()) return false;
    const auto rank = parse_integer<std::size_t>(file.substr(kBegin.size(), file.size() - kBegin.size() - kEnd.size()));
    return rank && file == data_file_name(*rank);
  };
  const Folder folder = root.folder(name);
  if (!folder.is_open()) {
    if (folder.error() == ENOTDIR || folder.error() == ELOOP || folder.error() == ENOENT) return folder.path();
    throw cannot_list(folder.error(), folder.path());
  }
  for (const std::string& file : names_in(folder))
    if ((file != kManifestFile && !is_data_file(file)) || folder.type_of(file) != S_IFREG) return folder.path_of(file);
  return {};
}

const char* name_of(FileOp op) {
  switch (op) {
    case FileOp::make_folder: return "making a folder";
    case FileOp::create: return "creating a file";
    case FileOp::reserve: return "reserving space";
    case FileOp::write: return "writing";
    case FileOp::sync: return "fsync";
    case FileOp::close: return "close";
    case FileOp::sync_folder: return "fsync of the folder";
    case FileOp::rename: return "rename";
    case FileOp::remove: return "removing";
  }
  return "?";
}

Folder FolderIo::make_folder(const std::string& path) const {
  note(watch_, FileOp::make_folder, path);
  const int error = zs::make_folder(path);
  if (error != 0 && error != EEXIST) fail_to(FileOp::make_folder, error, path);
  Folder folder = Folder::open(path);
  if (!folder.is_open()) fail_to(FileOp::make_folder, folder.error(), path);
  return folder;
}

Folder FolderIo::make_folder(const Folder& root, const std::string& name) const {
  note(watch_, FileOp::make_folder, root.path_of(name));
  const int error = root.make_folder(name);
  if (error != 0 && error != EEXIST) fail_to(FileOp::make_folder, error, root.path_of(name));
  Folder folder = root.folder(name);
  if (!folder.is_open()) fail_to(FileOp::make_folder, folder.error(), folder.path());
  return folder;
}

void FolderIo::rename(const Folder& root, const std::string& from, const std::string& to) const {
  note(watch_, FileOp::rename, root.path_of(from));
  if (const int error = root.rename(from, to); error != 0) fail_to(FileOp::rename, error, root.path_of(to));
}

void FolderIo::sync_folder(const Folder& folder) const {
  note(watch_, FileOp::sync_folder, folder.path());
  const int error = folder.is_open() ? folder.sync() : folder.error();
  if (error != 0) fail_to(FileOp::sync_folder, error, folder.path());
}

void FolderIo::remove_folder(const Folder& root, const std::string& name) const {
  if (root.type_of(name) == 0) return;
  if (const std::string foreign = foreign_path(root, name); !foreign.empty())
    throw Error(ExitCode::cannot_create, "this is not a checkpoint's, and is not removed with it", foreign,
                "move it elsewhere");
  note(watch_, FileOp::remove, root.path_of(name));
  const Folder folder = root.folder(name);
  for (const std::string& file : names_in(folder))
    if (const int error = folder.remove_file(file); error != 0) fail_to(FileOp::remove, error, folder.path_of(file));
  if (const int error = root.remove_folder(name); error != 0) fail_to(FileOp::remove, error, folder.path());
}

FileWriter::FileWriter(const Folder& folder, const std::string& name, std::int64_t reserve_bytes, FileWatch* watch)
    : path_(folder.path_of(name)), watch_(watch) {
  this->watch(FileOp::create);
  file_ = folder.file(name, O_WRONLY | O_CREAT | O_EXCL);
  check(FileOp::create, file_.error());
  this->watch(FileOp::reserve);
  const int error = reserve_bytes <= 0 ? 0 : file_.reserve(0, reserve_bytes);
  if (error != EOPNOTSUPP) check(FileOp::reserve, error);  // else the disk is found full while writing
}

void FileWriter::watch(FileOp op) const { note(watch_, op, path_); }

void FileWriter::check(FileOp op, int error) const {
  if (error != 0) fail_to(op, error, path_);
}

void FileWriter::write(const void* data, std::size_t bytes) {
  ZS_CHECK(file_.is_open(), "write to {} after finish", path_);
  watch(FileOp::write);
  check(FileOp::write, file_.write({static_cast<const char*>(data), bytes}));
}

void FileWriter::finish() {
  ZS_CHECK(file_.is_open(), "second finish of {}", path_);
  watch(FileOp::sync);
  check(FileOp::sync, file_.sync());  // final: the kernel may have dropped the data and call the next one a success
  watch(FileOp::close);
  check(FileOp::close, file_.close());
}

FileReader::FileReader(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {
  if (!file_.is_open()) refuse(file_.error());
  if (!file_.is_regular()) fail("is no file");
  bytes_ = file_.bytes();
}

FileReader::FileReader(std::string path) : FileReader(path, File::open(path, O_RDONLY | O_NOFOLLOW)) {}

FileReader::FileReader(const Folder& folder, const std::string& name)
    : FileReader(folder.path_of(name), folder.file(name, O_RDONLY)) {}

void FileReader::fail(const std::string& what) const {
  throw DamagedCheckpoint("a checkpoint's file " + what, path_, kTryAnother);
}

void FileReader::fail_at(std::int64_t offset, const std::string& what) const {
  throw DamagedCheckpoint("a checkpoint's file " + what, fmt::format("{}@{}", path_, offset), kTryAnother);
}

void FileReader::fail_version(std::uint32_t found, std::uint32_t expected) const {
  throw Error(ExitCode::checkpoint,
              fmt::format("a checkpoint's file has format version {}, this program reads {}", found, expected),
              path_ + "@8", "use the program that wrote it");
}

/// A file that is not there, or no file, is damage. One that may not be read, on a disk that fails or in a process that
/// has no descriptor left, says nothing of the checkpoint.
void FileReader::refuse(int error) const {
  const std::string what = fmt::format("cannot be read: {}", system_reason(error));
  if (error == ENOENT || error == ELOOP || error == ENOTDIR || error == ENXIO) fail(what);
  throw Error(ExitCode::checkpoint, "a checkpoint's file " + what, path_, advice_for(error));
}

void FileReader::read(std::int64_t offset, void* data, std::size_t bytes) const {
  const File::Count count = file_.read_at(offset, data, bytes);
  if (count.error != 0) refuse(count.error);
  if (count.bytes < bytes) fail_at(offset + static_cast<std::int64_t>(count.bytes), "ends too early");
}

std::string FileReader::read_all(std::int64_t most) const {
  if (bytes_ > most) fail(fmt::format("has {} bytes, more than {}", bytes_, most));
  std::string text(static_cast<std::size_t>(bytes_), '\0');
  read(0, text.data(), text.size());
  return text;
}

}  // namespace zs
