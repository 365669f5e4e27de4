#include "model/data/corpus.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "model/data/bad_data.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

struct OpenedFile {
  File file;
  struct stat status {};
};

OpenedFile open_file(const std::string& path) {
  OpenedFile opened{File::open(path, O_RDONLY)};
  if (!opened.file.is_open())
    throw bad_data("cannot open the data file: " + system_reason(opened.file.error()), path,
                   "check path and permissions");
  if (::fstat(opened.file.descriptor(), &opened.status) != 0)
    throw bad_data("cannot examine the data file: " + system_reason(errno), path, "check path and permissions");
  if (!S_ISREG(opened.status.st_mode))
    throw bad_data("the data file is not a regular file", path, "name a file, a glob or a folder");
  return opened;
}

/// Widens what files hold to int32; returns the largest id as it is in the file.
template <class Id>
std::uint32_t widen(const std::byte* narrow, std::int64_t count, std::int32_t* wide) {
  std::uint32_t most = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    Id id;
    std::memcpy(&id, narrow + i * static_cast<std::int64_t>(sizeof id), sizeof id);
    most = std::max<std::uint32_t>(most, id);
    wide[i] = static_cast<std::int32_t>(id);
  }
  return most;
}

std::uint32_t widen(std::int64_t bytes, const std::byte* narrow, std::int64_t count, std::int32_t* wide) {
  if (bytes == 1) return widen<std::uint8_t>(narrow, count, wide);
  return bytes == 2 ? widen<std::uint16_t>(narrow, count, wide) : widen<std::uint32_t>(narrow, count, wide);
}

template <class Id>
void append_as(std::vector<std::byte>& bytes, const std::vector<std::int32_t>& ids) {
  const std::vector<Id> narrow(ids.begin(), ids.end());
  const auto* const begin = reinterpret_cast<const std::byte*>(narrow.data());
  bytes.insert(bytes.end(), begin, begin + narrow.size() * sizeof(Id));
}

Error outside_vocabulary(std::uint32_t id, std::int64_t vocab, const std::string& where) {
  const bool is_possible = id < Corpus::kMostVocab;
  return bad_data(
      fmt::format("token {} is outside the vocabulary of {}", id, vocab), where,
      is_possible
          ? fmt::format("set model.vocab to {} or more, or make the tokens again: with its tokenizer, where the "
                        "model is that of a folder",
                        std::int64_t{id} + 1)
          : "no vocabulary is as large: see data.token_bytes, or make the tokens again");
}

}  // namespace

void append_ids(std::vector<std::byte>& bytes, const std::vector<std::int32_t>& ids, std::int64_t token_bytes) {
  token_bytes == 2 ? append_as<std::uint16_t>(bytes, ids) : append_as<std::int32_t>(bytes, ids);
}

Corpus::Corpus(const DataFormat& format, const std::vector<std::string>& files) : format_(format), files_(files) {
  ZS_CHECK(format.vocab >= 1 && (format.token_bytes == 2 || format.token_bytes == 4),
           "vocabulary of {}, ids of {} bytes", format.vocab, format.token_bytes);
  parts_.resize(files.size());
  for (std::size_t i = 0; i < files_.size(); ++i) add_part(i);
}

Corpus::Corpus(const DataFormat& format, const std::vector<std::string>& files, std::vector<std::byte> ids)
    : format_(format), files_(files), held_(std::move(ids)), tokens_(std::ssize(held_) / format.token_bytes) {
  ZS_CHECK((format.token_bytes == 2 || format.token_bytes == 4) && std::ssize(held_) % format.token_bytes == 0,
           "{} bytes of ids of {} each", held_.size(), format.token_bytes);
}

void Corpus::add_part(std::size_t index) {
  OpenedFile opened = open_file(files_[index]);
  const std::int64_t bytes = opened.status.st_size;
  std::array<char, FileHead::kBytes> head;
  const auto have = static_cast<std::size_t>(std::min<std::int64_t>(bytes, head.size()));
  read_bytes(index, opened.file, 0, head.data(), have);
  Part& part = parts_[index];
  part.layout = recognize(format_, {{head.data(), have}, bytes, files_[index]});
  part.first = tokens_;
  part.count = (bytes - part.layout.header_bytes) / part.layout.token_bytes;
  part.device = opened.status.st_dev;
  part.inode = opened.status.st_ino;
  tokens_ += part.count;
  if (index < kOpenFiles) part.file = std::move(opened.file);
}

void Corpus::read_bytes(std::size_t index, const File& file, std::int64_t offset, void* out, std::size_t bytes) const {
  const File::Count count = file.read_at(offset, out, bytes);
  const auto where = [&] {
    return fmt::format("{}@{}", files_[index], offset + static_cast<std::int64_t>(count.bytes));
  };
  if (count.error != 0)
    throw bad_data("reading the data failed: " + system_reason(count.error), where(), advice_for(count.error));
  if (count.bytes < bytes)
    throw bad_data("the data file became shorter while in use", where(), "leave the data alone during a run");
}

void Corpus::read_part(std::size_t index, std::int64_t first, std::int64_t count, std::int32_t* out,
                       std::int64_t vocab) const {
  const Part& part = parts_[index];
  File temporary;
  if (!part.file.is_open()) {
    OpenedFile opened = open_file(files_[index]);
    if (opened.status.st_dev != part.device || opened.status.st_ino != part.inode)
      throw bad_data("the data file was replaced while in use", files_[index], "leave the data alone during a run");
    temporary = std::move(opened.file);
  }
  const File& file = part.file.is_open() ? part.file : temporary;
  std::array<std::byte, 1 << 16> narrow;
  const std::int64_t bytes = part.layout.token_bytes, most = static_cast<std::int64_t>(narrow.size()) / bytes;
  for (std::int64_t done = 0; done < count; done += most) {
    const std::int64_t here = std::min(most, count - done);
    read_bytes(index, file, part.layout.header_bytes + (first + done) * bytes, narrow.data(),
               static_cast<std::size_t>(here * bytes));
    std::int32_t* const wide = out + done;
    if (widen(bytes, narrow.data(), here, wide) < vocab) continue;
    const auto is_outside = [&](std::int32_t id) { return static_cast<std::uint32_t>(id) >= vocab; };
    const std::int32_t* const found = std::find_if(wide, wide + here, is_outside);
    throw outside_vocabulary(static_cast<std::uint32_t>(*found), vocab,
                             fmt::format("{}@{}", files_[index], first + done + (found - wide)));
  }
}

void Corpus::read(std::int64_t first, std::int64_t count, std::int32_t* out, std::int64_t vocab) const {
  ZS_CHECK(first >= 0 && count >= 0 && first <= tokens_ && count <= tokens_ - first, "tokens [{}, +{}) of {}", first,
           count, tokens_);
  if (parts_.empty()) {  // the tokenizer's ids are within the vocabulary
    static_cast<void>(widen(format_.token_bytes, held_.data() + first * format_.token_bytes, count, out));
    return;
  }
  const auto after = [](std::int64_t token, const Part& part) { return token < part.first; };
  std::size_t index =
      static_cast<std::size_t>(std::upper_bound(parts_.begin(), parts_.end(), first, after) - parts_.begin());
  while (count > 0) {
    const Part& part = parts_[index - 1];
    const std::int64_t here = std::min(count, part.first + part.count - first);
    if (here > 0) read_part(index - 1, first - part.first, here, out, vocab);
    first += here;
    out += here;
    count -= here;
    ++index;
  }
}

}  // namespace zs
