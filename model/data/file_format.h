#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace zs {

/// Contents of data files: text, or token ids that another program made of it.
enum class DataKind : std::uint8_t { text, tokens };

/// Format that is asked of a data file: bytes of text, or ids of `token_bytes` (2 or 4) where the file has no header,
/// below `vocab`.
struct DataFormat {
  DataKind kind = DataKind::text;
  std::int64_t vocab = 0, token_bytes = 2;
};

/// Layout of a file of ids: the byte at which they begin, and the bytes of each.
struct TokenLayout {
  std::int64_t header_bytes = 0, token_bytes = 1;
};

/// A file's first bytes, at most kBytes of them.
struct FileHead {
  static constexpr std::size_t kBytes = 1 << 12;
  std::string_view bytes;
  std::int64_t file_bytes = 0;
  const std::string& path;
};

/// The layout of a file that holds what `wanted` says; llm.c's header tells of itself whether ids have 2 or 4 bytes.
/// Throws Error(dataset) for a broken header, and where the first bytes show that the file is of another kind: an array
/// with a header (.npy), an archive, a compressed file, 32- or 64-bit integers, text in place of ids, ids in place of
/// text. What has no such signs is taken as it is.
TokenLayout recognize(const DataFormat& wanted, const FileHead& head);

/// True if bytes could be text: hardly any control characters but white space, and UTF-8 or, three quarters of them,
/// ASCII. A character may be cut off at the end.
bool looks_like_text(std::string_view bytes);

}  // namespace zs
