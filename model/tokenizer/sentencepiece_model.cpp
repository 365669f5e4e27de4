#include "model/tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <cstring>
#include <string_view>

#include "model/tokenizer/read_file.h"
#include "runtime/base/check.h"
#include "runtime/base/reader_limits.h"

namespace zs {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& path) {
  throw Error(ExitCode::model, "this is no SentencePiece model: " + what, path, "fetch it again");
}

/// The fields of a message of protocol buffers, one after the other, as far as they are of the type that the reader
/// asks for: the library ignores others, too. Error(model).
class ProtoFields {
 public:
  enum class Type : std::uint8_t { integer = 0, eight_bytes = 1, bytes = 2, four_bytes = 5 };

  ProtoFields(std::string_view message, const std::string& path) : rest_(message), path_(path) {}

  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    number_ = key >> 3;
    type_ = static_cast<Type>(key & 7);
    switch (type_) {
      case Type::integer: integer_ = varint(); break;
      case Type::eight_bytes: bytes_ = take(8); break;
      case Type::bytes: bytes_ = take(varint()); break;
      case Type::four_bytes: bytes_ = take(4); break;
      default: refuse(fmt::format("a field of type {}", key & 7), path_);
    }
    return true;
  }
  bool is(std::uint64_t number, Type type) const { return number_ == number && type_ == type; }
  bool is_integer(std::uint64_t number) const { return is(number, Type::integer); }
  bool is_bytes(std::uint64_t number) const { return is(number, Type::bytes); }
  std::uint64_t integer() const { return integer_; }
  std::string_view bytes() const { return bytes_; }
  ProtoFields message() const { return ProtoFields(bytes_, path_); }
  float number_f32() const {
    float value = 0;
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    refuse("a number of more than 64 bits", path_);
  }
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) refuse("it is cut off", path_);
    const std::string_view part = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return part;
  }

  std::string_view rest_, bytes_;
  const std::string& path_;
  std::uint64_t number_ = 0, integer_ = 0;
  Type type_ = Type::integer;
};

// Numbers of fields: sentencepiece_model.proto of https://github.com/google/sentencepiece.

SentencePieceModel::Piece read_piece(ProtoFields fields, const std::string& path) {
  SentencePieceModel::Piece piece;
  while (fields.next()) {
    if (fields.is_bytes(1)) piece.text = fields.bytes();
    if (fields.is(2, ProtoFields::Type::four_bytes)) piece.score = fields.number_f32();
    if (fields.is_integer(3)) piece.kind = static_cast<PieceKind>(fields.integer());
  }
  if (piece.text.size() > ReaderLimits::kTokenBytes)
    refuse(fmt::format("a piece of more than {} bytes", ReaderLimits::kTokenBytes), path);
  return piece;
}

void read_training(ProtoFields fields, SentencePieceModel& model) {
  while (fields.next()) {
    if (fields.is_integer(3)) model.type = static_cast<SentencePieceModel::Type>(fields.integer());
    if (fields.is_integer(24)) model.marks_behind = fields.integer() != 0;
    if (fields.is_integer(35)) model.has_bytes = fields.integer() != 0;
  }
}

/// The library looks characters up in the map as it is, so a map that leads out of itself is refused: a trie of four
/// bytes a unit (a double array of Darts-clone), whose leaves are places in the texts behind it, which end with 0.
void check_character_map(std::string_view map, const std::string& path) {
  constexpr std::uint32_t kIsLeaf = 1U << 31, kHasLeaf = 1U << 8, kIsFar = 1U << 9;
  constexpr std::size_t kUnitBytes = sizeof(std::uint32_t);
  const auto unit_at = [&](std::size_t i) {
    std::uint32_t unit = 0;
    std::memcpy(&unit, map.data() + (i + 1) * kUnitBytes, sizeof unit);
    return unit;
  };
  const auto fail = [&]() { refuse("its map of characters is damaged", path); };
  if (map.empty()) return;
  if (map.size() < kUnitBytes) fail();
  std::uint32_t trie_bytes = 0;
  std::memcpy(&trie_bytes, map.data(), sizeof trie_bytes);
  if (trie_bytes == 0 || trie_bytes % kUnitBytes != 0 || trie_bytes >= map.size() - kUnitBytes) fail();
  const std::size_t units = trie_bytes / kUnitBytes, text_bytes = map.size() - kUnitBytes - trie_bytes;
  if (map.back() != '\0') fail();
  for (std::size_t i = 0; i < units; ++i) {
    const std::uint32_t unit = unit_at(i);
    if (i > 0 && (unit & kIsLeaf) != 0) continue;  // no look-up enters a leaf
    const std::size_t offset = std::size_t{unit >> 10} << ((unit & kIsFar) != 0 ? 8 : 0), next = i ^ offset;
    if ((next | 0xff) >= units) fail();  // with any byte of a text
    if ((unit & kHasLeaf) != 0 && (unit_at(next) & ~kIsLeaf) >= text_bytes) fail();
  }
}

void read_normalizer(ProtoFields fields, SentencePieceModel& model, const std::string& path) {
  while (fields.next()) {
    if (fields.is_bytes(1)) model.map_name = fields.bytes();
    if (fields.is_bytes(2)) model.character_map = fields.bytes();
    if (fields.is_bytes(2)) check_character_map(fields.bytes(), path);
    if (fields.is_integer(3)) model.adds_space = fields.integer() != 0;
    if (fields.is_integer(4)) model.removes_spaces = fields.integer() != 0;
    if (fields.is_integer(5)) model.marks_spaces = fields.integer() != 0;
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& path) {
  SentencePieceModel model, backwards;
  for (ProtoFields fields(bytes, path); fields.next();) {
    if (fields.is_bytes(1)) model.pieces.push_back(read_piece(fields.message(), path));
    if (model.pieces.size() > ReaderLimits::kPieces)
      refuse(fmt::format("it has more than {} pieces", ReaderLimits::kPieces), path);
    if (fields.is_bytes(2)) read_training(fields.message(), model);
    if (fields.is_bytes(3)) read_normalizer(fields.message(), model, path);
    if (fields.is_bytes(5)) read_normalizer(fields.message(), backwards, path);  // from tokens to a text
  }
  return model;
}

SentencePieceModel load_sentencepiece(const std::string& path, sentencepiece::SentencePieceProcessor& processor) {
  const std::string bytes = read_tokenizer_file(path);
  SentencePieceModel model = parse_sentencepiece_model(bytes, path);  // before the library gets it
  if (const auto status = processor.LoadFromSerializedProto(bytes); !status.ok()) refuse(status.ToString(), path);
  if (std::ssize(model.pieces) != processor.GetPieceSize())
    refuse(fmt::format("{} pieces, of which the library reads {}", model.pieces.size(), processor.GetPieceSize()),
           path);
  return model;
}

SentencePieceModel read_sentencepiece_model(const std::string& path) {
  sentencepiece::SentencePieceProcessor processor;
  SentencePieceModel model = load_sentencepiece(path, processor);
  model.unk = processor.unk_id(), model.bos = processor.bos_id();
  model.eos = processor.eos_id(), model.pad = processor.pad_id();
  return model;
}

}  // namespace zs
