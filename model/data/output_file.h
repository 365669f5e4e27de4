#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file.h"

namespace zs {

/// Rule of what an option that writes to a named place may replace.
struct OutputRule {
  /// True of a file as the same option writes it. Nothing: only a free name will do.
  std::function<bool(const std::string& path)> is_own = {};
  std::vector<std::string> reads = {};  ///< files that the same call reads
};

/// For every output that is named on a command line or in a configuration, before the work and again when it is done:
/// Error(cannot_create) unless nothing is at `path`, or a file that the rule lets go. A link, a folder, a pipe and a
/// device stay, whatever the rule says.
void check_output(const std::string& path, const OutputRule& rule = {});

/// A file that appears whole or not at all: written beside its place under a temporary name, then synced and renamed by
/// commit(). Owns descriptor and temporary file; without commit() the destructor removes it, and what a killed process
/// has left is removed by the next one that writes there. One thread uses it. Throws Error(cannot_create) when it
/// cannot be opened and Error(io) when anything later fails; after that only destruction is legal.
class OutputFile {
 public:
  /// With a rule, `check_output` and again before it takes its name.
  explicit OutputFile(std::string path, std::optional<OutputRule> rule = std::nullopt);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& temporary() const { return temporary_; }
  void write(const void* data, std::size_t bytes);
  /// Overwrites bytes that are written already.
  void overwrite(std::size_t offset, const void* data, std::size_t bytes);
  /// `before`: is called when all is on the disk but the name.
  void commit(const std::function<void()>& before = {});
  /// Commits without syncing: quick, and a loss of power may take the file.
  void publish();

 private:
  void check(const char* operation, int error) const;
  void rename();

  std::string path_, temporary_;
  std::optional<OutputRule> rule_;
  File file_;
  std::size_t written_ = 0;
  bool has_temporary_ = false;
};

/// A new file beside `path`, and its name: "a.123-0.tmp" of "a". Its lock says that it is being written: those that
/// nobody has are removed first.
File create_temporary(const std::string& path, std::string& temporary);

/// Name of the file that an OutputFile of another process was writing, where `name` is that of its temporary file: "a"
/// of "a.123-0.tmp". Nothing for any other name, nor for a file of this process, which may still be at it.
std::optional<std::string> leftover_of(const std::string& name);
/// The leftovers of `path` beside it.
std::vector<std::string> leftovers_beside(const std::string& path);

void write_file_atomically(const std::string& path, std::string_view content);

}  // namespace zs
