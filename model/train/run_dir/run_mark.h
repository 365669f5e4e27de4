#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace zs {

/// The mark by which a run knows its own: RUN/zshard-run.txt, a first line that says what it is, then a line for each
/// name in the run's folder that the run has written or is about to. A folder without it is no run, and what it does
/// not list was written by somebody else. A value; only the rank that writes the run's files changes it. Throws
/// Error(cannot_create) or Error(io).
class RunMark {
 public:
  static constexpr const char* kFile = "zshard-run.txt";
  static constexpr const char* kFirstLine = "zshard run 1\n";

  /// The mark in `dir`; nothing where no run has left one: a link, a folder or another text of that name is none.
  static std::optional<RunMark> find(const std::string& dir);

  /// Marks `name`, a path within the folder, before the run writes it: on the disk, when this returns. Until `wrote`,
  /// whatever is there counts as the run's, for it may die in between.
  void begin(const std::string& name);
  /// `name`, a file, is whole: from here on only a file with these bytes is the run's (compared are its length, begin
  /// and end).
  void wrote(const std::string& name);

  /// True if the run has ever written `name`.
  bool has(const std::string& name) const { return entries_.contains(name); }
  /// True if the file that is there now is the one that the run wrote. No link, and nothing else, ever is.
  bool is_own_file(const std::string& name) const;

 private:
  explicit RunMark(std::string dir) : dir_(std::move(dir)) {}
  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  void append(const std::string& line);

  std::string dir_;
  std::map<std::string, std::string> entries_;  // name -> fingerprint; empty: being written, or no file
};

/// "checkpoints/step-N".
std::string checkpoint_name(std::int64_t step);

}  // namespace zs
