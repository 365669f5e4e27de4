#include "runtime/shard/checkpoint/checkpoint_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "runtime/base/file_modes.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

/// A disk that is full or broken is another kind of problem than a place that cannot be used.
[[noreturn]] void fail_to(FileOp op, int error, const std::string& path) {
  const bool is_disk = error == ENOSPC || error == EDQUOT || error == EIO || error == EFBIG;
  const bool is_place = !is_disk && (op == FileOp::make_folder || op == FileOp::create);
  throw Error(is_place ? ExitCode::cannot_create : ExitCode::io,
              fmt::format("saving a checkpoint: {} failed: {}", name_of(op), system_reason(error)), path,
              is_place ? "check the folder's permissions" : "free some space and go on from the last checkpoint");
}

void tell(FileWatch* watch, FileOp op, const std::string& path) {
  if (watch != nullptr) watch->before(op, path);
}

}  // namespace

std::string data_file_name(std::size_t rank) { return fmt::format("rank-{}.bin", rank); }

const char* advice_for(int error) {
  switch (error) {
    case EACCES:
    case EPERM: return "check the permissions";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    default: return "see what the system says of this disk, and try again";
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    names.push_back(entry->path().filename().string());
  }
  if (!failed || failed.value() == ENOENT) return names;
  throw Error(ExitCode::checkpoint, fmt::format("the folder cannot be listed: {}", failed.message()), folder,
              advice_for(failed.value()));
}

std::string foreign_path(const std::string& folder) {
  constexpr std::string_view kBegin = "rank-", kEnd = ".bin";
  const auto is_data_file = [&](std::string_view name) {
    if (!name.starts_with(kBegin) || !name.ends_with(kEnd) || name.size() < kBegin.size() + kEnd.size()) return false;
    const auto rank = parse_integer<std::size_t>(name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size()));
    return rank && name == data_file_name(*rank);
  };
  std::error_code failed;
  if (!fs::is_directory(fs::symlink_status(folder, failed))) return folder;
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    if ((name != kManifestFile && !is_data_file(name)) || !fs::is_regular_file(fs::symlink_status(path, failed)))
      return path;
  }
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

void FolderIo::make_folder(const std::string& path) const {
  tell(watch_, FileOp::make_folder, path);
  if (::mkdir(path.c_str(), kFolderMode) == 0) {
    static_cast<void>(::chmod(path.c_str(), kFolderMode));  // a file system without modes has none to set
    return;
  }
  const int error = errno;
  std::error_code failed;
  if (error != EEXIST || !fs::is_directory(path, failed)) fail_to(FileOp::make_folder, error, path);
}

void FolderIo::rename(const std::string& from, const std::string& to) const {
  tell(watch_, FileOp::rename, from);
  // Not even an empty folder may be replaced.
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  const int error = errno;
  std::error_code failed;
  if (error != EINVAL && error != ENOSYS) fail_to(FileOp::rename, error, to);
  if (fs::exists(fs::symlink_status(to, failed))) fail_to(FileOp::rename, EEXIST, to);
  if (::rename(from.c_str(), to.c_str()) != 0) fail_to(FileOp::rename, errno, to);
}

void FolderIo::sync_folder(const std::string& path) const {
  tell(watch_, FileOp::sync_folder, path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_to(FileOp::sync_folder, errno, path);
  // Some file systems cannot sync a folder and say so; it is as durable there as it gets.
  const int error = ::fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  ::close(descriptor);
  if (error != 0) fail_to(FileOp::sync_folder, error, path);
}

void FolderIo::remove_folder(const std::string& path) const {
  std::error_code failed;
  if (!fs::exists(fs::symlink_status(path, failed))) return;
  if (const std::string foreign = foreign_path(path); !foreign.empty())
    throw Error(ExitCode::cannot_create, "this is not a checkpoint's, and is not removed with it", foreign,
                "move it elsewhere");
  tell(watch_, FileOp::remove, path);
  for (const std::string& name : names_in(path)) {
    fs::remove(fs::path(path) / name, failed);
    if (failed) fail_to(FileOp::remove, failed.value(), path + "/" + name);
  }
  fs::remove(path, failed);
  if (failed) fail_to(FileOp::remove, failed.value(), path);
}

FileWriter::FileWriter(std::string path, std::int64_t reserve_bytes, FileWatch* watch)
    : path_(std::move(path)), watch_(watch) {
  this->watch(FileOp::create);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode);
  if (descriptor_ < 0) fail(FileOp::create, errno);
  static_cast<void>(::fchmod(descriptor_, kFileMode));
  try {
    this->watch(FileOp::reserve);
    // Not posix_fallocate, which writes every block where the file system cannot reserve: there it is found full while
    // writing.
    const bool is_reserved = reserve_bytes <= 0 || ::fallocate(descriptor_, 0, 0, reserve_bytes) == 0;
    if (!is_reserved && errno != EOPNOTSUPP && errno != EINVAL && errno != ENODEV && errno != ENOSYS)
      fail(FileOp::reserve, errno);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::watch(FileOp op) const { tell(watch_, op, path_); }

void FileWriter::fail(FileOp op, int error) const { fail_to(op, error, path_); }

void FileWriter::write(const void* data, std::size_t bytes) {
  ZS_CHECK(descriptor_ >= 0, "write to {} after finish", path_);
  watch(FileOp::write);
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {  // a disk that fills up takes a part first, without an error
    const ssize_t count = ::write(descriptor_, next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail(FileOp::write, count < 0 ? errno : ENOSPC);
    next += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void FileWriter::finish() {
  ZS_CHECK(descriptor_ >= 0, "second finish of {}", path_);
  watch(FileOp::sync);
  // A failed fsync is final: the kernel may have dropped the data and call the next one a success.
  if (::fsync(descriptor_) != 0) fail(FileOp::sync, errno);
  watch(FileOp::close);
  const int closed = ::close(descriptor_), error = errno;
  descriptor_ = -1;
  if (closed != 0) fail(FileOp::close, error);
}

FileReader::FileReader(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK a pipe in the file's place would wait for ever.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) refuse(errno);
  struct stat status {};
  const bool is_file = ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  if (!is_file) {
    ::close(descriptor_);
    fail("is no file");
  }
  bytes_ = status.st_size;
}

FileReader::~FileReader() { ::close(descriptor_); }

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
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor_, next, bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(errno);
    if (count == 0) fail_at(offset, "ends too early");
    next += count;
    offset += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

std::string FileReader::read_all(std::int64_t most) const {
  if (bytes_ > most) fail(fmt::format("has {} bytes, more than {}", bytes_, most));
  std::string text(static_cast<std::size_t>(bytes_), '\0');
  read(0, text.data(), text.size());
  return text;
}

}  // namespace zs
