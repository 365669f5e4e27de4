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
#include "model/tokenizer/token_places.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

struct EncodedText {
  std::vector<std::int32_t> ids;
  std::vector<TokenSpan> trained;
  std::exception_ptr problem;

  /// Count of the tokens before the first target.
  std::int64_t prompt() const { return trained.empty() ? std::ssize(ids) : trained.front().begin; }
};

/// Encodes texts on several threads, each whichever is next.
class TextEncoder {
 public:
  TextEncoder(const std::vector<TextDocument>& texts, const EncodeOptions& options)
      : texts_(texts),
        tokenizer_(options.tokenizer),
        chat_(options.chat),
        train_on_(options.train_on),
        done_(texts.size()) {
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
      } catch (const Error& error) {
        done_[i].problem = std::make_exception_ptr(
            Error(error.code(), error.what_happened(),
                  texts_[i].where + (error.where().empty() ? "" : ", " + error.where()), error.what_to_do()));
      } catch (...) {
        done_[i].problem = std::current_exception();
      }
    }
  }

  void encode(const TextDocument& text, Tokenizer::Encoder* encoder, EncodedText& out) const {
    if (text.is_chat && (chat_ == nullptr || encoder == nullptr))
      throw bad_data("messages without a chat template", "",
                     "set model.path or data.tokenizer to a folder that has one, or data.chat_template");
    if (text.is_chat) return encode_chat(text, *encoder, out);
    std::int64_t prompt = std::ssize(text.prompt);
    if (encoder == nullptr) {
      for (const std::string* part : {&text.prompt, &text.text})
        for (const char byte : *part) out.ids.push_back(static_cast<unsigned char>(byte));
    } else {
      prompt = frame_->encode(*encoder, text.prompt, text.text, out.ids);
      if (const auto end = frame_->end_behind(text.text, out.ids)) out.ids.push_back(*end);
    }
    if (prompt < std::ssize(out.ids)) out.trained = {{prompt, std::ssize(out.ids)}};
  }

  void encode_chat(const TextDocument& line, Tokenizer::Encoder& encoder, EncodedText& out) const {
    const ChatText chat = chat_->render(line.text, train_on_);
    std::vector<EncodedPart> parts;
    encoder.encode(chat.text, false, out.ids, &parts);
    const std::vector<TokenPlace> places = token_places(*tokenizer_, chat.text, out.ids, parts);
    for (const jinja::TextSpan& span : chat.trained) {
      const TokenSpan tokens = tokens_of(span, places);
      const std::int64_t end = chat.ends_with_token ? end_of_turn(tokens, out.ids) : tokens.end;
      const std::int64_t begin = std::max(tokens.begin, out.trained.empty() ? 0 : out.trained.back().end);
      if (begin < end) out.trained.push_back({begin, end});
    }
  }

  /// Tokens that have a byte of the span.
  static TokenSpan tokens_of(const jinja::TextSpan& span, const std::vector<TokenPlace>& places) {
    const auto begin =
        std::find_if(places.begin(), places.end(), [&](const auto& place) { return place.end > span.begin; });
    const auto end = std::find_if(begin, places.end(), [&](const auto& place) { return place.begin >= span.end; });
    return {begin - places.begin(), end - places.begin()};
  }

  /// End of a turn, whose last special token ends it where nothing but white space comes behind.
  std::int64_t end_of_turn(const TokenSpan& turn, const std::vector<std::int32_t>& ids) const {
    std::int64_t end = turn.end;
    const auto id_before = [&](std::int64_t at) { return ids[static_cast<std::size_t>(at - 1)]; };
    while (end > turn.begin && tokenizer_->surface(id_before(end)).find_first_not_of(" \t\r\n") == std::string::npos)
      --end;
    return end > turn.begin && tokenizer_->is_special(id_before(end)) ? end : turn.end;
  }

  const std::vector<TextDocument>& texts_;
  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  TrainOn train_on_;
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
    const std::int64_t tokens = std::ssize(encoded[i].ids), counted = by_prompt ? encoded[i].prompt() : tokens;
    if (tokens <= options.sequence || (by_prompt && counted < options.sequence)) continue;
    if (count++ == 0) first = i;
    longest = std::max(longest, counted + (by_prompt ? 1 : 0));
  }
  if (count == 0) return;
  const std::string first_has = by_prompt ? fmt::format("the prompt has {} tokens, and fills the sequence of {}",
                                                        encoded[first].prompt(), options.sequence)
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

