#include "model/data/packed_documents.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>

#include "model/data/bad_data.h"
#include "model/data/data_digest.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

struct EncodedText {
  std::vector<std::int32_t> ids;
  std::int64_t prompt = 0;
  std::exception_ptr problem;
};

/// Encodes texts on several threads, each whichever is next.
class TextEncoder {
 public:
  TextEncoder(const std::vector<TextDocument>& texts, const EncodeOptions& options)
      : texts_(texts), tokenizer_(options.tokenizer), done_(texts.size()) {
    if (tokenizer_ != nullptr) frame_.emplace(*tokenizer_, options.special);
  }

  /// Texts as tokens, in the order of the texts.
  std::vector<EncodedText> run(int threads) {
    std::vector<std::thread> workers;
    try {
      for (int i = 1; i < std::min<std::int64_t>(threads, std::ssize(texts_)); ++i)
        workers.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // fewer will do
    }
    work();
    for (std::thread& worker : workers) worker.join();
    for (const EncodedText& text : done_)
      if (text.problem) std::rethrow_exception(text.problem);
    return std::move(done_);
  }

 private:
  void work() {
    std::unique_ptr<Tokenizer::Encoder> encoder;
    for (std::size_t i = next_++; i < texts_.size(); i = next_++) {
      try {
        if (tokenizer_ != nullptr && !encoder) encoder = tokenizer_->make_encoder();
        encode(texts_[i], encoder.get(), done_[i]);
      } catch (...) {
        done_[i].problem = std::current_exception();
      }
    }
  }

  void encode(const TextDocument& text, Tokenizer::Encoder* encoder, EncodedText& out) const {
    if (encoder == nullptr) {
      for (const std::string* part : {&text.prompt, &text.text})
        for (const char byte : *part) out.ids.push_back(static_cast<unsigned char>(byte));
      out.prompt = std::ssize(text.prompt);
      return;
    }
    try {
      out.prompt = frame_->encode(*encoder, text.prompt, text.text, out.ids);
    } catch (const Error& error) {
      throw Error(error.code(), error.what_happened(), text.where + (error.where().empty() ? "" : ", " + error.where()),
                  error.what_to_do());
    }
    if (const auto end = frame_->end_behind(text.text, out.ids)) out.ids.push_back(*end);
  }

  const std::vector<TextDocument>& texts_;
  const Tokenizer* tokenizer_;
  std::optional<DocumentFrame> frame_;
  std::atomic<std::size_t> next_ = 0;
  std::vector<EncodedText> done_;
};

/// All that are too long, in one error.
void refuse_overlong(const std::vector<EncodedText>& encoded, const std::vector<TextDocument>& texts,
                     const EncodeOptions& options) {
  if (options.overlong == Overlong::split) return;
  const bool by_prompt = options.overlong == Overlong::truncate;
  std::int64_t count = 0, longest = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    const std::int64_t tokens = std::ssize(encoded[i].ids), counted = by_prompt ? encoded[i].prompt : tokens;
    if (tokens <= options.sequence || (by_prompt && counted < options.sequence)) continue;
    if (count++ == 0) first = i;
    longest = std::max(longest, counted + (by_prompt ? 1 : 0));
  }
  if (count == 0) return;
  const std::string first_has = by_prompt ? fmt::format("the prompt has {} tokens, and fills the sequence of {}",
                                                        encoded[first].prompt, options.sequence)
                                          : fmt::format("the document has {} tokens, and a sequence {}",
                                                        encoded[first].ids.size(), options.sequence);
  const std::string all = count == 1 ? "" : fmt::format(" ({} of {} documents are too long)", count, texts.size());
  throw bad_data(first_has + all, texts[first].where,
                 fmt::format("lengthen train.sequence to {}, {}", longest,
                             by_prompt ? "or leave them out" : "or set data.overlong = \"split\" or \"truncate\""));
}

/// The tokenizer may have ids that the model has not, as long as no text has one.
void check_ids(const EncodedText& text, const TextDocument& from, const EncodeOptions& options) {
  const auto outside = std::find_if(text.ids.begin(), text.ids.end(), [&](auto id) { return id >= options.vocab; });
  if (outside == text.ids.end()) return;
  throw bad_data(fmt::format("the document has token {} ('{}'), and the model has {} embeddings", *outside,
                             options.tokenizer->id_to_token(*outside).value_or(""), options.vocab),
                 from.where, "leave that token out, or use a model that has it");
}

/// Adds parts of a document, each of at most a sequence, of the tokens from `first` on.
void add_parts(const EncodedText& text, std::int64_t first, const EncodeOptions& options,
               std::vector<Document>& documents) {
  const std::int64_t tokens = std::ssize(text.ids);
  for (std::int64_t at = 0; at < tokens; at += options.sequence) {
    const std::int64_t length = std::min(options.sequence, tokens - at);
    documents.push_back({.first = first + at,
                         .length = length,
                         .prompt = std::clamp<std::int64_t>(text.prompt - at, 0, length),
                         .goes_on = at + length < tokens && text.prompt <= at + length});
  }
}

}  // namespace

