#include "runtime/shard/checkpoint/checkpoint_data.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace zs {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

std::int64_t blocks_of(std::int64_t bytes) {
  return (bytes + DataFileWriter::kBlockBytes - 1) / DataFileWriter::kBlockBytes;
}

std::int64_t table_bytes(std::int64_t data_bytes) {
  return blocks_of(data_bytes) * static_cast<std::int64_t>(sizeof(std::uint64_t));
}

std::uint64_t digest_of(const std::vector<std::uint64_t>& table) {
  return XXH3_64bits(table.data(), table.size() * sizeof(std::uint64_t));
}

}  // namespace

DataFileWriter::DataFileWriter(const Folder& folder, const std::string& name, DataHeader header, FileWatch* watch)
    : data_bytes_(header.data_bytes), file_(folder, name, header.data_bytes + table_bytes(header.data_bytes), watch) {
  header.block_bytes = kBlockBytes;
  block_.reserve(static_cast<std::size_t>(std::min(kBlockBytes, data_bytes_)));
  append(&header, sizeof header);
}

void DataFileWriter::append(const void* data, std::int64_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  ZS_CHECK(position_ + bytes <= data_bytes_, "{} bytes at {} of {}", bytes, position_, data_bytes_);
  position_ += bytes;
  while (bytes > 0) {
    const std::int64_t count = std::min(bytes, kBlockBytes - static_cast<std::int64_t>(block_.size()));
    block_.insert(block_.end(), next, next + count);
    next += count;
    bytes -= count;
    if (static_cast<std::int64_t>(block_.size()) == kBlockBytes) flush();
  }
}

void DataFileWriter::pad_to(std::int64_t offset) {
  ZS_CHECK(offset >= position_, "padding from {} to {}", position_, offset);
  const std::vector<std::byte> zeros(static_cast<std::size_t>(offset - position_));
  append(zeros.data(), offset - position_);
}

void DataFileWriter::flush() {
  if (block_.empty()) return;
  table_.push_back(XXH3_64bits(block_.data(), block_.size()));
  file_.write(block_.data(), block_.size());
  block_.clear();
}

void DataFileWriter::finish() {
  ZS_CHECK(position_ == data_bytes_, "{} of {} bytes were written", position_, data_bytes_);
  flush();
  file_.write(table_.data(), table_.size() * sizeof(std::uint64_t));
  file_.finish();
}

std::uint64_t DataFileWriter::digest() const { return digest_of(table_); }

DataFileReader::DataFileReader(std::string path, std::int64_t bytes, std::uint64_t digest, const DataHeader& expected)
    : file_(std::move(path)) {
  if (file_.bytes() != bytes) file_.fail(fmt::format("has {} bytes, {} were written", file_.bytes(), bytes));
  if (bytes < static_cast<std::int64_t>(sizeof header_)) file_.fail("is too short");
  file_.read(0, &header_, sizeof header_);
  check_header(expected);
  table_.resize(static_cast<std::size_t>(blocks_of(header_.data_bytes)));
  file_.read(header_.data_bytes, table_.data(), table_.size() * sizeof(std::uint64_t));
  if (const std::uint64_t found = digest_of(table_); found != digest)
    file_.fail_at(header_.data_bytes, fmt::format("has checksum {:016x}, expected {:016x}", found, digest));
}

void DataFileReader::check_header(const DataHeader& expected) {
  const DataHeader plain;
  if (std::memcmp(header_.magic, plain.magic, sizeof plain.magic) != 0) file_.fail_at(0, "is no part of a checkpoint");
  if (header_.byte_order != plain.byte_order) file_.fail_at(12, "was written by a machine with another byte order");
  if (header_.version != plain.version) file_.fail_version(header_.version, plain.version);
  if (header_.rank != expected.rank || header_.ranks != expected.ranks || header_.step != expected.step) {
    file_.fail_at(16, fmt::format("is of rank {} of {}, step {}; expected rank {} of {}, step {}", header_.rank,
                                  header_.ranks, header_.step, expected.rank, expected.ranks, expected.step));
  }
  const std::int64_t data_bytes = header_.data_bytes, header_bytes = sizeof header_;
  if (header_.block_bytes != DataFileWriter::kBlockBytes || data_bytes < header_bytes || data_bytes > file_.bytes() ||
      data_bytes + table_bytes(data_bytes) != file_.bytes())
    file_.fail_at(40, "has a length that its header does not know");
}

void DataFileReader::load_block(std::int64_t block) {
  if (block == loaded_) return;
  const std::int64_t begin = block * DataFileWriter::kBlockBytes;
  loaded_ = -1;
  block_.resize(static_cast<std::size_t>(std::min(DataFileWriter::kBlockBytes, header_.data_bytes - begin)));
  file_.read(begin, block_.data(), block_.size());
  const std::uint64_t found = XXH3_64bits(block_.data(), block_.size()),
                      expected = table_.at(static_cast<std::size_t>(block));
  if (found != expected) {
    file_.fail_at(begin, fmt::format("is damaged in its next {} bytes: checksum {:016x}, expected {:016x}",
                                     block_.size(), found, expected));
  }
  loaded_ = block;
}

void DataFileReader::read(std::int64_t offset, void* data, std::int64_t bytes) {
  if (offset < 0 || bytes < 0 || offset > header_.data_bytes || bytes > header_.data_bytes - offset)
    file_.fail_at(offset, "ends before a segment of it");
  auto* next = static_cast<std::byte*>(data);
  while (bytes > 0) {
    load_block(offset / DataFileWriter::kBlockBytes);
    const std::int64_t into = offset % DataFileWriter::kBlockBytes;
    const std::int64_t count = std::min(bytes, static_cast<std::int64_t>(block_.size()) - into);
    std::memcpy(next, block_.data() + into, static_cast<std::size_t>(count));
    next += count;
    offset += count;
    bytes -= count;
  }
}

void DataFileReader::verify() {
  for (std::int64_t block = 0; block < blocks_of(header_.data_bytes); ++block) load_block(block);
}

}  // namespace zs
