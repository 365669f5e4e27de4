#include "runtime/shard/checkpoint_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

namespace zs {
namespace {

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
  if (::mkdir(path.c_str(), 0755) == 0) return;
  const int error = errno;
  std::error_code failed;
  if (error != EEXIST || !std::filesystem::is_directory(path, failed)) fail_to(FileOp::make_folder, error, path);
}

void FolderIo::rename(const std::string& from, const std::string& to) const {
  tell(watch_, FileOp::rename, from);
  // Not even an empty folder may be replaced.
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  const int error = errno;
  std::error_code failed;
  if (error != EINVAL && error != ENOSYS) fail_to(FileOp::rename, error, to);
  if (std::filesystem::exists(std::filesystem::symlink_status(to, failed))) fail_to(FileOp::rename, EEXIST, to);
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
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, failed))) return;
  tell(watch_, FileOp::remove, path);
  std::filesystem::remove_all(path, failed);
  if (failed) fail_to(FileOp::remove, failed.value(), path);
}

FileWriter::FileWriter(std::string path, std::int64_t reserve_bytes, FileWatch* watch) : path_(std::move(path)), watch_(watch) {
  this->watch(FileOp::create);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail(FileOp::create, errno);
  try {
    this->watch(FileOp::reserve);
    // Not posix_fallocate, which writes every block where the file system cannot reserve: there it is found full while writing.
    const bool is_reserved = reserve_bytes <= 0 || ::fallocate(descriptor_, 0, 0, reserve_bytes) == 0;
    if (!is_reserved && errno != EOPNOTSUPP && errno != EINVAL && errno != ENODEV && errno != ENOSYS) fail(FileOp::reserve, errno);
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
  if (descriptor_ < 0) fail(fmt::format("cannot be read: {}", system_reason(errno)));
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
  throw Error(ExitCode::checkpoint, "a checkpoint's file " + what, path_, kTryAnother);
}

void FileReader::fail_at(std::int64_t offset, const std::string& what) const {
  throw Error(ExitCode::checkpoint, "a checkpoint's file " + what, fmt::format("{}@{}", path_, offset), kTryAnother);
}

void FileReader::read(std::int64_t offset, void* data, std::size_t bytes) const {
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor_, next, bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_at(offset, fmt::format("cannot be read: {}", system_reason(errno)));
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
