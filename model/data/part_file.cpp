#include "model/data/part_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/file_modes.h"

namespace zs {
namespace {

Error already_there(const std::string& path) {
  return {ExitCode::cannot_create, "the file exists", path, "name a new one, or remove it"};
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

}  // namespace

PartFile PartFile::create(const std::string& path) {
  if (is_there(path)) throw already_there(path);
  const std::string temporary = fmt::format("{}.{}-0.tmp", path, ::getpid());
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode);
  if (descriptor < 0)
    throw Error(ExitCode::cannot_create, fmt::format("cannot create the file: {}", system_reason(errno)), path,
                "check the folder's permissions");
  static_cast<void>(::fchmod(descriptor, kFileMode));
  return {path, temporary, descriptor, true};
}

PartFile PartFile::open(const std::string& path, const std::string& temporary) {
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0)
    throw Error(ExitCode::cannot_create,
                fmt::format("this rank cannot open what the first has created: {}", system_reason(errno)), path,
                "write where all hosts see the same files");
  return {path, temporary, descriptor, false};
}

PartFile::PartFile(PartFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      owns_file_(std::exchange(other.owns_file_, false)) {}

PartFile::~PartFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (owns_file_) ::unlink(temporary_.c_str());
}

void PartFile::fail(const char* operation, int error) const {
  throw Error(ExitCode::io, fmt::format("{} failed: {}", operation, system_reason(error)), path_, "free some space");
}

void PartFile::write(std::int64_t offset, const void* data, std::size_t bytes) {
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pwrite(descriptor_, next, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("write", count < 0 ? errno : ENOSPC);
    next += count;
    offset += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void PartFile::finish() {
  if (::fsync(descriptor_) != 0) fail("fsync", errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close", errno);
}

void PartFile::publish() {
  ZS_CHECK(owns_file_, "{} is another rank's to publish", path_);
  int error = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0 ? 0 : errno;
  if (error == EINVAL || error == ENOSYS) {  // the file system cannot look and rename at once
    if (is_there(path_))
      error = EEXIST;
    else
      error = ::rename(temporary_.c_str(), path_.c_str()) == 0 ? 0 : errno;
  }
  if (error == EEXIST) throw already_there(path_);
  if (error != 0) fail("rename", error);
  owns_file_ = false;
}

}  // namespace zs
