// tokenizer.json as plain structures. Every object is read by name and then asked what else it holds: a setting that
// nobody read is refused.

#include <unordered_set>

#include "model/json/strict_json.h"
#include "model/tokenizer/json_fields.h"
#include "model/tokenizer/read_file.h"
#include "model/tokenizer/tokenizer_spec.h"
#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

using nlohmann::json;

constexpr const char* kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Calls `step(fields, type)` for the object under `key`, or for each that its Sequences hold under `list`.
template <class Step>
void for_each_step(Fields& parent, const char* key, const char* list, const Step& step) {
  if (parent.find(key) == nullptr) return;
  int steps = 0;
  const auto visit = [&](Fields fields, const auto& self) -> void {
    const std::string type = fields.text("type");
    if (type != "Sequence") {
      if (++steps > ReaderLimits::kTokenizerSteps)
        parent.fail(fmt::format("has more than {} steps in {}", ReaderLimits::kTokenizerSteps, key));
      step(fields, type);
    } else {
      const json& inner = fields.array(list);
      for (std::size_t i = 0; i < inner.size(); ++i) self(fields.element(inner, list, i), self);
    }
    fields.check_all_read();
  };
  visit(parent.object(key), visit);
}

Regex read_pattern(Fields& fields) {
  Fields pattern = fields.object("pattern");
  const std::string setting = fields.file() + ", " + fields.path_of("pattern");
  const bool is_regex = pattern.find("Regex") != nullptr;
  const std::string text = pattern.text(is_regex ? "Regex" : "String");
  pattern.check_all_read();
  if (text.empty()) pattern.fail("is empty");
  return is_regex ? Regex(text, setting) : Regex::literal(text, setting);
}

std::string one_character(Fields& fields, const char* key) {
  std::string text = fields.text(key);
  if (text.empty() || utf8_length(text[0]) != text.size())
    fields.fail(fmt::format("has a {} that is not one character", key));
  return text;
}

NormalizerStep read_normalizer(Fields& fields, const std::string& type) {
  using Kind = NormalizerStep::Kind;
  NormalizerStep step;
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = type == "NFC" ? Kind::nfc : type == "NFD" ? Kind::nfd : type == "NFKC" ? Kind::nfkc : Kind::nfkd;
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.text = fields.text("prepend");
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.pattern.push_back(read_pattern(fields));
    step.text = fields.text("content");
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.strip_left = fields.boolean("strip_left");
    step.strip_right = fields.boolean("strip_right");
  } else {
    fields.refuse("type", type);
  }
  return step;
}

PrependScheme read_prepend_scheme(Fields& fields) {
  // add_prefix_space is what older files say.
  const bool adds = fields.boolean("add_prefix_space", true);
  const std::string scheme = fields.text("prepend_scheme", adds ? "always" : "never");
  if (!adds && scheme != "never")
    fields.fail(fmt::format("has add_prefix_space = false and prepend_scheme = {}", scheme));
  if (scheme != "always" && scheme != "first" && scheme != "never") fields.refuse("prepend_scheme", scheme);
  return scheme == "always" ? PrependScheme::always : scheme == "first" ? PrependScheme::first : PrependScheme::never;
}

SplitBehavior read_behavior(Fields& fields) {
  const std::string name = fields.text("behavior");
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  fields.refuse("behavior", name);
}

PreTokenizerStep read_pre_tokenizer(Fields& fields, const std::string& type) {
  using Kind = PreTokenizerStep::Kind;
  PreTokenizerStep step;
  const std::string setting = fields.file() + ", " + fields.path_of(type);
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    step.add_prefix_space = fields.boolean("add_prefix_space");
    if (fields.boolean("use_regex", true)) step.pattern.emplace_back(kGpt2Pattern, setting);
    fields.ignore({"trim_offsets"});
  } else if (type == "Split") {
    step.pattern.push_back(read_pattern(fields));
    step.behavior = read_behavior(fields);
    step.invert = fields.boolean("invert");
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.replacement = one_character(fields, "replacement");
    step.prepend_scheme = read_prepend_scheme(fields);
    step.behavior = SplitBehavior::merged_with_next;
    if (fields.boolean("split", true)) step.pattern.push_back(Regex::literal(step.replacement, setting));
    fields.ignore({"str_rep"});
  } else if (type == "Digits") {
    step.pattern.emplace_back("\\p{N}", setting);
    step.behavior = fields.boolean("individual_digits") ? SplitBehavior::isolated : SplitBehavior::contiguous;
  } else if (type == "WhitespaceSplit") {
    step.pattern.emplace_back("\\s", setting);
    step.behavior = SplitBehavior::removed;
  } else {
    fields.refuse("type", type);
  }
  return step;
}

