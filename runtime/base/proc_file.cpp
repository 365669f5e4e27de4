#include "runtime/base/proc_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace zs {

std::string read_rest_of(int descriptor) {
  std::string text;
  std::array<char, 4096> part;
  for (;;) {
    const ssize_t count = read(descriptor, part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return {};
    if (count == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
}

std::string read_proc_file(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return {};
  std::string text = read_rest_of(descriptor);
  if (close(descriptor) != 0) errno = 0;  // the file was only read
  return text;
}

}  // namespace zs
