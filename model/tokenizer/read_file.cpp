#include "model/tokenizer/read_file.h"

#include <fcntl.h>

#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/base/file.h"
#include "runtime/base/not_fetched.h"
#include "runtime/base/reader_limits.h"

namespace zs {

std::string read_tokenizer_file(const std::string& path) {
  const auto fail = [&](const std::string& what) {
    return Error(ExitCode::model, what, path, "check the tokenizer's folder");
  };
  const File file = File::open(path, O_RDONLY);
  if (!file.is_open()) throw fail("cannot open the file: " + system_reason(file.error()));
  if (!file.is_regular()) throw fail("this is no regular file");
  if (file.bytes() > ReaderLimits::kTokenizerBytes)
    throw fail(fmt::format("the file has {} bytes, more than {}", file.bytes(), ReaderLimits::kTokenizerBytes));
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  const File::Count count = file.read_at(0, text.data(), text.size());
  if (count.error != 0) throw fail("cannot read the file: " + system_reason(count.error));
  if (count.bytes < text.size()) throw fail("the file became shorter while it was read");
  if (is_lfs_pointer(text)) throw Error(ExitCode::model, kLfsPointer, path, kFetchLfs);
  return text;
}

}  // namespace zs
