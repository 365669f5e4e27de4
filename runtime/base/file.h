#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/check.h"

namespace zs {

/// Modes of new folders and files, of which the umask takes. Their owner may always use them: a run could not go on
/// otherwise.
inline constexpr unsigned kFolderMode = 0777, kFileMode = 0666;

/// Test of an error: a disk or a quota is exhausted.
bool is_no_space(int error);
/// Advice for the user about a file that the system refuses.
const char* advice_for(int error);
/// "fsync failed: Input/output error", with that advice.
Error file_error(ExitCode code, std::string_view operation, int error, const std::string& path);

/// An open file, whose descriptor it owns; one thread uses it. Whatever a signal interrupts or moves only in part goes
/// on. What returns an int returns 0 or the system's error; nothing throws. A file that could not be opened has the
/// error, and everything else fails with that.
class File {
 public:
  File() = default;
  explicit File(int descriptor) noexcept;  ///< below 0: not open, because of errno
  /// Waits for no pipe. A new file has kFileMode. O_NOFOLLOW is the caller's to add.
  static File open(const std::string& path, int flags) noexcept;
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();

  bool is_open() const { return descriptor_ >= 0; }
  int error() const { return error_; }
  int descriptor() const { return descriptor_; }
  bool is_regular() const noexcept;
  std::int64_t bytes() const noexcept;  ///< its length; 0 where the system does not say

  /// Count of bytes read: fewer than asked for at the file's end, or where there is an error.
  struct Count {
    std::size_t bytes = 0;
    int error = 0;
  };
  Count read_at(std::int64_t offset, void* data, std::size_t bytes) const noexcept;
  /// From where the last read or write ended: what one call gives.
  Count read(void* data, std::size_t bytes) const noexcept;

  int write(std::string_view bytes) const noexcept;
  int write_at(std::int64_t offset, std::string_view bytes) const noexcept;
  int truncate(std::int64_t bytes) const noexcept;
  /// Takes space from the disk. Where the file system cannot: EOPNOTSUPP, and nothing has happened.
  int reserve(std::int64_t begin, std::int64_t bytes) const noexcept;
  /// Syncs; where the file system cannot, the file is as durable as it gets.
  int sync() const noexcept;
  int close() noexcept;

  /// Takes the lock that a file's writer has until it is closed, or the process ends. Who may only read the file can
  /// neither have it nor keep it from a writer.
  enum class Lock : std::uint8_t { taken, others, unknown };  ///< unknown: a file system without locks
  Lock lock() const noexcept;
  bool is_locked() const noexcept;  ///< by another writer
  bool is_unlinked() const noexcept;

 private:
  int descriptor_ = -1, error_ = 0;
};

/// A folder that was opened once: what is done by a name is done in it, wherever its path leads meanwhile, and no link
/// is followed at that name. A value: copies share the descriptor. Integers as File has them.
class Folder {
 public:
  Folder() = default;
  /// Not open where the path ends in a link, unless it may.
  enum class Links : std::uint8_t { refused, followed };
  static Folder open(const std::string& path, Links links = Links::refused) noexcept;

  bool is_open() const { return file_ && file_->is_open(); }
  int error() const { return file_ ? file_->error() : 0; }
  const std::string& path() const { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  /// True while the path leads to it.
  bool is_in_place() const noexcept;

  Folder folder(const std::string& name) const noexcept;
  File file(const std::string& name, int flags) const noexcept;
  /// Type of what has the name, a link itself; 0 where there is nothing, or it cannot be said.
  unsigned type_of(const std::string& name) const noexcept;
  int names(std::vector<std::string>& names) const;
  int make_folder(const std::string& name) const noexcept;
  /// Replaces nothing, not even an empty folder: EEXIST.
  int rename(const std::string& from, const std::string& to) const noexcept;
  int remove_file(const std::string& name) const noexcept;
  int remove_folder(const std::string& name) const noexcept;
  int sync() const noexcept { return file_ ? file_->sync() : EBADF; }

 private:
  Folder(std::string path, File file) : path_(std::move(path)), file_(std::make_shared<File>(std::move(file))) {}
  int descriptor() const { return file_ ? file_->descriptor() : -1; }

  std::string path_;
  std::shared_ptr<File> file_;
};

/// Makes a folder where nothing is.
int make_folder(const std::string& path) noexcept;
/// Renames, where nothing has the new name: else EEXIST.
int rename_to_free(const std::string& from, const std::string& to) noexcept;
/// Gives what is there the other's name: of a moment without either where the file system cannot do both at once.
int exchange_names(const std::string& a, const std::string& b) noexcept;
/// Makes the entries of a folder durable.
int sync_folder(const std::string& path) noexcept;

}  // namespace zs