/// The spans within [at, at + length), counted from there.
std::vector<TokenSpan> spans_within(const std::vector<TokenSpan>& spans, std::int64_t at, std::int64_t length) {
  std::vector<TokenSpan> within;
  for (const TokenSpan& span : spans) {
    const TokenSpan part{std::max(span.begin - at, std::int64_t{0}), std::min(span.end - at, length)};
    if (part.begin < part.end) within.push_back(part);
  }
  return within;
}

/// Adds parts of a document, each of at most a sequence, of the tokens from `first` on.
void add_parts(const EncodedText& text, std::int64_t first, const EncodeOptions& options,
               std::vector<Document>& documents) {
  const std::int64_t tokens = std::ssize(text.ids);
  for (std::int64_t at = 0; at < tokens; at += options.sequence) {
    const std::int64_t length = std::min(options.sequence, tokens - at);
    documents.push_back(
        {.first = first + at,
         .length = length,
         .trained = spans_within(text.trained, at, length),
         .goes_on = !spans_within(text.trained, at + length, std::min<std::int64_t>(1, tokens - at - length)).empty()});
  }
}

}  // namespace

std::int64_t Document::targets() const {
  std::int64_t count = goes_on ? 1 : 0;
  for (const TokenSpan& span : trained) count += span.end - std::min(span.end, std::max<std::int64_t>(span.begin, 1));
  return count;
}

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
                                 std::int64_t sequence, std::int64_t group)
    : corpus_(std::move(corpus)), documents_(std::move(documents)), sequence_(sequence), group_(group) {
  std::vector<std::int64_t> lengths;
  for (const Document& document : documents_) lengths.push_back(document.length);
  tokens_ = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  if (group == 0) {
    packing_ = pack(lengths, sequence);
    return;
  }
  packing_.order.resize(lengths.size());
  packing_.begin.resize(lengths.size() + 1);
  std::iota(packing_.order.begin(), packing_.order.end(), 0);
  std::iota(packing_.begin.begin(), packing_.begin.end(), 0);
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
    for (const TokenSpan& span : document.trained)
      for (std::int64_t t = std::max<std::int64_t>(span.begin, 1); t < span.end; ++t)
        targets[at + t - 1] = inputs[at + t];
    at += document.length;
    if (document.goes_on) corpus_->read(document.first + document.length, 1, targets + at - 1);
    lengths.push_back(document.length);
  }
  if (at < sequence_) lengths.push_back(sequence_ - at);
}

std::string PackedDocuments::digest() const {
  std::vector<std::int64_t> facts;
  for (const Document& document : documents_) {
    const std::vector<TokenSpan>& trained = document.trained;
    facts.insert(facts.end(), {document.length, trained.empty() ? document.length : trained.front().begin,
                               document.goes_on ? 1 : 0});
    const bool is_whole = trained.empty() || (trained.size() == 1 && trained.front().end == document.length);
    for (const TokenSpan& span : is_whole ? std::vector<TokenSpan>() : trained)
      facts.insert(facts.end(), {span.begin, span.end});
  }
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
    if (options.overlong == Overlong::truncate && std::ssize(text.ids) > options.sequence) {
      text.ids.resize(static_cast<std::size_t>(options.sequence));
      text.trained = spans_within(text.trained, 0, options.sequence);
    }
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
