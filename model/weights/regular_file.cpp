#include "model/weights/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/not_fetched.h"

namespace zs {

RegularFile::RegularFile(std::string path) : path_(std::move(path)), file_(File::open(path_, O_RDONLY)) {
  if (!file_.is_open())
    throw Error(ExitCode::model, fmt::format("cannot open the file: {}", system_reason(file_.error())), path_,
                "check the path and its permissions");
  struct stat status {};
  if (::fstat(file_.descriptor(), &status) != 0 || !S_ISREG(status.st_mode))
    throw Error(ExitCode::model, "this is no regular file", path_, "name a file of weights, or its folder");
  bytes_ = status.st_size;
  std::array<char, 64> head{};
  const File::Count have = file_.read_at(0, head.data(), head.size());
  if (is_lfs_pointer({head.data(), have.bytes})) throw Error(ExitCode::model, kLfsPointer, path_, kFetchLfs);
  identity_ = fmt::format("{}.{}.{}.{}.{}", status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                          status.st_mtim.tv_nsec);
}

void RegularFile::read(std::int64_t offset, void* out, std::int64_t bytes) const {
  const File::Count count = file_.read_at(offset, out, static_cast<std::size_t>(bytes));
  const auto where = [&] { return fmt::format("{}@{}", path_, offset + static_cast<std::int64_t>(count.bytes)); };
  if (count.error != 0)
    throw Error(ExitCode::model, fmt::format("cannot read the file: {}", system_reason(count.error)), where(),
                advice_for(count.error));
  if (static_cast<std::int64_t>(count.bytes) < bytes)
    throw Error(ExitCode::model, "the file became shorter while it was read", where(),
                "leave it alone, and start again");
}

std::optional<std::string> file_of_model(const std::string& folder, const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code failed;
  fs::path root = fs::canonical(folder, failed);
  const fs::path file = fs::canonical(fs::path(folder) / name, failed);
  if (failed) return std::nullopt;
  for (fs::path part = root; part.has_relative_path(); part = part.parent_path())
    if (part.filename() == "snapshots" && fs::is_directory(part.parent_path() / "blobs", failed)) {
      root = part.parent_path();
      break;
    }
  const bool is_inside = std::mismatch(root.begin(), root.end(), file.begin(), file.end()).first == root.end();
  return is_inside ? std::optional(file.string()) : std::nullopt;
}

std::string read_text_file(const std::string& path, std::int64_t most) {
  const RegularFile file(path);
  if (file.bytes() > most)
    throw Error(ExitCode::model, fmt::format("the file has {} bytes, more than {}", file.bytes(), most), path,
                "name the right file");
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  file.read(0, text.data(), file.bytes());
  return text;
}

}  // namespace zs
