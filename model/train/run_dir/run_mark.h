#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {

/// The mark by which a run knows its own: RUN/zshard-run.txt, a first line that says what it is, a line with the run's
/// id, then a line for each name in the run's folder that the run has written or is about to. A folder without it is no
/// run, and what it does not list was written by somebody else. The folder is opened once: whatever its path leads to
/// later, the mark stays that of this run. A value; only the rank that writes the run's files changes it. Throws
/// Error(cannot_create) or Error(io).
class RunMark {
 public:
  static constexpr const char* kFile = "zshard-run.txt";
  static constexpr const char* kFirstLine = "zshard run 1\n";

  /// The mark in `dir`; nothing where no run has left one: a link, a folder or another text of that name is none.
  static std::optional<RunMark> find(const std::string& dir);
  /// The text of a mark that lists nothing, with a new id.
  static std::string fresh();

  /// Before the run writes `name`, a path within its folder: on the disk, when this returns. Until `wrote`, whatever is
  /// there counts as the run's, for it may die in between. Error(io) where the folder is not in its place any more.
  void begin(const std::string& name);
  /// `name`, a file, is whole: from here on only a file with these bytes is the run's (compared are its length, begin
  /// and end).
  void wrote(const std::string& name);
  /// `path`, which is outside of the run's folder, is about to get what has this fingerprint (`fingerprint_of`).
  void exports(const std::string& path, const std::string& fingerprint);

  /// True if the run has ever written `name`.
  bool has(const std::string& name) const { return entries_.contains(name); }
  /// True if the file that is there now is the one that the run wrote. No link, and nothing else, ever is.
  bool is_own_file(const std::string& name) const;
  /// True if the run has exported what is at `path` now.
  bool is_own_export(const std::string& path) const;

  const Folder& folder() const { return folder_; }
  /// RUN/checkpoints, as it is now; not open where there is none, or a link.
  Folder checkpoints() const { return folder_.folder("checkpoints"); }
  /// Test of which checkpoints are the run's.
  CheckpointOwner owner() const;
  /// Id of this run alone. A run of an earlier version gets one when it goes on; until then it is empty.
  const std::string& id() const { return id_; }
  void give_id();

 private:
  explicit RunMark(Folder folder) : folder_(std::move(folder)) {}
  void append(const std::string& line);

  Folder folder_;
  std::string id_;
  std::map<std::string, std::string> entries_;             // name -> fingerprint; empty: being written, or no file
  std::set<std::pair<std::string, std::string>> exports_;  // absolute path, fingerprint
};

/// Fingerprint of a file: its length, and a hash of its begin and end; of a folder those of all files in it. Empty for
/// anything else, for a folder with a folder or a link, and for what cannot be read.
std::string fingerprint_of(const std::string& path);

/// "checkpoints/step-N".
std::string checkpoint_name(std::int64_t step);

}  // namespace zs
