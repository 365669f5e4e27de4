#include "model/train/rank/disk_space.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/base/units.h"

namespace zs {
namespace {

namespace fs = std::filesystem;

/// Errors of the system when there is no more room.
constexpr std::array kNoRoom = {ENOSPC, EDQUOT, EFBIG};

std::string nearest_folder(const std::string& folder) {
  std::error_code failed;
  fs::path at = fs::absolute(folder.empty() ? "." : folder, failed).lexically_normal();
  while (!fs::is_directory(at, failed) && at.has_relative_path()) at = at.parent_path();
  return at.string();
}

/// Free bytes; nothing where the system does not say.
std::optional<std::int64_t> free_bytes(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  const auto blocks = ::geteuid() == 0 ? status.f_bfree : status.f_bavail;
  return static_cast<std::int64_t>(blocks) * static_cast<std::int64_t>(status.f_frsize);
}

[[noreturn]] void refuse(const std::string& folder, std::int64_t bytes, const std::string& what, int error) {
  const auto free = free_bytes(folder);
  const bool is_disk = error == ENOSPC && free && *free < bytes;
  const std::string there = free ? fmt::format(", {} free", format_bytes(*free)) : "";
  throw Error(ExitCode::io,
              fmt::format("the disk has no room for {}: {} needed{}{}", what, format_bytes(bytes), there,
                          is_disk ? "" : fmt::format(" ({})", system_reason(error))),
              folder,
              is_no_space(error) ? "free some space, or set run.dir to a place that has it" : advice_for(error));
}

/// A file that has no name.
File open_unnamed(const std::string& folder) {
  File file = File::open(folder, O_TMPFILE | O_WRONLY);
  if (file.is_open()) return file;
  std::string path = folder + "/.zshard-space-XXXXXX";
  file = File(::mkostemp(path.data(), O_CLOEXEC));
  if (file.is_open() && ::unlink(path.c_str()) != 0) errno = 0;  // nothing is in it when the process ends
  return file;
}

}  // namespace

std::optional<std::int64_t> free_bytes_at(const std::string& folder) { return free_bytes(nearest_folder(folder)); }

bool is_in_memory(const std::string& folder) {
  struct statfs status {};
  return ::statfs(nearest_folder(folder).c_str(), &status) == 0 &&
         (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC);
}

void check_space(const std::string& folder, std::int64_t bytes, const std::string& what) {
  const std::string place = nearest_folder(folder);
  if (const auto free = free_bytes(place); free && *free < bytes) refuse(place, bytes, what, ENOSPC);
}

void SpaceReserve::take(const std::string& folder, std::int64_t bytes, const std::string& what) {
  release();
  check_space(folder, bytes, what);
  const std::string place = nearest_folder(folder);
  file_ = open_unnamed(place);
  if (!file_.is_open()) return;  // whoever creates the run's folder says why it cannot be written to
  const int error = file_.reserve(0, std::max<std::int64_t>(bytes, 1));
  if (error == 0) return;
  release();
  if (std::find(kNoRoom.begin(), kNoRoom.end(), error) != kNoRoom.end()) refuse(place, bytes, what, error);
}

bool is_for_lack_of_space(const Error& error) {
  return error.code() == ExitCode::io && std::any_of(kNoRoom.begin(), kNoRoom.end(), [&](int reason) {
           return error.what_happened().find(system_reason(reason)) != std::string::npos;
         });
}

}  // namespace zs
