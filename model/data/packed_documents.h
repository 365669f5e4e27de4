#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/chat/chat_template.h"
#include "model/data/corpus.h"
#include "model/data/text_documents.h"
#include "model/tokenizer/document_encoder.h"
#include "model/tokenizer/tokenizer.h"

namespace zs {

/// Tokens [begin, end) of a document.
struct TokenSpan {
  std::int64_t begin = 0, end = 0;
  bool operator==(const TokenSpan&) const = default;
};

/// A document, or a part of one, as tokens of a corpus.
struct Document {
  std::int64_t first = 0, length = 0;
  std::vector<TokenSpan> trained = {};  ///< its tokens that are targets, ascending; the first of all is none anyhow
  bool goes_on = false;                 ///< the token behind it is its last one's target

  std::int64_t targets() const;
};

/// Packing of documents into sequences: `sequence` s has those of `order` from begin[s] up to begin[s + 1].
struct Packing {
  std::vector<std::int64_t> order, begin;
};
/// Best fit, the longest first: each document goes where it leaves the least room, or into a sequence of its own. It
/// follows from the lengths alone, of which each is from 1 to `sequence`.
Packing pack(const std::vector<std::int64_t>& lengths, std::int64_t sequence);

/// Documents in sequences of `sequence` tokens, whole, with padding after them that counts for nothing. Immutable: any
/// thread may read.
class PackedDocuments {
 public:
  /// `group` > 0: each document has a sequence of its own, in their order, of which so many stay together.
  PackedDocuments(std::shared_ptr<const Corpus> corpus, std::vector<Document> documents, std::int64_t sequence,
                  std::int64_t group = 0);

  std::int64_t sequences() const { return std::ssize(packing_.begin) - 1; }
  /// Sequences that are one after the other in every order of them.
  std::int64_t group() const { return std::max<std::int64_t>(group_, 1); }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return std::ssize(documents_); }
  /// Count of the targets that count in a sequence.
  std::int64_t targets(std::int64_t sequence) const;
  /// (T) inputs and targets of a sequence; kIgnoredTarget for prompts, a document's last token and padding. Its
  /// documents' lengths are added to `lengths`, those of padding too.
  void read(std::int64_t sequence, std::int32_t* inputs, std::int32_t* targets,
            std::vector<std::int64_t>& lengths) const;
  /// Digest of all documents: their tokens, where each begins, and what of it counts.
  std::string digest() const;
  const std::shared_ptr<const Corpus>& corpus() const { return corpus_; }

 private:
  std::shared_ptr<const Corpus> corpus_;
  std::vector<Document> documents_;
  std::int64_t sequence_, group_ = 0, tokens_ = 0;
  Packing packing_;
};

/// Options of `encode_texts` beside the texts.
struct EncodeOptions {
  const Tokenizer* tokenizer = nullptr;  ///< null: bytes
  std::int64_t sequence = 0, vocab = 0;
  Overlong overlong = Overlong::refuse;
  SpecialTokens special = SpecialTokens::automatic;
  int threads = 1;
  const ChatTemplate* chat = nullptr;  ///< renders the texts that are lines of a chat file
  TrainOn train_on = TrainOn::assistant;
};
struct EncodedDocuments {
  std::shared_ptr<const Corpus> corpus;  ///< held in memory
  std::vector<Document> documents;
  std::vector<std::string> where;  ///< place of each document: "file:line"
};
/// A chat is the text that its template makes, encoded as it is, without a token around it; its targets are those
/// tokens of which any byte is trained on. A prompt and what follows it are encoded each by itself. The special tokens
/// that the tokenizer puts around a text stand around the document, and its end-of-text token, if it has one, ends it
/// (SpecialTokens). Throws Error(dataset) that names the document: where it has a token that the vocabulary has not, or
/// more than a sequence.
EncodedDocuments encode_texts(const std::vector<TextDocument>& texts, const std::vector<std::string>& files,
                              const EncodeOptions& options);
/// The tokens of the longest of them.
std::int64_t longest_of(const std::vector<TextDocument>& texts, const EncodeOptions& options);

}  // namespace zs
