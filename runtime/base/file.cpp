#include "runtime/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

namespace zs {
namespace {

constexpr mode_t kOwnFolder = 0700, kOwnFile = 0600;

/// Network file systems give EINTR where a signal comes, whatever the call.
template <class Call>
auto repeated(const Call& call) noexcept {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

int result_of(int result) noexcept { return result < 0 ? errno : 0; }

int open_at(int folder, const char* name, int flags) noexcept {
  constexpr int kAlways = O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const int descriptor = repeated([&] { return ::openat(folder, name, flags | kAlways, kFileMode); });
  if (descriptor < 0 || (flags & O_CREAT) == 0) return descriptor;
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & kOwnFile) != kOwnFile)
    static_cast<void>(::fchmod(descriptor, status.st_mode | kOwnFile));  // a file system without modes misses none
  return descriptor;
}

int make_folder_at(int folder, const char* name) noexcept {
  if (const int error = result_of(repeated([&] { return ::mkdirat(folder, name, kFolderMode); })); error != 0)
    return error;
  struct stat status {};
  if (::fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) == 0 && (status.st_mode & kOwnFolder) != kOwnFolder)
    static_cast<void>(::fchmodat(folder, name, status.st_mode | kOwnFolder, 0));
  return 0;
}

int rename_at(int folder, const char* from, const char* to) noexcept {
  const int error = result_of(repeated([&] { return ::renameat2(folder, from, folder, to, RENAME_NOREPLACE); }));
  if (error != EINVAL && error != ENOSYS) return error;  // else the file system cannot look and rename at once
  struct stat status {};
  if (::fstatat(folder, to, &status, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  return result_of(repeated([&] { return ::renameat(folder, from, folder, to); }));
}

/// The byte that a writer's lock is on.
struct flock lock_of(short type) noexcept {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

}  // namespace

bool is_no_space(int error) { return error == ENOSPC || error == EDQUOT; }

const char* advice_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free some space";
    case EFBIG: return "raise the limit of a file's size (ulimit -f), or use a disk that takes larger files";
    case EACCES:
    case EPERM: return "check the permissions";
    case EROFS: return "use a disk that can be written to";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    case EISDIR: return "a folder is in the way: use another name";
    case ELOOP: return "a link is in the way: use another name";
    case ENOENT:
    case ENOTDIR:
    case ESTALE: return "see that its folder is there, and stays there";
    default: return "see what the system says of this disk, and try again";
  }
}

Error file_error(ExitCode code, std::string_view operation, int error, const std::string& path) {
  return {code, fmt::format("{} failed: {}", operation, system_reason(error)), path, advice_for(error)};
}

File::File(int descriptor) noexcept : descriptor_(descriptor), error_(descriptor < 0 ? errno : 0) {}

File File::open(const std::string& path, int flags) noexcept { return File(open_at(AT_FDCWD, path.c_str(), flags)); }

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), error_(std::exchange(other.error_, EBADF)) {}

File& File::operator=(File&& other) noexcept {
  if (this == &other) return *this;
  static_cast<void>(close());
  descriptor_ = std::exchange(other.descriptor_, -1);
  error_ = std::exchange(other.error_, EBADF);
  return *this;
}

File::~File() { static_cast<void>(close()); }

bool File::is_regular() const noexcept {
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
}

std::int64_t File::bytes() const noexcept {
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 ? status.st_size : 0;
}

File::Count File::read_at(std::int64_t offset, void* data, std::size_t bytes) const noexcept {
  Count count;
  auto* const begin = static_cast<char*>(data);
  while (count.bytes < bytes) {
    const ssize_t got = repeated([&] {
      return ::pread(descriptor_, begin + count.bytes, bytes - count.bytes,
                     static_cast<off_t>(offset) + static_cast<off_t>(count.bytes));
    });
    if (got < 0) count.error = errno;
    if (got <= 0) break;
    count.bytes += static_cast<std::size_t>(got);
  }
  return count;
}

File::Count File::read(void* data, std::size_t bytes) const noexcept {
  const ssize_t got = repeated([&] { return ::read(descriptor_, data, bytes); });
  return got < 0 ? Count{0, errno} : Count{static_cast<std::size_t>(got), 0};
}

