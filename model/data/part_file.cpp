#include "model/data/part_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "model/data/output_file.h"

namespace zs {

PartFile PartFile::create(const std::string& path) {
  check_output(path);
  std::string temporary;
  File file = create_temporary(path, temporary);
  return {path, temporary, std::move(file), true};
}

PartFile PartFile::open(const std::string& path, const std::string& temporary) {
  File file = File::open(temporary, O_WRONLY | O_NOFOLLOW);
  if (!file.is_open())
    throw Error(ExitCode::cannot_create,
                fmt::format("this rank cannot open what the first has created: {}", system_reason(file.error())), path,
                "write where all hosts see the same files");
  return {path, temporary, std::move(file), false};
}

PartFile::PartFile(PartFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      file_(std::move(other.file_)),
      owns_file_(std::exchange(other.owns_file_, false)) {}

PartFile::~PartFile() {
  if (owns_file_) ::unlink(temporary_.c_str());
}

void PartFile::check(const char* operation, int error) const {
  if (error != 0) throw file_error(ExitCode::io, operation, error, path_);
}

void PartFile::write(std::int64_t offset, const void* data, std::size_t bytes) {
  check("write", file_.write_at(offset, {static_cast<const char*>(data), bytes}));
}

/// The first rank keeps it open: its lock says that somebody is at it.
void PartFile::finish() {
  check("fsync", file_.sync());
  if (!owns_file_) check("close", file_.close());
}

void PartFile::publish() {
  ZS_CHECK(owns_file_, "{} is another rank's to publish", path_);
  const int error = rename_to_free(temporary_, path_);
  if (error == EEXIST) check_output(path_);
  check("rename", error);
  owns_file_ = false;
  check("close", file_.close());
}

}  // namespace zs
