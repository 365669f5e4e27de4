#include "model/train/run_dir/run_mark.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "runtime/base/check.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

constexpr off_t kLargest = off_t{64} << 20;  // a line for each checkpoint that was ever saved

/// A regular file that is open for reading, or for appending; nothing else ever is.
class PlainFile {
 public:
  PlainFile(const std::string& path, int flags)
      : descriptor_(::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) {
    if (descriptor_ < 0) {
      error = errno;
    } else if (struct stat status{}; ::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
      bytes = status.st_size;
    } else {
      error = ENOENT;  // as if it were not there
    }
  }
  ~PlainFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  PlainFile(const PlainFile&) = delete;
  PlainFile& operator=(const PlainFile&) = delete;

  /// The bytes [begin, begin + count), or as many as there are.
  std::string read(off_t begin, off_t count) {
    std::string text(static_cast<std::size_t>(count), '\0');
    std::size_t done = 0;
    for (ssize_t got = 1; got > 0 && done < text.size(); done += static_cast<std::size_t>(std::max<ssize_t>(got, 0))) {
      got = ::pread(descriptor_, text.data() + done, text.size() - done, begin + static_cast<off_t>(done));
      if (got < 0) error = errno;
    }
    text.resize(done);
    return text;
  }
  int descriptor() const { return descriptor_; }

  off_t bytes = 0;
  int error = 0;

 private:
  int descriptor_;
};

/// Fingerprint of a regular file: its length, and a hash of its begin and end. Empty for anything else, and for what
/// cannot be read.
std::string fingerprint(const std::string& path) {
  constexpr off_t kPart = 64 << 10;
  PlainFile file(path, O_RDONLY);
  if (file.error != 0) return {};
  const std::string text =
      file.read(0, std::min(file.bytes, kPart)) + file.read(std::max<off_t>(file.bytes - kPart, 0), kPart);
  return file.error != 0 ? std::string() : fmt::format("{} {:016x}", file.bytes, XXH3_64bits(text.data(), text.size()));
}

bool is_there_none(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENXIO; }

Error cannot_read(const std::string& path, int error) {
  return Error(ExitCode::cannot_create, "a run's mark cannot be read: " + system_reason(error), path,
               "check the permissions");
}

}  // namespace

std::optional<RunMark> RunMark::find(const std::string& dir) {
  RunMark mark(dir);
  PlainFile file(mark.path(kFile), O_RDONLY);
  if (is_there_none(file.error)) return std::nullopt;
  if (file.error != 0) throw cannot_read(mark.path(kFile), file.error);
  if (file.bytes > kLargest) return std::nullopt;
  const std::string text = file.read(0, file.bytes);
  if (file.error != 0) throw cannot_read(mark.path(kFile), file.error);
  const std::string_view first = kFirstLine;
  if (text.size() < first.size())
    return first.starts_with(text) ? std::optional(mark) : std::nullopt;  // died while it made it
  if (!text.starts_with(first)) return std::nullopt;
  std::istringstream lines(text.substr(first.size()));
  for (std::string line; std::getline(lines, line) && !lines.eof();) {  // a line that is torn says nothing
    const auto space = line.find(' ');
    mark.entries_[line.substr(0, space)] = space == line.npos ? "" : line.substr(space + 1);
  }
  return mark;
}

void RunMark::begin(const std::string& name) {
  append(name);
  entries_[name].clear();
}

void RunMark::wrote(const std::string& name) {
  const std::string now = fingerprint(path(name));
  if (now.empty()) return;  // the file is gone already: whatever comes there is not the run's
  append(name + " " + now);
  entries_[name] = now;
}

bool RunMark::is_own_file(const std::string& name) const {
  const auto entry = entries_.find(name);
  const std::string now = fingerprint(path(name));
  return entry != entries_.end() && !now.empty() && (entry->second.empty() || entry->second == now);
}

void RunMark::append(const std::string& line) {
  PlainFile file(path(kFile), O_RDWR | O_APPEND);
  const auto fail = [&](const char* operation, int error) {
    throw Error(ExitCode::io, fmt::format("{} a run's mark failed: {}", operation, system_reason(error)), path(kFile),
                "see that it is there, and that there is space");
  };
  if (file.error != 0) fail("opening", file.error);
  const bool is_torn = file.bytes > 0 && file.read(file.bytes - 1, 1) != "\n";
  const std::string text = (is_torn ? "\n" : "") + line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file.descriptor(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("writing", errno);
    done += static_cast<std::size_t>(count);
  }
  if (::fsync(file.descriptor()) != 0 && errno != EINVAL) fail("syncing", errno);
}

std::string checkpoint_name(std::int64_t step) { return step_folder("checkpoints", step); }

}  // namespace zs
