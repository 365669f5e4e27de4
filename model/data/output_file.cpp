#include "model/data/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

Error in_the_way(const std::string& what, const std::string& path) {
  return {ExitCode::cannot_create, what, path, "name a new file, or move this one elsewhere"};
}

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// Removes what killed writers have left. One that is still at it has the lock.
void remove_leftovers(const std::string& path) {
  const Folder folder = Folder::open(folder_of(path), Folder::Links::followed);
  for (const std::string& name : leftovers_beside(path)) {
    const File file = folder.file(name, O_RDWR);
    if (file.is_open() && file.is_regular() && file.lock() == File::Lock::taken)
      static_cast<void>(folder.remove_file(name));  // a file that stays is in nobody's way
  }
}

}  // namespace

void check_output(const std::string& path, const OutputRule& rule) {
  std::error_code failed;
  const fs::file_status status = fs::symlink_status(path, failed);
  if (!fs::exists(status)) return;
  if (fs::is_directory(status)) throw in_the_way("a folder has this name", path);
  if (!fs::is_regular_file(status)) throw in_the_way("this is no file: no link, pipe or device is written to", path);
  const auto is_same = [&](const std::string& other) { return fs::equivalent(path, other, failed); };
  if (std::any_of(rule.reads.begin(), rule.reads.end(), is_same)) throw in_the_way("this call reads this file", path);
  if (!rule.is_own) throw in_the_way("the file exists", path);
  if (!rule.is_own(path)) throw in_the_way("this is in the way, and it is not as the same option writes it", path);
}

File create_temporary(const std::string& path, std::string& temporary) {
  remove_leftovers(path);
  // The process id and O_EXCL keep two writers of one path apart.
  constexpr int kMostTries = 100;
  File file;
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    temporary = fmt::format("{}.{}-{}.tmp", path, ::getpid(), attempt);
    file = File::open(temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (!file.is_open() && file.error() != EEXIST) break;
    if (!file.is_open()) continue;
    static_cast<void>(file.lock());
    if (!file.is_unlinked()) return file;  // else somebody took it for a leftover before it was locked
  }
  throw Error(ExitCode::cannot_create, fmt::format("cannot create the file: {}", system_reason(file.error())), path,
              advice_for(file.error()));
}

OutputFile::OutputFile(std::string path, std::optional<OutputRule> rule)
    : path_(std::move(path)), rule_(std::move(rule)) {
  if (rule_) check_output(path_, *rule_);
  file_ = create_temporary(path_, temporary_);
  has_temporary_ = true;
}

OutputFile::~OutputFile() {
  if (has_temporary_) ::unlink(temporary_.c_str());
}

void OutputFile::check(const char* operation, int error) const {
  if (error != 0) throw file_error(ExitCode::io, operation, error, path_);
}

void OutputFile::write(const void* data, std::size_t bytes) {
  ZS_CHECK(file_.is_open(), "write to {} after commit", path_);
  check("write", file_.write({static_cast<const char*>(data), bytes}));
  written_ += bytes;
}

void OutputFile::overwrite(std::size_t offset, const void* data, std::size_t bytes) {
  ZS_CHECK(file_.is_open() && offset + bytes <= written_, "overwrite of {} bytes at {} of {}", bytes, offset, written_);
  check("write", file_.write_at(static_cast<std::int64_t>(offset), {static_cast<const char*>(data), bytes}));
}

void OutputFile::rename() {
  if (rule_) check_output(path_, *rule_);
  const bool is_free = rule_ && !rule_->is_own;
  if (is_free) {
    const int error = rename_to_free(temporary_, path_);
    if (error == EEXIST) throw in_the_way("the file exists", path_);
    check("rename", error);
  } else {
    check("rename", ::rename(temporary_.c_str(), path_.c_str()) == 0 ? 0 : errno);
  }
  has_temporary_ = false;
}

void OutputFile::publish() {
  ZS_CHECK(file_.is_open(), "second commit of {}", path_);
  check("close", file_.close());
  rename();
}

void OutputFile::commit(const std::function<void()>& before) {
  ZS_CHECK(file_.is_open(), "second commit of {}", path_);
  check("fsync", file_.sync());
  if (before) before();
  rename();  // while the lock is held
  check("close", file_.close());
  check("fsync of the folder", sync_folder(folder_of(path_)));
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

std::vector<std::string> leftovers_beside(const std::string& path) {
  std::vector<std::string> names;
  const Folder folder = Folder::open(folder_of(path), Folder::Links::followed);
  if (!folder.is_open() || folder.names(names) != 0) return {};
  std::erase_if(names,
                [&](const std::string& name) { return leftover_of(name) != fs::path(path).filename().string(); });
  return names;
}

void write_file_atomically(const std::string& path, std::string_view content) {
  OutputFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

}  // namespace zs
