#include "model/families/gguf_pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/base/check.h"

namespace zs {
namespace {

using nlohmann::json;

// The patterns that published tokenizers have, as their tokenizer.json says them.
constexpr const char *kByteLevel = "ByteLevel", *kDigit = "\\p{N}", *kDigits = "\\p{N}+";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Known {
  std::vector<std::string> steps;
  const char *name, *name_without_merges;  ///< the second: with ignore_merges
};

const std::vector<Known>& known() {
  static const std::vector<Known> all = {
      {{kByteLevel}, "gpt-2", "gpt-2"},      {{kDigit, kByteLevel}, "smollm", "smollm"},
      {{kLlama3}, "smaug-bpe", "llama-bpe"}, {{kQwen2}, "qwen2", "qwen2"},
      {{kQwen35}, "qwen35", "qwen35"},       {{kO200k}, "gpt-4o", "gpt-4o"},
      {{kTekken}, "tekken", "tekken"},
  };
  return all;
}

/// Line ends may be written as themselves or as \r and \n.
std::string with_escapes(const std::string& pattern) {
  std::string text;
  for (const char c : pattern) {
    if (c == '\r' || c == '\n')
      text += c == '\r' ? "\\r" : "\\n";
    else
      text += c;
  }
  return text;
}

/// Steps that cut, in order; an unknown one by its name.
void add_steps(const json& step, std::vector<std::string>& steps) {
  if (!step.is_object()) return;
  const std::string type = step.value("type", "");
  if (type == "Sequence") {
    for (const json& inner : step.at("pretokenizers")) add_steps(inner, steps);
  } else if (type == "ByteLevel") {
    if (step.value("add_prefix_space", false)) steps.emplace_back("a space before the text");
    if (step.value("use_regex", true)) steps.emplace_back(kByteLevel);
  } else if (type == "Digits") {
    steps.emplace_back(step.value("individual_digits", false) ? kDigit : kDigits);
  } else if (type == "Split" && step.at("pattern").contains("Regex")) {
    const std::string behavior = step.value("behavior", "");
    const bool keeps_matches = step.value("invert", false) ? behavior == "Removed" : behavior == "Isolated";
    steps.push_back((keeps_matches ? "" : behavior + " ") + with_escapes(step["pattern"]["Regex"].get<std::string>()));
  } else {
    steps.push_back(type);
  }
}

}  // namespace

std::string gguf_pre_tokenizer(const json& tokenizer, const std::string& file) {
  std::vector<std::string> steps;
  if (tokenizer.contains("pre_tokenizer")) add_steps(tokenizer["pre_tokenizer"], steps);
  const bool without_merges = tokenizer.at("model").value("ignore_merges", false);
  for (const Known& one : known())
    if (one.steps == steps) return without_merges ? one.name_without_merges : one.name;
  throw Error(ExitCode::model, "no pre-tokenizer of llama.cpp is known to cut texts into words as this tokenizer does",
              file, "export a folder, and convert that with llama.cpp's own converter");
}

}  // namespace zs