DecoderStep read_decoder(Fields& fields, const std::string& type) {
  using Kind = DecoderStep::Kind;
  DecoderStep step;
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Fuse") {
    step.kind = Kind::fuse;
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    step.pattern.push_back(read_pattern(fields));
    step.text = fields.text("content");
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.text = one_character(fields, "content");
    step.start = fields.integer("start", 1 << 20);
    step.stop = fields.integer("stop", 1 << 20);
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.text = one_character(fields, "replacement");
    step.prepend_scheme = read_prepend_scheme(fields);
    fields.ignore({"split", "str_rep"});
  } else if (type == "BPEDecoder") {
    step.kind = Kind::suffix;
    step.text = fields.text("suffix");
  } else {  // other decoders change no ids
    step.kind = Kind::unsupported;
    step.text = type;
    fields.ignore({"prefix", "cleanup", "pad_token", "word_delimiter_token", "decoders"});
  }
  return step;
}

std::vector<AddedToken> read_added_tokens(Fields& top) {
  std::vector<AddedToken> tokens;
  if (top.find("added_tokens") == nullptr) return tokens;
  const json& list = top.array("added_tokens");
  for (std::size_t i = 0; i < list.size(); ++i) {
    Fields fields = top.element(list, "added_tokens", i);
    AddedToken token;
    token.id = static_cast<std::int32_t>(fields.integer("id", kLargestTokenId));
    token.content = fields.text("content");
    if (token.content.size() > ReaderLimits::kAddedTokenBytes)
      fields.fail(fmt::format("has a content of more than {} bytes", ReaderLimits::kAddedTokenBytes));
    token.single_word = fields.boolean("single_word");
    token.lstrip = fields.boolean("lstrip");
    token.rstrip = fields.boolean("rstrip");
    token.normalized = fields.boolean("normalized");
    token.special = fields.boolean("special");
    fields.check_all_read();
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void append_special(Fields& processor, Fields& piece, std::vector<std::int32_t>& ids) {
  Fields reference = piece.object("SpecialToken");
  const std::string name = reference.text("id");
  reference.ignore({"type_id"});
  reference.check_all_read();
  Fields all = processor.object("special_tokens");
  Fields token = all.object(name.c_str());
  const json& list = token.array("ids");
  for (const json& id : list) ids.push_back(static_cast<std::int32_t>(token.integer_of(id, "ids", kLargestTokenId)));
  if (ids.size() > ReaderLimits::kFrameIds)
    processor.fail(fmt::format("puts more than {} tokens around a text", ReaderLimits::kFrameIds));
}

SpecialFrame read_template(Fields& fields) {
  SpecialFrame frame;
  const json& single = fields.array("single");
  bool is_behind = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    Fields piece = fields.element(single, "single", i);
    if (piece.find("Sequence") == nullptr) {
      append_special(fields, piece, is_behind ? frame.behind : frame.before);
    } else {
      if (is_behind || piece.object("Sequence").text("id") != "A") piece.fail("is not the one text that is encoded");
      is_behind = true;
    }
    piece.check_all_read();
  }
  if (!is_behind) fields.fail("has a template without the text");
  fields.ignore({"pair", "special_tokens"});
  return frame;
}

std::int32_t second_of_pair(Fields& fields, const char* key) {
  const json& pair = fields.array(key);
  if (pair.size() != 2) fields.fail(fmt::format("has a {} that is not [token, id]", key));
  return static_cast<std::int32_t>(fields.integer_of(pair[1], key, kLargestTokenId));
}

/// One step around what the steps before have made.
void read_post_processor(Fields& fields, const std::string& type, SpecialFrame& frame) {
  SpecialFrame own;
  if (type == "TemplateProcessing") {
    own = read_template(fields);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    own.before.push_back(second_of_pair(fields, "cls"));
    own.behind.push_back(second_of_pair(fields, "sep"));
    fields.ignore({"add_prefix_space", "trim_offsets"});
  } else if (type == "ByteLevel") {
    fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});  // offsets only
  } else {
    fields.refuse("type", type);
  }
  frame.before.insert(frame.before.begin(), own.before.begin(), own.before.end());
  frame.behind.insert(frame.behind.end(), own.behind.begin(), own.behind.end());
}

