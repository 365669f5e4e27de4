#include "model/tokenizer/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/base/not_fetched.h"

namespace zs {

static constexpr std::int64_t kLargestFile = 128 << 20;

std::string read_tokenizer_file(const std::string& path) {
  const auto fail = [&](const std::string& what) {
    return Error(ExitCode::model, what, path, "check the tokenizer's folder");
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw fail("cannot open the file: " + system_reason(errno));
  struct stat status {};
  std::string text, problem;
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    problem = "this is no regular file";
  } else if (status.st_size > kLargestFile) {
    problem = fmt::format("the file has {} bytes, more than {}", status.st_size, kLargestFile);
  } else {
    text.resize(static_cast<std::size_t>(status.st_size));
    for (std::size_t have = 0; have < text.size() && problem.empty();) {
      const ssize_t count = ::read(descriptor, text.data() + have, text.size() - have);
      if (count == 0) problem = "the file became shorter while it was read";
      if (count < 0 && errno != EINTR) problem = "cannot read the file: " + system_reason(errno);
      if (count > 0) have += static_cast<std::size_t>(count);
    }
  }
  ::close(descriptor);
  if (!problem.empty()) throw fail(problem);
  if (is_lfs_pointer(text)) throw Error(ExitCode::model, kLfsPointer, path, kFetchLfs);
  return text;
}

}  // namespace zs
