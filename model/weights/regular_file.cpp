#include "model/weights/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/not_fetched.h"

namespace zs {

RegularFile::RegularFile(std::string path) : path_(std::move(path)) {
  descriptor_ =
      ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer must not hold it up
  if (descriptor_ < 0)
    throw Error(ExitCode::model, fmt::format("cannot open the file: {}", system_reason(errno)), path_,
                "check the path and its permissions");
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    throw Error(ExitCode::model, "this is no regular file", path_, "name a file of weights, or its folder");
  }
  bytes_ = status.st_size;
  std::array<char, 64> head{};
  const ssize_t have = ::pread(descriptor_, head.data(), head.size(), 0);
  if (have > 0 && is_lfs_pointer({head.data(), static_cast<std::size_t>(have)})) {
    ::close(descriptor_);
    throw Error(ExitCode::model, kLfsPointer, path_, kFetchLfs);
  }
  identity_ = fmt::format("{}.{}.{}.{}.{}", status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                          status.st_mtim.tv_nsec);
}

RegularFile::~RegularFile() { ::close(descriptor_); }

void RegularFile::read(std::int64_t offset, void* out, std::int64_t bytes) const {
  auto* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor_, next, static_cast<std::size_t>(bytes), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      throw Error(ExitCode::model, fmt::format("cannot read the file: {}", system_reason(errno)),
                  fmt::format("{}@{}", path_, offset), "check the disk");
    if (count == 0)
      throw Error(ExitCode::model, "the file became shorter while it was read", fmt::format("{}@{}", path_, offset),
                  "leave it alone, and start again");
    next += count, offset += count, bytes -= count;
  }
}

std::string read_text_file(const std::string& path, std::int64_t most) {
  const RegularFile file(path);
  if (file.bytes() > most)
    throw Error(ExitCode::model, fmt::format("the file has {} bytes, more than {}", file.bytes(), most), path,
                "name the right file");
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, text.data(), file.bytes());
  return text;
}

}  // namespace zs