Packing pack(const std::vector<std::int64_t>& lengths, std::int64_t sequence) {
  std::vector<std::int64_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  const auto length_of = [&](std::int64_t document) { return lengths[static_cast<std::size_t>(document)]; };
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](std::int64_t a, std::int64_t b) { return length_of(a) > length_of(b); });
  std::vector<std::vector<std::int64_t>> sequences;
  std::map<std::int64_t, std::vector<std::size_t>> by_room;
  for (const std::int64_t document : longest_first) {
    const std::int64_t length = length_of(document);
    ZS_CHECK(length >= 1 && length <= sequence, "a document of {} tokens in sequences of {}", length, sequence);
    const auto found = by_room.lower_bound(length);
    std::size_t into = sequences.size();
    std::int64_t room = sequence;
    if (found != by_room.end()) {
      room = found->first;
      into = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) by_room.erase(found);
    } else {
      sequences.emplace_back();
    }
    sequences[into].push_back(document);
    if (room > length) by_room[room - length].push_back(into);
  }
  Packing packing{{}, {0}};
  for (const std::vector<std::int64_t>& documents : sequences) {
    packing.order.insert(packing.order.end(), documents.begin(), documents.end());
    packing.begin.push_back(std::ssize(packing.order));
  }
  return packing;
}

PackedDocuments::PackedDocuments(std::shared_ptr<const Corpus> corpus, std::vector<Document> documents,
                                 std::int64_t sequence)
    : corpus_(std::move(corpus)), documents_(std::move(documents)), sequence_(sequence) {
  std::vector<std::int64_t> lengths;
  for (const Document& document : documents_) lengths.push_back(document.length);
  tokens_ = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  packing_ = pack(lengths, sequence);
}

std::int64_t PackedDocuments::targets(std::int64_t sequence) const {
  ZS_CHECK(sequence >= 0 && sequence < sequences(), "sequence {} of {}", sequence, sequences());
  std::int64_t count = 0;
  const auto begin = packing_.begin.begin() + sequence;
  for (std::int64_t i = begin[0]; i < begin[1]; ++i)
    count += documents_[static_cast<std::size_t>(packing_.order[static_cast<std::size_t>(i)])].targets();
  return count;
}

void PackedDocuments::read(std::int64_t sequence, std::int32_t* inputs, std::int32_t* targets,
                           std::vector<std::int64_t>& lengths) const {
  ZS_CHECK(sequence >= 0 && sequence < sequences(), "sequence {} of {}", sequence, sequences());
  std::fill_n(inputs, sequence_, 0);
  std::fill_n(targets, sequence_, kIgnoredTarget);
  std::int64_t at = 0;
  const auto begin = packing_.begin.begin() + sequence;
  for (std::int64_t i = begin[0]; i < begin[1]; ++i) {
    const Document& document = documents_[static_cast<std::size_t>(packing_.order[static_cast<std::size_t>(i)])];
    corpus_->read(document.first, document.length, inputs + at);
    for (std::int64_t t = std::max<std::int64_t>(document.prompt, 1); t < document.length; ++t)
      targets[at + t - 1] = inputs[at + t];
    at += document.length;
    if (document.goes_on) corpus_->read(document.first + document.length, 1, targets + at - 1);
    lengths.push_back(document.length);
  }
  if (at < sequence_) lengths.push_back(sequence_ - at);
}

std::string PackedDocuments::digest() const {
  std::vector<std::int64_t> facts;
  for (const Document& document : documents_)
    facts.insert(facts.end(), {document.length, document.prompt, document.goes_on ? 1 : 0});
  const std::int64_t first = documents_.front().first, end = documents_.back().first + documents_.back().length;
  return fmt::format("{}-{:016x}", digest_of(*corpus_, first, end - first),
                     XXH3_64bits(facts.data(), facts.size() * sizeof(std::int64_t)));
}

EncodedDocuments encode_texts(const std::vector<TextDocument>& texts, const std::vector<std::string>& files,
                              const EncodeOptions& options) {
  std::vector<EncodedText> encoded = TextEncoder(texts, options).run(options.threads);
  refuse_overlong(encoded, texts, options);
  EncodedDocuments result;
  const DataFormat format{
      .kind = DataKind::tokens, .vocab = options.vocab, .token_bytes = token_bytes_for(options.vocab)};
  std::vector<std::byte> ids;
  for (std::size_t i = 0; i < encoded.size(); ++i) {
    EncodedText& text = encoded[i];
    if (options.tokenizer != nullptr) check_ids(text, texts[i], options);
    if (options.overlong == Overlong::truncate && std::ssize(text.ids) > options.sequence)
      text.ids.resize(static_cast<std::size_t>(options.sequence));
    add_parts(text, std::ssize(ids) / format.token_bytes, options, result.documents);
    result.where.resize(result.documents.size(), texts[i].where);
    append_ids(ids, text.ids, format.token_bytes);
    text = {};
  }
  result.corpus = std::make_shared<const Corpus>(format, files, std::move(ids));
  return result;
}

std::int64_t longest_of(const std::vector<TextDocument>& texts, const EncodeOptions& options) {
  std::int64_t longest = 0;
  for (const EncodedText& text : TextEncoder(texts, options).run(options.threads))
    longest = std::max(longest, std::ssize(text.ids));
  return longest;
}

}  // namespace zs
