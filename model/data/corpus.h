#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

enum class DataKind : std::uint8_t { text, tokens };

/// Tokens of several files, one after the other: bytes (text), or uint16 ids (tokens: nanoGPT's headerless .bin, or llm.c's
/// .bin whose header of 256 int32 begins with magic 20240520, version 1 and the count, told apart by the magic).
///
/// Opening checks every file's size and header, and every token against the vocabulary. Reads go through pread, not through a
/// mapping, so a file that shrinks under a run is an Error(dataset) and not a SIGBUS. Owns its descriptors: the first
/// kOpenFiles files stay open, others are opened for each read. Immutable after construction: any thread may read.
/// Throws Error(dataset) that names file and token index.
class Corpus {
 public:
  static constexpr std::size_t kOpenFiles = 16;

  Corpus(DataKind kind, const std::vector<std::string>& files, std::int64_t vocab);
  ~Corpus();
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  std::int64_t tokens() const { return tokens_; }
  const std::vector<std::string>& files() const { return files_; }
  /// out[i] = token first + i, for 0 <= i < count, within [0, tokens()).
  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const;

 private:
  struct Part {
    std::int64_t first = 0, count = 0;  // tokens
    std::int64_t header_bytes = 0;
    std::uint64_t device = 0, inode = 0;  // what was checked at the start is what must be read later
    int descriptor = -1;
  };
  void add_part(std::size_t index);
  void check_tokens(std::size_t index) const;
  void read_part(std::size_t index, std::int64_t first, std::int64_t count, std::int32_t* out) const;
  void read_bytes(std::size_t index, int descriptor, std::int64_t offset, void* out, std::size_t bytes) const;
  std::int64_t token_bytes() const { return kind_ == DataKind::text ? 1 : 2; }
  void close_all() noexcept;

  DataKind kind_;
  std::vector<std::string> files_;
  std::int64_t vocab_;
  std::vector<Part> parts_;  // as files_
  std::int64_t tokens_ = 0;
};

}  // namespace zs
