#include "model/tokenizer/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include "model/tokenizer/read_file.h"
#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

using sentencepiece::SentencePieceProcessor;

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& path, const TokenizerConfig& config) : path_(path), config_(config) {
    const auto status = processor_.LoadFromSerializedProto(read_tokenizer_file(path));
    if (!status.ok())
      throw Error(ExitCode::model, fmt::format("this is no SentencePiece model: {}", status.ToString()), path,
                  "fetch it again");
    if (processor_.eos_id() >= 0) end_of_text_ = processor_.eos_id();
    if ((config.add_bos_token && processor_.bos_id() < 0) || (config.add_eos_token && processor_.eos_id() < 0))
      throw Error(ExitCode::model, "tokenizer_config.json adds a token that the model does not have", path,
                  "correct add_bos_token or add_eos_token");
  }

  std::unique_ptr<Encoder> make_encoder() const override { return std::make_unique<PieceEncoder>(*this); }

  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const override {
    std::vector<int> known;
    for (const std::int32_t id : ids)
      if (id >= 0 && id < vocab_size() && !(skip_special_tokens && processor_.IsControl(id))) known.push_back(id);
    std::string text;
    check(processor_.Decode(known, &text));
    return text;
  }

  std::int32_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<std::int32_t> token_to_id(std::string_view token) const override {
    const int id = processor_.PieceToId(token);
    return id >= 0 && id < vocab_size() && processor_.IdToPiece(id) == token ? std::optional(id) : std::nullopt;
  }
  std::optional<std::string> id_to_token(std::int32_t id) const override {
    return id >= 0 && id < vocab_size() ? std::optional(processor_.IdToPiece(id)) : std::nullopt;
  }

 private:
  class PieceEncoder : public Encoder {
   public:
    explicit PieceEncoder(const SentencePieceTokenizer& owner) : owner_(owner) {}
    void encode(std::string_view text, bool add_special_tokens, std::vector<std::int32_t>& out) override {
      if (const std::size_t invalid = find_invalid_utf8(text); invalid != kValidUtf8)
        throw Error(ExitCode::dataset, "the text is not valid UTF-8", fmt::format("byte {}", invalid),
                    "convert it to UTF-8");
      if (add_special_tokens && owner_.config_.add_bos_token) out.push_back(owner_.processor_.bos_id());
      owner_.check(owner_.processor_.Encode(text, &ids_));
      out.insert(out.end(), ids_.begin(), ids_.end());
      if (add_special_tokens && owner_.config_.add_eos_token) out.push_back(owner_.processor_.eos_id());
    }

   private:
    const SentencePieceTokenizer& owner_;
    std::vector<int> ids_;
  };

  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) throw Error(ExitCode::model, fmt::format("SentencePiece: {}", status.ToString()), path_);
  }

  std::string path_;
  TokenizerConfig config_;
  SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path, const TokenizerConfig& config) {
  return std::make_unique<SentencePieceTokenizer>(path, config);
}

}  // namespace zs
