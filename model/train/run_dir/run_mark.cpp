#include "model/train/run_dir/run_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <sstream>

#include "model/train/config/toml_text.h"
#include "model/weights/weight_export.h"
#include "runtime/base/file.h"
#include "runtime/base/reader_limits.h"

namespace zs {
namespace {

constexpr std::int64_t kLargest = ReaderLimits::kRunMarkBytes;  // a line for each checkpoint that was ever saved
constexpr std::string_view kId = "id ", kExport = "export ";

/// The bytes [begin, begin + count), or as many as there are; nothing where they cannot be read.
std::optional<std::string> read_part(const File& file, std::int64_t begin, std::int64_t count) {
  std::string text(static_cast<std::size_t>(count), '\0');
  const File::Count got = file.read_at(begin, text.data(), text.size());
  if (got.error != 0) return std::nullopt;
  text.resize(got.bytes);
  return text;
}

std::string fingerprint_of(const File& file) {
  constexpr std::int64_t kPart = 64 << 10;
  if (!file.is_open() || !file.is_regular()) return {};
  const std::int64_t bytes = file.bytes();
  const auto begin = read_part(file, 0, std::min(bytes, kPart)),
             end = read_part(file, std::max<std::int64_t>(bytes - kPart, 0), kPart);
  if (!begin || !end) return {};
  const std::string text = *begin + *end;
  return fmt::format("{} {:016x}", bytes, XXH3_64bits(text.data(), text.size()));
}

bool is_there_none(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENXIO || error == EISDIR;
}

Error cannot_read(const std::string& path, int error) {
  return Error(ExitCode::cannot_create, "a run's mark cannot be read: " + system_reason(error), path,
               "check the permissions");
}

/// An absolute path in one line. A slash at its end says nothing.
std::string line_of(const std::string& path) {
  std::error_code failed;
  std::string text = std::filesystem::absolute(path, failed).lexically_normal().string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return toml_string(text);
}

std::string new_id() {
  std::array<std::uint64_t, 2> number{};
  if (::getrandom(number.data(), sizeof number, 0) != std::ssize(number) * 8)
    throw Error(ExitCode::cannot_create, "the system gives no random number for a run's id: " + system_reason(errno));
  return fmt::format("{:016x}{:016x}", number[0], number[1]);
}

}  // namespace

std::string fingerprint_of(const std::string& named) {
  const std::string path = named.substr(0, named.find_last_not_of('/') + 1);  // with a slash a link would be followed
  const Folder folder = Folder::open(path);
  if (!folder.is_open()) return fingerprint_of(File::open(path, O_RDONLY | O_NOFOLLOW));
  std::vector<std::string> names;
  if (folder.names(names) != 0) return {};
  names.erase(std::remove(names.begin(), names.end(), kWritingMark), names.end());
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) {
    const std::string one = fingerprint_of(folder.file(name, O_RDONLY));
    if (one.empty()) return {};
    text += fmt::format("{}/{}\n", name, one);
  }
  return fmt::format("{} {:016x}", names.size(), XXH3_64bits(text.data(), text.size()));
}

std::optional<RunMark> RunMark::find(const std::string& dir) {
  RunMark mark(Folder::open(dir, Folder::Links::followed));
  const std::string path = mark.folder_.path_of(kFile);
  const File file = mark.folder_.is_open() ? mark.folder_.file(kFile, O_RDONLY) : File();
  const int error = mark.folder_.is_open() ? file.error() : mark.folder_.error();
  if (is_there_none(error)) return std::nullopt;
  if (error != 0) throw cannot_read(path, error);
  if (!file.is_regular() || file.bytes() > kLargest) return std::nullopt;
  const std::string_view first = kFirstLine;
  const auto text = read_part(file, 0, file.bytes());
  if (!text) throw cannot_read(path, EIO);
  if (text->size() < first.size())
    return first.starts_with(*text) ? std::optional(mark) : std::nullopt;  // died while it made it
  if (!text->starts_with(first)) return std::nullopt;
  std::istringstream lines(text->substr(first.size()));
  for (std::string line; std::getline(lines, line) && !lines.eof();) {  // a line that is torn says nothing
    const std::string_view whole = line;
    if (whole.starts_with(kId)) {
      mark.id_ = whole.substr(kId.size());
    } else if (const auto quote = whole.rfind('"'); whole.starts_with(kExport) && quote != whole.npos) {
      mark.exports_.emplace(line.substr(kExport.size(), quote + 1 - kExport.size()),
                            line.substr(std::min(quote + 2, line.size())));
    } else {
      const auto space = line.find(' ');
      mark.entries_[line.substr(0, space)] = space == line.npos ? "" : line.substr(space + 1);
    }
  }
  return mark;
}

std::string RunMark::fresh() { return fmt::format("{}{}{}\n", kFirstLine, kId, new_id()); }

void RunMark::give_id() {
  if (!id_.empty()) return;
  const std::string id = new_id();
  append(fmt::format("{}{}", kId, id));
  id_ = id;
}

CheckpointOwner RunMark::owner() const {
  return {[this](std::int64_t step) { return has(checkpoint_name(step)); }, id_};
}

void RunMark::begin(const std::string& name) {
  if (!folder_.is_in_place())
    throw Error(ExitCode::io, "the run's folder is not where the run began", folder_.path(),
                "leave it there, and go on from its last checkpoint");
  append(name);
  entries_[name].clear();
}

void RunMark::wrote(const std::string& name) {
  const std::string now = fingerprint_of(folder_.file(name, O_RDONLY));
  if (now.empty()) return;  // gone already: whatever comes there is not the run's
  append(name + " " + now);
  entries_[name] = now;
}

void RunMark::exports(const std::string& path, const std::string& fingerprint) {
  const std::string line = line_of(path);
  append(fmt::format("{}{} {}", kExport, line, fingerprint));
  exports_.emplace(line, fingerprint);
}

bool RunMark::is_own_file(const std::string& name) const {
  const auto entry = entries_.find(name);
  const std::string now = fingerprint_of(folder_.file(name, O_RDONLY));
  return entry != entries_.end() && !now.empty() && (entry->second.empty() || entry->second == now);
}

bool RunMark::is_own_export(const std::string& path) const {
  const std::string found = fingerprint_of(path);
  return !found.empty() && exports_.contains({line_of(path), found});
}

void RunMark::append(const std::string& line) {
  const std::string path = folder_.path_of(kFile);
  const auto check = [&](const char* operation, int error) {
    if (error != 0) throw file_error(ExitCode::io, fmt::format("{} a run's mark", operation), error, path);
  };
  const File file = folder_.file(kFile, O_RDWR | O_APPEND);
  check("opening", file.is_open() && !file.is_regular() ? ENOENT : file.error());
  char last = '\n';
  check("reading", file.read_at(std::max<std::int64_t>(file.bytes() - 1, 0), &last, 1).error);
  const bool is_torn = last != '\n';
  check("writing", file.write((is_torn ? "\n" : "") + line + "\n"));
  check("syncing", file.sync());
}

std::string checkpoint_name(std::int64_t step) { return step_folder("checkpoints", step); }

}  // namespace zs
