#include "model/data/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "runtime/base/check.h"
#include "runtime/base/file_modes.h"
#include "runtime/base/parse_integer.h"

namespace zs {

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  if (std::error_code failed; std::filesystem::is_directory(path_, failed))
    throw Error(ExitCode::cannot_create, "a folder is in the way of the file", path_, "name a file");
  // The process id and O_EXCL keep two writers of one path apart; a number is left over only by a killed process.
  for (int attempt = 0; attempt < 100 && descriptor_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.{}-{}.tmp", path_, ::getpid(), attempt);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode);
    if (descriptor_ < 0 && errno != EEXIST) break;
  }
  if (descriptor_ < 0)
    throw Error(ExitCode::cannot_create, fmt::format("cannot create the file: {}", system_reason(errno)), path_,
                "check the folder's permissions");
  has_temporary_ = true;
  static_cast<void>(::fchmod(descriptor_, kFileMode));
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (has_temporary_) ::unlink(temporary_.c_str());
}

void OutputFile::fail(const char* operation, int error) const {
  throw Error(ExitCode::io, fmt::format("{} failed: {}", operation, system_reason(error)), path_, "free some space");
}

void OutputFile::write(const void* data, std::size_t bytes) {
  ZS_CHECK(descriptor_ >= 0, "write to {} after commit", path_);
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(descriptor_, next, bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("write", errno);
    next += count;
    bytes -= static_cast<std::size_t>(count);
    written_ += static_cast<std::size_t>(count);
  }
}

void OutputFile::overwrite(std::size_t offset, const void* data, std::size_t bytes) {
  ZS_CHECK(descriptor_ >= 0 && offset + bytes <= written_, "overwrite of {} bytes at {} of {}", bytes, offset,
           written_);
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pwrite(descriptor_, next, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("write", errno);
    next += count;
    offset += static_cast<std::size_t>(count);
    bytes -= static_cast<std::size_t>(count);
  }
}

void OutputFile::publish() {
  ZS_CHECK(descriptor_ >= 0, "second commit of {}", path_);
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0) fail("close", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename", errno);
  has_temporary_ = false;
}

void OutputFile::commit() {
  ZS_CHECK(descriptor_ >= 0, "second commit of {}", path_);
  if (::fsync(descriptor_) != 0) fail("fsync", errno);
  publish();
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  const int parent = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) fail("opening the folder", errno);
  // Some file systems cannot sync a folder and say so; the rename is as durable there as it gets.
  const int error = ::fsync(parent) == 0 || errno == EINVAL ? 0 : errno;
  ::close(parent);
  if (error != 0) fail("fsync of the folder", error);
}

std::optional<std::string> leftover_of(const std::string& name) {
  constexpr std::string_view kEnd = ".tmp";
  if (!name.ends_with(kEnd)) return std::nullopt;
  const std::string_view text = std::string_view(name).substr(0, name.size() - kEnd.size());
  const auto dot = text.rfind('.'), dash = text.rfind('-');
  if (dot == text.npos || dash == text.npos || dash < dot || dot == 0) return std::nullopt;
  const auto pid = parse_integer<pid_t>(text.substr(dot + 1, dash - dot - 1));
  const auto attempt = parse_integer<int>(text.substr(dash + 1));
  if (!pid || !attempt || *pid <= 0 || *attempt < 0 || *pid == ::getpid()) return std::nullopt;
  return std::string(text.substr(0, dot));
}

void write_file_atomically(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

}  // namespace zs
