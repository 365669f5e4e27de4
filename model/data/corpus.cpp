#include "model/data/corpus.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace zs {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::int64_t kHeaderWords = 256, kHeaderBytes = kHeaderWords * 4;
constexpr std::int32_t kMagic = 20240520, kVersion = 1;
constexpr std::int32_t kWideMagic = 20240801;  // llm.c's uint32 tokens

Error bad_data(const std::string& what, const std::string& where, const std::string& todo) {
  return Error(ExitCode::dataset, what, where, todo);
}

/// Closes on the way out unless released.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return descriptor_; }
  void reset(int descriptor) {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = descriptor;
  }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

struct OpenedFile {
  int descriptor;
  struct stat status;
};

/// O_NONBLOCK: opening a FIFO must not wait for a writer.
OpenedFile open_file(const std::string& path) {
  Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) throw bad_data("cannot open the data file: " + system_reason(errno), path, "check path and permissions");
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0)
    throw bad_data("cannot examine the data file: " + system_reason(errno), path, "check path and permissions");
  if (!S_ISREG(status.st_mode)) throw bad_data("the data file is not a regular file", path, "name a file, a glob or a folder");
  return {descriptor.release(), status};
}

/// Bytes before the tokens; 0 without a header. `head` holds the first `have` bytes.
std::int64_t check_header(const std::array<std::int32_t, 4>& head, std::int64_t have, std::int64_t file_bytes, const std::string& path) {
  if (have < 4) return 0;
  const std::int32_t magic = head[0];
  if (magic == kWideMagic) throw bad_data("llm.c's uint32 tokens are not supported", path + "@0", "write uint16 tokens (magic 20240520)");
  if (magic == static_cast<std::int32_t>(__builtin_bswap32(kMagic)) || magic == static_cast<std::int32_t>(__builtin_bswap32(kWideMagic)))
    throw bad_data("the header is big-endian", path + "@0", "write little-endian tokens");
  if (magic != kMagic) return 0;
  if (file_bytes < kHeaderBytes)
    throw bad_data(fmt::format("the header is cut off after {} of {} bytes", file_bytes, kHeaderBytes),
                   fmt::format("{}@{}", path, file_bytes), "write the file again");
  if (head[1] != kVersion)
    throw bad_data(fmt::format("token file version {}, expected {}", head[1], kVersion), path + "@4", "write version 1 (uint16 tokens)");
  const std::int64_t said = head[2], held = (file_bytes - kHeaderBytes) / 2;
  if (said < 0 || said != held || file_bytes % 2 != 0)
    throw bad_data(fmt::format("the header says {} tokens, the file holds {} bytes of them", said, file_bytes - kHeaderBytes), path + "@8",
                   "write the file again");
  return kHeaderBytes;
}

}  // namespace

Corpus::Corpus(DataKind kind, const std::vector<std::string>& files, std::int64_t vocab) : kind_(kind), files_(files), vocab_(vocab) {
  ZS_CHECK(vocab >= 1, "vocabulary of {}", vocab);
  parts_.resize(files.size());
  try {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      add_part(i);
      check_tokens(i);
    }
  } catch (...) {
    close_all();
    throw;
  }
}

Corpus::~Corpus() { close_all(); }

void Corpus::close_all() noexcept {
  for (Part& part : parts_)
    if (part.descriptor >= 0) ::close(std::exchange(part.descriptor, -1));
}

