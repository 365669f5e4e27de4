#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zs {

/// Ids before and behind a text.
struct SpecialFrame {
  std::vector<std::int32_t> before, behind;
};

/// Part of a text as it was encoded: the ids from `first_id` on, up to the next part's, are of bytes [begin, end).
struct EncodedPart {
  std::size_t begin = 0, end = 0, first_id = 0;
  bool is_token = false;  ///< one added token, with the white space that it takes
};

/// Text to token ids and back, as a tokenizer folder defines it: `tokenizer.json` (byte-level BPE as GPT-2, Llama 3 and
/// Qwen have it, BPE with byte fallback as Llama 2 and Mistral have it), or else `tokenizer.model` (SentencePiece).
///
/// The ids are those of the tokenizer's own program, or the folder is refused: a setting that changes ids and is not
/// supported here is an Error(model) that names it. Immutable: any thread may call any function. Encoders are for one
/// thread each.
class Tokenizer {
 public:
  /// Encoder that one thread uses: scratch memory and a cache of words. It must not outlive its tokenizer.
  class Encoder {
   public:
    virtual ~Encoder() = default;
    /// Appends the ids of `text` to `out`. With `add_special_tokens` also those that the tokenizer puts around a text,
    /// such as Llama 3's <|begin_of_text|>. The text of an added token ("<|endoftext|>") becomes that token wherever it
    /// stands.
    /// Throws Error(dataset) with the byte offset where the text is not UTF-8, Error(model) where the tokenizer has no
    /// token for a text.
    /// `parts`: gets the parts of the text, in their order.
    virtual void encode(std::string_view text, bool add_special_tokens, std::vector<std::int32_t>& out,
                        std::vector<EncodedPart>* parts = nullptr) = 0;
  };

  virtual ~Tokenizer() = default;
  virtual std::unique_ptr<Encoder> make_encoder() const = 0;
  /// Encodes with an encoder of its own: for a text or two.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  /// The bytes that the ids stand for, all of them: a character cut in two is not replaced. `skip_special_tokens`
  /// leaves out the added tokens that are marked special; an id without a token stands for nothing. Throws Error(model)
  /// for a decoder that is not supported.
  virtual std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = false) const = 0;

  /// One more than the largest id: what a model's vocabulary must hold.
  virtual std::int32_t vocab_size() const = 0;
  virtual std::optional<std::int32_t> token_to_id(std::string_view token) const = 0;
  /// The token's own spelling; none for an id in a gap.
  virtual std::optional<std::string> id_to_token(std::int32_t id) const = 0;
  /// The bytes of a text that the id stands for, a space before a word with it; "": it has no token.
  virtual std::string surface(std::int32_t id) const = 0;
  /// True if the id is that of an added token that is marked special.
  virtual bool is_special(std::int32_t id) const = 0;
  /// The id that ends a document: `eos_token` of the files beside it (TokenizerConfig); without that, tokenizer.model's
  /// own, or the first of `<|endoftext|>`, `<|end_of_text|>`, `</s>`, `<eos>` that is an added token.
  std::optional<std::int32_t> end_of_text() const { return end_of_text_; }
  /// The id that begins a text: `bos_token` of those files; without that, tokenizer.model's own.
  std::optional<std::int32_t> begin_of_text() const { return begin_of_text_; }
  /// Special tokens around a text.
  const SpecialFrame& frame() const { return frame_; }

 protected:
  SpecialFrame frame_;
  std::optional<std::int32_t> begin_of_text_;
  std::optional<std::int32_t> end_of_text_;
  friend std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);
};

/// `path`: a folder, or its tokenizer.json or tokenizer.model, which may have other names (NAME.model is
/// SentencePiece's); its settings are those of the files beside it
/// (TokenizerConfig). Throws Error(model) that names the file and what
/// is wrong with it, or the folder where it has no tokenizer.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path);

}  // namespace zs
