#include "model/chat/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/tokenizer/utf8.h"
#include "runtime/base/reader_limits.h"

namespace zs::jinja {
namespace {

/// Builds the value of a JSON text.
class ValueHandler final : public JsonHandler {
 public:
  Value take() { return std::move(root_); }
  /// Problem that is not one of the text as JSON; empty: none.
  const std::string& problem() const { return problem_; }

 private:
  struct Open {
    bool is_object = false;
    List items = {};
    Dict entries = {};
    std::string key = {};
  };
  bool null() override { return add(Value::none()); }
  bool boolean(bool value) override { return add(Value::boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Value::integer(value)); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) return refuse_number();
    return add(Value::integer(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return text.find_first_of(".eE") == string_t::npos ? refuse_number() : add(Value::real(value));
  }
  bool string(string_t& text) override { return add(Value::string(std::move(text))); }
  bool start_object(std::size_t) override { return open_.push_back({.is_object = true}), true; }
  bool start_array(std::size_t) override { return open_.push_back({}), true; }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    constexpr std::size_t kMostKeys = 10'000;  // they are searched one by one
    if (open_.back().entries.size() == kMostKeys)
      return problem_ = fmt::format("has an object of more than {} keys", kMostKeys), false;
    return open_.back().key = std::move(name), true;
  }

  bool refuse_number() { return problem_ = "has an integer of more than 64 bits", false; }
  bool add(Value value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (open_.back().is_object)
      open_.back().entries.set(open_.back().key, std::move(value));
    else
      open_.back().items.push_back(std::move(value));
    return true;
  }
  bool close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    try {
      return add(done.is_object ? Value::dict(std::move(done.entries)) : Value::list(std::move(done.items)));
    } catch (const TemplateError& error) {
      return problem_ = fmt::format("is not taken: {}", error.what()), false;
    }
  }

  std::vector<Open> open_;
  Value root_;
  std::string problem_;
};

class JsonWriter {
 public:
  explicit JsonWriter(const JsonForm& form) : form_(form) {}
  std::string write(const Value& value) {
    add(value, 0);
    return std::move(out_);
  }

 private:
  void add(const Value& value, int level) {
    if (std::ssize(out_) > ReaderLimits::kTemplateTextBytes) fail("a JSON text is too long");
    switch (value.kind()) {
      case Value::Kind::none: out_ += "null"; break;
      case Value::Kind::boolean: out_ += value.truth() ? "true" : "false"; break;
      case Value::Kind::integer: out_ += value.repr(); break;
      case Value::Kind::real: add_real(value.as_real()); break;
      case Value::Kind::string: add_string(value.text()); break;
      case Value::Kind::list:
      case Value::Kind::tuple: add_list(value.items(), level); break;
      case Value::Kind::dict: add_dict(value.entries(), level); break;
      case Value::Kind::undefined: fail(fmt::format("{} is undefined, and has no JSON", value.name()));
      default: fail(fmt::format("a {} has no JSON", value.type()));
    }
  }

  void add_real(double value) {
    out_ += std::isnan(value) ? "NaN" : std::isinf(value) ? value > 0 ? "Infinity" : "-Infinity" : real_text(value);
  }

  void add_string(const std::string& text) {
    out_ += '"';
    for (std::size_t i = 0; i < text.size(); i += utf8_length(text[i])) add_character(text, i);
    out_ += '"';
  }

  void add_character(const std::string& text, std::size_t at) {
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    const char c = text[at];
    const char32_t code = utf8_at(text, at);
    if (const std::size_t found = kEscaped.find(c); found != kEscaped.npos)
      out_ += {'\\', kLetters[found]};
    else if (code < 0x20)
      out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(code));
    else if (form_.is_ascii && code > 0xffff)
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((static_cast<unsigned>(code) - 0x10000) >> 10),
                          0xdc00 + ((static_cast<unsigned>(code) - 0x10000) & 0x3ff));
    else if (form_.is_ascii && code > 0x7e)
      out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(code));
    else
      out_.append(text, at, utf8_length(c));
  }

  void new_line(int level) {
    if (!form_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *form_.indent;
  }

  void add_list(const List& items, int level) {
    out_ += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += form_.item_separator;
      new_line(level + 1);
      add(items[i], level + 1);
    }
    if (!items.empty()) new_line(level);
    out_ += ']';
  }

  void add_dict(const Dict& dict, int level) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (form_.sorts_keys)
      std::sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return a->first < b->first; });
    out_ += '{';
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += form_.item_separator;
      new_line(level + 1);
      add_string(entries[i]->first);
      out_ += form_.key_separator;
      add(entries[i]->second, level + 1);
    }
    if (!entries.empty()) new_line(level);
    out_ += '}';
  }

  const JsonForm& form_;
  std::string out_;
};

}  // namespace

std::optional<JsonProblem> read_value(std::string_view text, Value& value) {
  ValueHandler handler;
  auto problem = read_json(text, handler);
  if (problem && !handler.problem().empty()) problem->what = handler.problem();
  if (!problem) value = handler.take();
  return problem;
}

std::string to_json(const Value& value, const JsonForm& form) { return JsonWriter(form).write(value); }

}  // namespace zs::jinja