/// A disk that fills up takes a part first, without an error, and then nothing.
int File::write(std::string_view bytes) const noexcept {
  while (!bytes.empty()) {
    const ssize_t count = repeated([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
    if (count <= 0) return count < 0 ? errno : ENOSPC;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return 0;
}

int File::write_at(std::int64_t offset, std::string_view bytes) const noexcept {
  while (!bytes.empty()) {
    const ssize_t count =
        repeated([&] { return ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (count <= 0) return count < 0 ? errno : ENOSPC;
    bytes.remove_prefix(static_cast<std::size_t>(count));
    offset += count;
  }
  return 0;
}

int File::truncate(std::int64_t bytes) const noexcept {
  return result_of(repeated([&] { return ::ftruncate(descriptor_, static_cast<off_t>(bytes)); }));
}

/// Not posix_fallocate, which writes to every block where the file system cannot reserve.
int File::reserve(std::int64_t begin, std::int64_t bytes) const noexcept {
  const int error = result_of(
      repeated([&] { return ::fallocate(descriptor_, 0, static_cast<off_t>(begin), static_cast<off_t>(bytes)); }));
  return error == EINVAL || error == ENODEV || error == ENOSYS ? EOPNOTSUPP : error;
}

int File::sync() const noexcept {
  const int error = result_of(repeated([&] { return ::fsync(descriptor_); }));
  return error == EINVAL ? 0 : error;
}

/// Linux has closed it even where a signal came.
int File::close() noexcept {
  if (descriptor_ < 0) return 0;
  const int error = result_of(::close(std::exchange(descriptor_, -1)));
  return error == EINTR ? 0 : error;
}

/// A reader's lock says that no writer has one.
File::Lock File::lock() const noexcept {
  struct flock wanted = lock_of(F_WRLCK);
  if (repeated([&] { return ::fcntl(descriptor_, F_OFD_SETLK, &wanted); }) == 0) return Lock::taken;
  return (errno == EAGAIN || errno == EACCES) && is_locked() ? Lock::others : Lock::unknown;
}

bool File::is_locked() const noexcept {
  struct flock found = lock_of(F_WRLCK);
  return ::fcntl(descriptor_, F_OFD_GETLK, &found) == 0 && found.l_type == F_WRLCK;
}

bool File::is_unlinked() const noexcept {
  struct stat status {};
  return ::fstat(descriptor_, &status) == 0 && status.st_nlink == 0;
}

Folder Folder::open(const std::string& path, Links links) noexcept {
  const int flags = O_RDONLY | O_DIRECTORY | (links == Links::refused ? O_NOFOLLOW : 0);
  return {path, File(open_at(AT_FDCWD, path.empty() ? "." : path.c_str(), flags))};
}

bool Folder::is_in_place() const noexcept {
  struct stat here {
  }, there{};
  return ::fstat(descriptor(), &here) == 0 && ::stat(path_.empty() ? "." : path_.c_str(), &there) == 0 &&
         here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

Folder Folder::folder(const std::string& name) const noexcept {
  return {path_of(name), file(name, O_RDONLY | O_DIRECTORY)};
}

/// In a folder that is not open there is nothing, for the same reason.
File Folder::file(const std::string& name, int flags) const noexcept {
  if (is_open()) return File(open_at(descriptor(), name.c_str(), flags | O_NOFOLLOW));
  errno = error() != 0 ? error() : ENOENT;
  return File(-1);
}

unsigned Folder::type_of(const std::string& name) const noexcept {
  struct stat status {};
  return ::fstatat(descriptor(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 ? status.st_mode & S_IFMT : 0;
}

/// From a descriptor of its own, which begins at the first name.
int Folder::names(std::vector<std::string>& names) const {
  const int descriptor = open_at(this->descriptor(), ".", O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return errno;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::fdopendir(descriptor), ::closedir);
  if (!entries) return File(descriptor).is_open() ? ENOMEM : EBADF;
  for (errno = 0; const dirent* const entry = ::readdir(entries.get()); errno = 0) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return errno;
}

int Folder::make_folder(const std::string& name) const noexcept { return make_folder_at(descriptor(), name.c_str()); }

int Folder::rename(const std::string& from, const std::string& to) const noexcept {
  return rename_at(descriptor(), from.c_str(), to.c_str());
}

int Folder::remove_file(const std::string& name) const noexcept {
  return result_of(repeated([&] { return ::unlinkat(descriptor(), name.c_str(), 0); }));
}

int Folder::remove_folder(const std::string& name) const noexcept {
  return result_of(repeated([&] { return ::unlinkat(descriptor(), name.c_str(), AT_REMOVEDIR); }));
}

int make_folder(const std::string& path) noexcept { return make_folder_at(AT_FDCWD, path.c_str()); }

int rename_to_free(const std::string& from, const std::string& to) noexcept {
  return rename_at(AT_FDCWD, from.c_str(), to.c_str());
}

int exchange_names(const std::string& a, const std::string& b) noexcept {
  const int error =
      result_of(repeated([&] { return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE); }));
  if (error != EINVAL && error != ENOSYS) return error;
  const std::string aside = a + ".old";
  if (const int first = rename_to_free(b, aside); first != 0) return first;
  const int second = rename_to_free(a, b);
  return second != 0 ? second : rename_to_free(aside, a);
}

int sync_folder(const std::string& path) noexcept {
  const Folder folder = Folder::open(path, Folder::Links::followed);
  return folder.is_open() ? folder.sync() : folder.error();
}

}  // namespace zs
