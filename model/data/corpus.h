#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/data/file_format.h"
#include "runtime/base/file.h"

namespace zs {

/// Tokens of several files, one after the other: bytes (text), what a tokenizer makes of texts (held in memory), or ids
/// of 16 or 32 bits (tokens: nanoGPT's headerless .bin, or llm.c's .bin whose header of 256 int32 begins with a magic
/// number, a version and the count, told apart by the magic).
///
/// Opening looks at every file's size and first bytes, whatever their length (`recognize`); ids are checked against the
/// vocabulary when they are read. Reads go through pread, not through a mapping, so a file that shrinks under a run is
/// an Error(dataset) and not a SIGBUS. Owns its descriptors: the first kOpenFiles files stay open, others are opened
/// for each read. Immutable after construction: any thread may read. Throws Error(dataset) that names file and token
/// index.
class Corpus {
 public:
  static constexpr std::size_t kOpenFiles = 16;
  /// The largest model.vocab.
  static constexpr std::int64_t kMostVocab = 4194304;

  Corpus(const DataFormat& format, const std::vector<std::string>& files);
  /// Makes a corpus of ids that were made of these texts and are held in memory: `ids` are integers of
  /// `format.token_bytes`, one after the other.
  Corpus(const DataFormat& format, const std::vector<std::string>& files, std::vector<std::byte> ids);

  std::int64_t tokens() const { return tokens_; }
  const std::vector<std::string>& files() const { return files_; }
  /// out[i] = token first + i, for 0 <= i < count, within [0, tokens()). An id outside the vocabulary is an Error.
  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const { read(first, count, out, format_.vocab); }
  /// Reads whatever the ids are, otherwise as above: those of 2^31 and more come out negative.
  void read_unchecked(std::int64_t first, std::int64_t count, std::int32_t* out) const {
    read(first, count, out, kAnyId);
  }

 private:
  static constexpr std::int64_t kAnyId = std::int64_t{1} << 32;

  struct Part {
    std::int64_t first = 0, count = 0;  // tokens
    TokenLayout layout;
    std::uint64_t device = 0, inode = 0;  // the file that was checked at the start must be the one read later
    File file = {};
  };
  void add_part(std::size_t index);
  void read(std::int64_t first, std::int64_t count, std::int32_t* out, std::int64_t vocab) const;
  void read_part(std::size_t index, std::int64_t first, std::int64_t count, std::int32_t* out,
                 std::int64_t vocab) const;
  void read_bytes(std::size_t index, const File& file, std::int64_t offset, void* out, std::size_t bytes) const;

  DataFormat format_;
  std::vector<std::string> files_;
  std::vector<Part> parts_;      // as files_, but where ids are held
  std::vector<std::byte> held_;  // ids in memory; none: they are read from the files
  std::int64_t tokens_ = 0;
};

/// Adds ids to what a Corpus shall hold, as integers of `token_bytes`, 2 or 4.
void append_ids(std::vector<std::byte>& bytes, const std::vector<std::int32_t>& ids, std::int64_t token_bytes);
/// The fewest that hold all ids below `vocab`.
constexpr std::int64_t token_bytes_for(std::int64_t vocab) { return vocab <= 65536 ? 2 : 4; }

}  // namespace zs
