#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file.h"

namespace zs {

/// The files of a checkpoint's folder.
inline constexpr const char* kManifestFile = "manifest.json";
std::string data_file_name(std::size_t rank);  ///< "rank-3.bin"

/// The bytes are not those that were written. Whatever else is wrong with a checkpoint, as a file that may not be read,
/// or a format of another version, is a plain Error(checkpoint): the checkpoint may be good.
class DamagedCheckpoint final : public Error {
 public:
  DamagedCheckpoint(std::string what, std::string where, std::string todo)
      : Error(ExitCode::checkpoint, std::move(what), std::move(where), std::move(todo)) {}
};

/// The names in a folder, in no order; none where there is no folder. Error(checkpoint) where they cannot be had.
std::vector<std::string> names_in(const std::string& folder);
std::vector<std::string> names_in(const Folder& folder);

/// The first path that keeps the folder `name` from being a checkpoint's, whole or not: a name that no save writes, no
/// regular file, or the folder itself, where it is none. Empty: nothing does.
std::string foreign_path(const Folder& root, const std::string& name);

/// Operation of a save on the disk.
enum class FileOp : std::uint8_t { make_folder, create, reserve, write, sync, close, sync_folder, rename, remove };
const char* name_of(FileOp op);

/// Hears of every change of the disk before it is made. What it throws takes the place of the change: so tests end a
/// save anywhere. Called by any rank's host thread.
class FileWatch {
 public:
  virtual ~FileWatch() = default;
  virtual void before(FileOp op, const std::string& path) = 0;
};

/// The changes of folders that a save is made of. All of them throw Error(io), or Error(cannot_create) where the place
/// cannot be used at all.
class FolderIo {
 public:
  explicit FolderIo(FileWatch* watch) : watch_(watch) {}

  /// May be there already; the folder above must be. No link is one.
  Folder make_folder(const std::string& path) const;
  Folder make_folder(const Folder& root, const std::string& name) const;
  void rename(const Folder& root, const std::string& from, const std::string& to) const;
  /// Makes the folder's entries durable.
  void sync_folder(const Folder& folder) const;
  /// A checkpoint's folder with its files; nothing there is fine. One that holds anything else stays whole:
  /// Error(cannot_create).
  void remove_folder(const Folder& root, const std::string& name) const;
  FileWatch* watch() const { return watch_; }

 private:
  FileWatch* watch_;
};

/// A new file, written from its begin to its end. Owns the descriptor; one thread uses it. Without finish() it stays as
/// it is.
class FileWriter {
 public:
  /// `reserve_bytes`: taken on the disk at once, so that a disk too small is found out first. The file must not be
  /// there yet.
  FileWriter(const Folder& folder, const std::string& name, std::int64_t reserve_bytes, FileWatch* watch);

  void write(const void* data, std::size_t bytes);
  /// Syncs and closes.
  void finish();

 private:
  void watch(FileOp op) const;
  void check(FileOp op, int error) const;

  std::string path_;
  FileWatch* watch_;
  File file_;
};

/// A file that is read anywhere. Owns the descriptor; one thread uses it. Throws DamagedCheckpoint, and
/// Error(checkpoint) where the system refuses what it asks for.
class FileReader {
 public:
  /// A regular file, no link.
  explicit FileReader(std::string path);
  FileReader(const Folder& folder, const std::string& name);

  std::int64_t bytes() const { return bytes_; }
  void read(std::int64_t offset, void* data, std::size_t bytes) const;
  /// All of it; more than `most` bytes are an error.
  std::string read_all(std::int64_t most) const;
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_at(std::int64_t offset, const std::string& what) const;
  /// A format that this program does not read, which is no damage.
  [[noreturn]] void fail_version(std::uint32_t found, std::uint32_t expected) const;

 private:
  FileReader(std::string path, File file);
  [[noreturn]] void refuse(int error) const;

  std::string path_;
  File file_;
  std::int64_t bytes_ = 0;
};

/// Advice for every user of a checkpoint that cannot be read.
inline constexpr const char* kTryAnother = "use another checkpoint";

}  // namespace zs