void Corpus::add_part(std::size_t index) {
  const std::string& path = files_[index];
  const OpenedFile opened = open_file(path);
  Descriptor descriptor(opened.descriptor);
  const std::int64_t bytes = opened.status.st_size;
  Part& part = parts_[index];
  if (kind_ == DataKind::tokens) {
    std::array<std::int32_t, 4> head{};
    const std::int64_t have = std::min<std::int64_t>(bytes, sizeof head);
    read_bytes(index, descriptor.get(), 0, head.data(), static_cast<std::size_t>(have));
    part.header_bytes = check_header(head, have, bytes, path);
    if (bytes % 2 != 0)
      throw bad_data(fmt::format("{} bytes are not a whole number of uint16 tokens", bytes), fmt::format("{}@{}", path, bytes),
                     "write the file again");
  }
  part.first = tokens_;
  part.count = (bytes - part.header_bytes) / token_bytes();
  part.device = opened.status.st_dev;
  part.inode = opened.status.st_ino;
  tokens_ += part.count;
  if (index < kOpenFiles) part.descriptor = descriptor.release();
}

void Corpus::check_tokens(std::size_t index) const {
  if (vocab_ > (kind_ == DataKind::text ? 0xff : 0xffff)) return;
  constexpr std::int64_t kChunk = 1 << 18;
  std::vector<std::int32_t> chunk(static_cast<std::size_t>(std::min(kChunk, parts_[index].count)));
  for (std::int64_t at = 0; at < parts_[index].count; at += kChunk)
    read_part(index, at, std::min(kChunk, parts_[index].count - at), chunk.data());
}

void Corpus::read_bytes(std::size_t index, int descriptor, std::int64_t offset, void* out, std::size_t bytes) const {
  auto* next = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t count = ::pread(descriptor, next, bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    const std::string where = fmt::format("{}@{}", files_[index], offset);
    if (count < 0) throw bad_data("reading the data failed: " + system_reason(errno), where, "check the disk");
    if (count == 0) throw bad_data("the data file became shorter while in use", where, "leave the data alone during a run");
    next += count;
    offset += count;
    bytes -= static_cast<std::size_t>(count);
  }
}

void Corpus::read_part(std::size_t index, std::int64_t first, std::int64_t count, std::int32_t* out) const {
  const Part& part = parts_[index];
  Descriptor temporary(-1);
  int descriptor = part.descriptor;
  if (descriptor < 0) {
    const OpenedFile opened = open_file(files_[index]);
    temporary.reset(opened.descriptor);
    if (opened.status.st_dev != part.device || opened.status.st_ino != part.inode)
      throw bad_data("the data file was replaced while in use", files_[index], "leave the data alone during a run");
    descriptor = temporary.get();
  }
  // Reads into the back of `out` and widens forwards: the narrow value is always at or behind the wide one.
  const std::int64_t width = token_bytes();
  auto* narrow = reinterpret_cast<unsigned char*>(out) + count * (4 - width);
  read_bytes(index, descriptor, part.header_bytes + first * width, narrow, static_cast<std::size_t>(count * width));
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t token = 0;
    std::memcpy(&token, narrow + i * width, static_cast<std::size_t>(width));
    const std::int32_t wide = token;
    if (wide >= vocab_)
      throw bad_data(fmt::format("token {} is outside the vocabulary of {}", wide, vocab_), fmt::format("{}@{}", files_[index], first + i),
                     fmt::format("set model.vocab to {} or more, or make the tokens again", wide + 1));
    std::memcpy(out + i, &wide, sizeof wide);
  }
}

void Corpus::read(std::int64_t first, std::int64_t count, std::int32_t* out) const {
  ZS_CHECK(first >= 0 && count >= 0 && first <= tokens_ && count <= tokens_ - first, "tokens [{}, +{}) of {}", first, count, tokens_);
  const auto after = [](std::int64_t token, const Part& part) { return token < part.first; };
  std::size_t index = static_cast<std::size_t>(std::upper_bound(parts_.begin(), parts_.end(), first, after) - parts_.begin());
  while (count > 0) {
    const Part& part = parts_[index - 1];
    const std::int64_t here = std::min(count, part.first + part.count - first);
    if (here > 0) read_part(index - 1, first - part.first, here, out);
    first += here;
    out += here;
    count -= here;
    ++index;
  }
}

}  // namespace zs