void read_vocab(Fields& model, BpeSpec& spec) {
  const json& vocab = model.get("vocab");
  if (!vocab.is_object()) model.fail("has a vocab that is no object");
  std::unordered_set<std::int64_t> ids;
  std::int64_t largest = 0;
  spec.vocab.reserve(vocab.size());
  for (const auto& entry : vocab.items()) {
    if (!entry.value().is_number_integer() || entry.value() < 0 || entry.value() > kLargestTokenId)
      model.fail(
          fmt::format("has a token '{}' whose id is no number from 0 to {}", shown(entry.key()), kLargestTokenId));
    const auto id = entry.value().get<std::int32_t>();
    if (!ids.insert(id).second)
      model.fail(fmt::format("has two tokens of id {}, one of them '{}'", id, shown(entry.key())));
    spec.vocab.emplace_back(entry.key(), id);
    largest = std::max<std::int64_t>(largest, id);
  }
  if (largest > 2 * std::ssize(spec.vocab) + ReaderLimits::kUnusedIds)
    model.fail(fmt::format("has an id {} among {} tokens", largest, spec.vocab.size()));
}

void read_merges(Fields& model, BpeSpec& spec) {
  const json& merges = model.array("merges");
  spec.merges.reserve(merges.size());
  const bool are_texts = !merges.empty() && merges[0].is_string();
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const json& merge = merges[i];
    const bool is_pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (are_texts ? !merge.is_string() : !is_pair)
      model.fail(fmt::format("has a merges[{}] that is no pair of tokens", i));
    if (is_pair) {
      spec.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.get<std::string>();
    if (text.starts_with("#version")) continue;
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      model.fail(fmt::format("has a merges[{}] = '{}' that is not two tokens with a space between", i, shown(text)));
    spec.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
}

BpeSpec read_model(Fields model) {
  BpeSpec spec;
  const std::string type = model.text("type", "BPE");  // older files say nothing
  if (type != "BPE") model.refuse("type", type);
  const json* const dropout = model.find("dropout");
  if (dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0.0))
    model.refuse("dropout", dropout->dump());
  spec.has_unk = model.find("unk_token") != nullptr;
  spec.unk_token = model.text("unk_token", "");
  spec.continuing_prefix = model.text("continuing_subword_prefix", "");
  spec.end_of_word_suffix = model.text("end_of_word_suffix", "");
  for (const std::string& affix : {spec.continuing_prefix, spec.end_of_word_suffix})
    if (affix.size() > ReaderLimits::kAffixBytes)
      model.fail(fmt::format("has a prefix or suffix of more than {} bytes", ReaderLimits::kAffixBytes));
  spec.fuse_unk = model.boolean("fuse_unk", false);
  spec.byte_fallback = model.boolean("byte_fallback", false);
  spec.ignore_merges = model.boolean("ignore_merges", false);
  read_vocab(model, spec);
  read_merges(model, spec);
  model.check_all_read();
  return spec;
}

}  // namespace

nlohmann::json read_tokenizer_document(const std::string& path) {
  return parse_document(read_tokenizer_file(path), path, ReaderLimits::kTokenizerTreeBytes);
}

TokenizerSpec read_tokenizer_json(const std::string& path) {
  const json document = read_tokenizer_document(path);
  Fields top(document, path, "");
  TokenizerSpec spec;
  top.ignore({"padding"});  // padding is for batches
  if (const std::string version = top.text("version", "1.0"); version != "1.0") top.refuse("version", version);
  if (top.find("truncation") != nullptr) top.refuse("truncation", top.get("truncation").dump());
  spec.model = read_model(top.object("model"));
  for_each_step(top, "normalizer", "normalizers", [&](Fields& fields, const std::string& type) {
    spec.normalizer.push_back(read_normalizer(fields, type));
  });
  for_each_step(top, "pre_tokenizer", "pretokenizers", [&](Fields& fields, const std::string& type) {
    spec.pre_tokenizer.push_back(read_pre_tokenizer(fields, type));
  });
  for_each_step(top, "post_processor", "processors",
                [&](Fields& fields, const std::string& type) { read_post_processor(fields, type, spec.frame); });
  spec.has_decoder = top.find("decoder") != nullptr;
  for_each_step(top, "decoder", "decoders",
                [&](Fields& fields, const std::string& type) { spec.decoder.push_back(read_decoder(fields, type)); });
  spec.added_tokens = read_added_tokens(top);
  top.check_all_read();
  return spec;
}

}  // namespace zs
