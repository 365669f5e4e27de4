#include "model/tokenizer/sentencepiece_model.h"

#include <sentencepiece_processor.h>

#include <cstring>
#include <string_view>

#include "model/tokenizer/read_file.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

/// The fields of a message of protocol buffers, one after the other. The library, which does not tell the type of its
/// model nor all kinds of pieces, has accepted the message: what is cut off here is a fault of this reader.
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view message) : rest_(message) {}

  /// The next field's number, and its value: an integer, or bytes.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    number_ = static_cast<int>(key >> 3);
    switch (key & 7) {
      case 0: integer_ = varint(); break;
      case 1: bytes_ = take(8); break;
      case 2: bytes_ = take(varint()); break;
      case 5: bytes_ = take(4); break;
      default: ZS_CHECK(false, "wire type {} in a SentencePiece model", key & 7);
    }
    return true;
  }
  int number() const { return number_; }
  std::uint64_t integer() const { return integer_; }
  std::string_view bytes() const { return bytes_; }
  float number_f32() const {
    float value = 0;
    ZS_CHECK(bytes_.size() == sizeof value, "{} bytes of a number", bytes_.size());
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) break;
    }
    return value;
  }
  std::string_view take(std::uint64_t count) {
    ZS_CHECK(count <= rest_.size(), "{} bytes of {} in a SentencePiece model", count, rest_.size());
    const std::string_view part = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return part;
  }

  std::string_view rest_, bytes_;
  int number_ = 0;
  std::uint64_t integer_ = 0;
};

// Numbers of fields: sentencepiece_model.proto of https://github.com/google/sentencepiece.

SentencePieceModel::Piece read_piece(std::string_view message) {
  SentencePieceModel::Piece piece;
  for (ProtoFields fields(message); fields.next();) {
    if (fields.number() == 1) piece.text = fields.bytes();
    if (fields.number() == 2) piece.score = fields.number_f32();
    if (fields.number() == 3) piece.kind = static_cast<PieceKind>(fields.integer());
  }
  return piece;
}

void read_training(std::string_view message, SentencePieceModel& model) {
  for (ProtoFields fields(message); fields.next();) {
    if (fields.number() == 3) model.type = static_cast<SentencePieceModel::Type>(fields.integer());
    if (fields.number() == 24) model.marks_behind = fields.integer() != 0;
    if (fields.number() == 35) model.has_bytes = fields.integer() != 0;
  }
}

void read_normalizer(std::string_view message, SentencePieceModel& model) {
  for (ProtoFields fields(message); fields.next();) {
    if (fields.number() == 1) model.map_name = fields.bytes();
    if (fields.number() == 2) model.character_map = fields.bytes();
    if (fields.number() == 3) model.adds_space = fields.integer() != 0;
    if (fields.number() == 4) model.removes_spaces = fields.integer() != 0;
    if (fields.number() == 5) model.marks_spaces = fields.integer() != 0;
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes) {
  SentencePieceModel model;
  for (ProtoFields fields(bytes); fields.next();) {
    if (fields.number() == 1) model.pieces.push_back(read_piece(fields.bytes()));
    if (fields.number() == 2) read_training(fields.bytes(), model);
    if (fields.number() == 3) read_normalizer(fields.bytes(), model);
  }
  return model;
}

SentencePieceModel read_sentencepiece_model(const std::string& path) {
  const std::string bytes = read_tokenizer_file(path);
  sentencepiece::SentencePieceProcessor processor;
  if (const auto status = processor.LoadFromSerializedProto(bytes); !status.ok())
    throw Error(ExitCode::model, fmt::format("this is no SentencePiece model: {}", status.ToString()), path,
                "fetch it again");
  SentencePieceModel model = parse_sentencepiece_model(bytes);
  ZS_CHECK(std::ssize(model.pieces) == processor.GetPieceSize(), "{} pieces of {}", model.pieces.size(),
           processor.GetPieceSize());
  model.unk = processor.unk_id(), model.bos = processor.bos_id();
  model.eos = processor.eos_id(), model.pad = processor.pad_id();
  return model;
}

}  // namespace zs
