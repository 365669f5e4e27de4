#include "model/data/file_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "model/data/bad_data.h"
#include "model/data/utf8.h"
#include "runtime/base/check.h"
#include "runtime/base/not_fetched.h"

namespace zs {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::int64_t kHeaderBytes = 256 * 4;
constexpr const char* kUseTokens = "set data.kind = \"tokens\"";

/// llm.c's headers of ids: 256 int32, of which magic, version and the number of ids.
struct TokenHeader {
  std::int32_t magic, version;
  std::int64_t token_bytes;
};
constexpr std::array kTokenHeaders = {TokenHeader{20240520, 1, 2}, TokenHeader{20240801, 7, 4}};
/// Headers of llm.c's other files: weights, what its tests compare with, tokenizer, evaluation, optimizer.
constexpr std::array<std::int32_t, 7> kOtherHeaders = {20240326, 20240327, 20240328, 20240522,
                                                       20240527, 20240803, 20240804};

const TokenHeader* token_header(std::int32_t magic) {
  const auto found = std::find_if(kTokenHeaders.begin(), kTokenHeaders.end(),
                                  [&](const auto& header) { return header.magic == magic; });
  return found == kTokenHeaders.end() ? nullptr : &*found;
}

std::array<std::int32_t, 3> first_words(std::string_view bytes) {
  std::array<std::int32_t, 3> words{};
  std::memcpy(words.data(), bytes.data(), std::min(bytes.size(), sizeof words));
  return words;
}

TokenLayout check_header(const TokenHeader& header, const FileHead& head) {
  const auto words = first_words(head.bytes);
  const std::string& path = head.path;
  if (head.file_bytes < kHeaderBytes)
    throw bad_data(fmt::format("the header is cut off after {} of {} bytes", head.file_bytes, kHeaderBytes),
                   fmt::format("{}@{}", path, head.file_bytes), "write the file again");
  if (words[1] != header.version)
    throw bad_data(fmt::format("token file version {}, expected {}", words[1], header.version), path + "@4",
                   fmt::format("write version {} (uint{} tokens)", header.version, 8 * header.token_bytes));
  const std::int64_t bytes = head.file_bytes - kHeaderBytes;
  if (words[2] < 0 || words[2] != bytes / header.token_bytes || bytes % header.token_bytes != 0)
    throw bad_data(fmt::format("the header says {} tokens, the file holds {} bytes of them", words[2], bytes),
                   path + "@8", "write the file again");
  return {kHeaderBytes, header.token_bytes};
}

/// Signature that files of other kinds begin with. Where all of it could be text, only a file that is no text is meant.
struct Signature {
  std::string_view bytes, what, todo;
};
using namespace std::string_view_literals;
constexpr const char* kDecompress = "decompress it first";
constexpr const char* kConvert = "write its ids alone, or its text";
constexpr std::array kSignatures = {
    Signature{"\x93NUMPY"sv, "a NumPy array (.npy)",
              "write the ids alone: numpy.load(FILE).astype(\"uint16\").tofile(\"train.bin\")"},
    Signature{"PK\x03\x04"sv, "a zip archive (.zip, .npz, .pt)", "unpack it, and write its ids alone, or its text"},
    Signature{"\x1f\x8b\x08"sv, "compressed (gzip)", kDecompress},
    Signature{"\x28\xb5\x2f\xfd"sv, "compressed (zstd)", kDecompress},
    Signature{"\xfd\x37\x7a\x58\x5a\x00"sv, "compressed (xz)", kDecompress},
    Signature{"\x04\x22\x4d\x18"sv, "compressed (lz4)", kDecompress},
    Signature{"\x37\x7a\xbc\xaf\x27\x1c"sv, "an archive (7z)", kDecompress},
    Signature{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file", kConvert},
    Signature{"PAR1"sv, "a Parquet table", kConvert},
    Signature{"ARROW1\0\0"sv, "an Arrow table", kConvert},
    Signature{"\xff\xff\xff\xff\x10\0\0\0"sv, "an Arrow stream", kConvert},
    Signature{"Obj\x01"sv, "an Avro file", kConvert},
    Signature{"SQLite format 3\0"sv, "an SQLite database", kConvert},
    Signature{"GGUF"sv, "a model (GGUF)", "name the data to train on"},
    Signature{"\x80\x02\x8a\x0al\xfc\x9c\x46"sv, "a PyTorch file", kConvert},
    Signature{"\x7f\x45LF"sv, "a program (ELF)", "name the data to train on"},
    Signature{"MMIDIDX\0\0"sv, "Megatron's index (.idx)",
              "name the .bin beside it, with data.token_bytes = 4 for int32 ids"},
};

bool has_signature(std::string_view bytes, const Signature& signature) { return bytes.starts_with(signature.bytes); }

std::uint64_t word64(std::string_view bytes, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

/// Signatures that take more than a comparison.
std::optional<Signature> composed_signature(const FileHead& head) {
  const std::string_view bytes = head.bytes;
  if (bytes.size() >= 10 && bytes.starts_with("BZh") && bytes.substr(4, 6) == "1AY&SY")
    return Signature{"", "compressed (bzip2)", kDecompress};
  if (bytes.size() >= 262 && bytes.substr(257, 5) == "ustar") return Signature{"", "a tar archive", "unpack it first"};
  if (bytes.size() < 16) return std::nullopt;
  const auto rest = static_cast<std::uint64_t>(head.file_bytes - 8);
  if (bytes[8] == '{' && bytes[9] == '"' && word64(bytes, 0) <= rest)
    return Signature{"", "a model (safetensors)", "name the data to train on"};
  // A frame is pickle's, with its length.
  const bool has_frame = bytes[0] == '\x80' && (bytes[1] == 4 || bytes[1] == 5) && bytes[2] == '\x95';
  if (has_frame && word64(bytes, 3) <= rest) return Signature{"", "a Python pickle", kConvert};
  return std::nullopt;
}

void refuse_pointer(const FileHead& head) {
  if (is_lfs_pointer(head.bytes)) throw bad_data(kLfsPointer, head.path, kFetchLfs);
}

void refuse_other_files(const FileHead& head) {
  const auto found = std::find_if(kSignatures.begin(), kSignatures.end(),
                                  [&](const auto& one) { return has_signature(head.bytes, one); });
  const auto signature = found != kSignatures.end() ? std::optional(*found) : composed_signature(head);
  if (signature)
    throw bad_data(fmt::format("the data file is {}", signature->what), head.path + "@0", std::string(signature->todo));
  if (head.bytes.size() < sizeof(std::int32_t)) return;
  const auto words = first_words(head.bytes);
  // The version after it is a small number: two ids of a file without a header are rarely both.
  constexpr std::int32_t kMostVersions = 100;
  const bool is_other = std::find(kOtherHeaders.begin(), kOtherHeaders.end(), words[0]) != kOtherHeaders.end();
  if (is_other && words[1] >= 0 && words[1] < kMostVersions)
    throw bad_data(fmt::format("the data file is one of llm.c's, but not of tokens (magic {})", words[0]),
                   head.path + "@0", "name its token files");
  const auto swapped = static_cast<std::int32_t>(__builtin_bswap32(static_cast<std::uint32_t>(words[0])));
  if (token_header(swapped) != nullptr)
    throw bad_data("the header is big-endian", head.path + "@0", "write little-endian tokens");
}

/// The first bytes as 16-bit words, and what they have in common by their place in 64 bits.
struct Words {
  std::vector<std::uint16_t> all;
  std::array<std::uint16_t, 4> most{};

  explicit Words(std::string_view bytes) : all(bytes.size() / 8 * 4) {
    if (!all.empty()) std::memcpy(all.data(), bytes.data(), all.size() * sizeof(std::uint16_t));
    for (std::size_t i = 0; i < all.size(); ++i) most[i % 4] = std::max(most[i % 4], all[i]);
  }
  bool is_zero(std::initializer_list<std::size_t> places) const {
    return std::all_of(places.begin(), places.end(), [&](std::size_t place) { return most.at(place) == 0; });
  }
};

/// Integers wider than the ids that were asked for, by the words of them that are zero, or hardly more.
struct Wide {
  int bits = 0;
  bool is_big_endian = false;
};
std::optional<Wide> wide_integers(const Words& words) {
  constexpr std::size_t kLeast = 16;    // words: fewer may be zero by chance
  constexpr std::size_t kMany = 128;    // so many high words are not all small by chance
  constexpr std::uint16_t kHigh = 63;   // high word of the largest vocabulary, 4194304
  constexpr std::uint16_t kLow = 1024;  // below it, the low words may be small ids themselves
  if (words.all.size() < kLeast || words.is_zero({0, 1, 2, 3})) return std::nullopt;
  const bool is_high = words.all.size() >= kMany && words.most[1] <= kHigh && words.most[3] <= kHigh;
  if (words.most[0] > 0 && words.is_zero({2, 3}) && (words.most[1] == 0 || (is_high && words.most[0] >= kLow)))
    return Wide{64, false};
  if (words.is_zero({0, 1, 2})) return Wide{64, true};
  if (words.is_zero({1, 3}) || (is_high && std::max(words.most[0], words.most[2]) >= kLow)) return Wide{32, false};
  if (words.is_zero({0, 2})) return Wide{32, true};
  return std::nullopt;
}

void refuse_wide(const std::optional<Wide>& wide, std::int64_t bytes_wanted, const FileHead& head) {
  if (!wide || (wide->bits == 32 && !wide->is_big_endian && bytes_wanted == 4)) return;
  const std::string what = fmt::format("the data file holds {}{}-bit integers, not {}-bit ids",
                                       wide->is_big_endian ? "big-endian " : "", wide->bits, 8 * bytes_wanted);
  if (wide->bits == 32 && !wide->is_big_endian) throw bad_data(what, head.path, "set data.token_bytes = 4");
  throw bad_data(what, head.path,
                 fmt::format("write them smaller: numpy.fromfile(FILE, \"{}i{}\").astype(\"uint32\").tofile(...), with "
                             "data.token_bytes = 4",
                             wide->is_big_endian ? ">" : "<", wide->bits / 8));
}

/// Ids of 8 bits, two of which were to be one: no byte has its highest bit, and those that would be high are as many as
/// the low ones.
bool are_pairs_of_bytes(const Words& words) {
  constexpr std::size_t kLeastWords = 64, kLeastLow = 16, kLeastHigh = 8;
  std::bitset<256> low, high;
  for (const std::uint16_t word : words.all) low.set(word & 0xff), high.set(word >> 8);
  for (std::size_t byte = 0x80; byte < 256; ++byte)
    if (low[byte] || high[byte]) return false;
  return words.all.size() >= kLeastWords && low.count() >= kLeastLow && high.count() >= kLeastHigh;
}

void refuse_other_ids(const DataFormat& wanted, const Words& words, const FileHead& head) {
  constexpr std::size_t kLeast = 16;
  if (words.all.size() < kLeast) return;
  const auto is_known = [&](std::uint32_t id) { return id < wanted.vocab; };
  const bool are_words_known = std::all_of(words.all.begin(), words.all.end(), is_known);
  if (wanted.token_bytes == 4) {
    std::size_t unknown = 0;
    for (std::size_t i = 0; i + 1 < words.all.size(); i += 2)
      unknown += is_known(words.all[i] | std::uint32_t{words.all[i + 1]} << 16) ? 0 : 1;
    if (are_words_known && unknown > words.all.size() / 4)
      throw bad_data("the data file holds 16-bit ids, not 32-bit ones", head.path, "set data.token_bytes = 2");
    return;
  }
  constexpr std::size_t kLeastSwapped = 64;
  const auto is_known_swapped = [&](std::uint16_t id) { return is_known(__builtin_bswap16(id)); };
  if (words.all.size() >= kLeastSwapped && !are_words_known &&
      std::all_of(words.all.begin(), words.all.end(), is_known_swapped))
    throw bad_data("the data file holds big-endian ids", head.path, "write little-endian ones");
  if (are_words_known && are_pairs_of_bytes(words))
    throw bad_data("the data file holds 8-bit ids, not 16-bit ones", head.path,
                   "set data.kind = \"text\": then each byte is a token");
}

TokenLayout recognize_tokens(const DataFormat& wanted, const FileHead& head) {
  constexpr std::size_t kLeastText = 16;
  if (head.bytes.size() >= sizeof(std::int32_t)) {
    if (const TokenHeader* const header = token_header(first_words(head.bytes)[0])) return check_header(*header, head);
  }
  refuse_other_files(head);
  if (head.bytes.size() >= kLeastText && looks_like_text(head.bytes))
    throw bad_data("the data file is text, not token ids", head.path, "set data.kind = \"text\", or make tokens of it");
  const Words words(head.bytes);
  refuse_wide(wide_integers(words), wanted.token_bytes, head);
  refuse_other_ids(wanted, words, head);
  if (head.file_bytes % wanted.token_bytes != 0)
    throw bad_data(
        fmt::format("{} bytes are not a whole number of uint{} tokens", head.file_bytes, 8 * wanted.token_bytes),
        fmt::format("{}@{}", head.path, head.file_bytes), "write the file again");
  return {0, wanted.token_bytes};
}

/// Control characters that text has none of.
std::size_t controls_in(std::string_view bytes) {
  const auto is_control = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && std::string_view("\t\n\v\f\r\x1b").find(c) == std::string_view::npos) || byte == 0x7f;
  };
  return static_cast<std::size_t>(std::count_if(bytes.begin(), bytes.end(), is_control));
}

/// True if the low bytes of 16-bit words take values that no high byte has, as those of ids do.
bool are_short_ids(std::span<const std::uint16_t> words) {
  constexpr std::size_t kLeast = 32, kShare = 20;  // words, and one in so many
  if (words.size() < kLeast) return false;
  const std::uint16_t most = *std::max_element(words.begin(), words.end()) >> 8;
  const auto above =
      std::count_if(words.begin(), words.end(), [&](std::uint16_t word) { return (word & 0xff) > most; });
  return static_cast<std::size_t>(above) * kShare >= words.size();
}

void refuse_ids_as_text(FileHead head) {
  constexpr std::size_t kShare = 16;  // in ids more bytes are control characters than one in so many
  if (controls_in(head.bytes) * kShare < head.bytes.size()) return;
  const bool has_mark = head.bytes.starts_with("\xff\xfe") || head.bytes.starts_with("\xfe\xff");  // UTF-16's
  if (has_mark) head.bytes.remove_prefix(2);
  const Words words(head.bytes);
  const char* const convert = "; if it is text, convert it to UTF-8";
  if (const auto wide = wide_integers(words)) {
    const bool is_read = wide->bits == 32 && !wide->is_big_endian;
    throw bad_data(fmt::format("the data file holds {}{}-bit integers, not text",
                               wide->is_big_endian ? "big-endian " : "", wide->bits),
                   head.path,
                   fmt::format("{}{}{}", is_read ? kUseTokens : "write them as uint32",
                               is_read ? " and data.token_bytes = 4"
                                       : ", then set data.kind = \"tokens\" and data.token_bytes = 4",
                               convert));
  }
  std::vector<std::uint16_t> swapped(words.all);
  for (std::uint16_t& word : swapped) word = __builtin_bswap16(word);
  if (head.file_bytes % 2 == 0 && (are_short_ids(words.all) || (has_mark && are_short_ids(swapped))))
    throw bad_data("the data file holds 16-bit integers, not text", head.path,
                   fmt::format("{}{}", kUseTokens, convert));
}

TokenLayout recognize_text(const FileHead& head) {
  if (looks_like_text(head.bytes)) return {};
  if (head.bytes.size() >= sizeof(std::int32_t) && token_header(first_words(head.bytes)[0]) != nullptr)
    throw bad_data("the data file holds llm.c's tokens, not text", head.path + "@0", kUseTokens);
  refuse_other_files(head);
  refuse_ids_as_text(head);
  return {};
}

}  // namespace

bool looks_like_text(std::string_view bytes) {
  constexpr std::size_t kShare = 128;  // a stray control character in so many
  std::size_t ascii = 0, broken = 0;
  for (std::string_view rest = bytes; !rest.empty();) {
    const Utf8 next = next_utf8(rest);
    ascii += static_cast<unsigned char>(rest.front()) < 0x80 ? 1 : 0;
    broken += next.is_valid || next.is_cut ? 0 : 1;
    rest.remove_prefix(next.bytes);
  }
  return controls_in(bytes) * kShare <= bytes.size() && (broken == 0 || ascii >= bytes.size() - bytes.size() / 4);
}

TokenLayout recognize(const DataFormat& wanted, const FileHead& head) {
  refuse_pointer(head);
  return wanted.kind == DataKind::text ? recognize_text(head) : recognize_tokens(wanted, head);
}

}  // namespace zs
