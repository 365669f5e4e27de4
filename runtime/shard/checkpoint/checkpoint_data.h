#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/shard/checkpoint/checkpoint_io.h"

namespace zs {

/// The begin of a data file. Little-endian, as everything in it.
struct DataHeader {
  char magic[8] = {'z', 's', 'h', 'c', 'k', 'p', 't', '\n'};
  std::uint32_t version = 1, byte_order = 0x01020304;
  std::int64_t rank = 0, ranks = 0, step = 0;
  std::int64_t data_bytes = 0;   ///< from the file's begin, this header included, to the table of checksums
  std::int64_t block_bytes = 0;  ///< bytes that one checksum covers
  std::int64_t unused = 0;

  bool operator==(const DataHeader&) const = default;
};
static_assert(sizeof(DataHeader) == 64);

/// One rank's part of a checkpoint: header, segments, then one XXH3 for each block of all that. Memory: one block.
class DataFileWriter {
 public:
  static constexpr std::int64_t kBlockBytes = 1 << 20;

  DataFileWriter(const Folder& folder, const std::string& name, DataHeader header, FileWatch* watch);

  std::int64_t position() const { return position_; }
  void append(const void* data, std::int64_t bytes);
  /// Zeros up to `offset`.
  void pad_to(std::int64_t offset);
  /// Writes the table, syncs and closes.
  void finish();
  /// Afterwards: the length of the file and the XXH3 of its table.
  std::int64_t bytes() const { return position_ + static_cast<std::int64_t>(table_.size() * sizeof(std::uint64_t)); }
  std::uint64_t digest() const;

 private:
  void flush();

  std::int64_t data_bytes_, position_ = 0;
  std::vector<std::byte> block_;  // bytes that are not written yet
  std::vector<std::uint64_t> table_;
  FileWriter file_;
};

/// Reader of a data file, in any order; every block is checked as it is read. Memory: one block and the table.
class DataFileReader {
 public:
  /// `bytes` and `digest`: what the manifest says. `expected`: rank, ranks and step.
  DataFileReader(std::string path, std::int64_t bytes, std::uint64_t digest, const DataHeader& expected);

  void read(std::int64_t offset, void* data, std::int64_t bytes);
  /// Reads all of it, for the checksums alone.
  void verify();

 private:
  void check_header(const DataHeader& expected);
  void load_block(std::int64_t block);

  FileReader file_;
  DataHeader header_;
  std::vector<std::uint64_t> table_;
  std::int64_t loaded_ = -1;
  std::vector<std::byte> block_;
};

}  // namespace zs
