#include "model/chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "runtime/base/reader_limits.h"

namespace zs::jinja {

void fail(const std::string& what) { throw TemplateError(TemplateError::Kind::failed, what); }
void refuse(const std::string& what) { throw TemplateError(TemplateError::Kind::unsupported, what); }

namespace {

/// Depth and weight of what holds values.
struct Extent {
  int depth = 0;
  std::int64_t weight = 8;

  /// A namespace and a function end with what made them, so that nothing may hold one.
  void add(const Value& value) {
    if (value.is(Value::Kind::name_space) || value.is(Value::Kind::callable))
      refuse(fmt::format("a {} within another value is not supported", value.type()));
    depth = std::max(depth, value.depth() + 1);
    weight += value.weight();
    if (depth > ReaderLimits::kTemplateValueDepth)
      fail(fmt::format("values nest deeper than {}", ReaderLimits::kTemplateValueDepth));
    if (weight > ReaderLimits::kTemplateTextBytes)
      fail(fmt::format("a value is larger than {} MiB", ReaderLimits::kTemplateTextBytes >> 20));
  }
};

bool is_python_printable(unsigned char byte) { return byte >= 0x20 && byte != 0x7f; }

std::string string_repr(const std::string& text) {
  const bool has_single = text.find('\'') != text.npos, has_double = text.find('"') != text.npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\\' || c == quote)
      out += {'\\', c};
    else if (!is_python_printable(static_cast<unsigned char>(c)))
      out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + quote;
}

std::string list_repr(const Value& value) {
  const bool is_tuple = value.is(Value::Kind::tuple);
  std::string out = is_tuple ? "(" : "[";
  for (const Value& item : value.items()) out += (out.size() > 1 ? ", " : "") + item.repr();
  return out + (is_tuple ? value.items().size() == 1 ? ",)" : ")" : "]");
}

std::string dict_repr(const Value& value) {
  std::string out = "{";
  for (const auto& [key, item] : value.entries().entries())
    out += (out.size() > 1 ? ", " : "") + string_repr(key) + ": " + item.repr();
  return out + "}";
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.first == key; });
  return found == entries_.end() ? nullptr : &found->second;
}

void Dict::set(const std::string& key, Value value) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.first == key; });
  if (found != entries_.end()) {
    found->second = std::move(value);
  } else {
    entries_.emplace_back(key, std::move(value));
  }
}

void Dict::erase(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.first == key; });
}

Value Value::undefined(std::string name) {
  return Value(Kind::undefined, std::make_shared<const std::string>(std::move(name)));
}

Value Value::string(std::string text) {
  const std::int64_t weight = std::ssize(text) + 8;
  Value value(Kind::string, std::make_shared<const std::string>(std::move(text)));
  value.weight_ = weight;
  return value;
}

Value Value::list(List items, Kind kind) {
  Extent extent;
  for (const Value& item : items) extent.add(item);
  Value value(kind, std::make_shared<const List>(std::move(items)));
  value.depth_ = extent.depth;
  value.weight_ = extent.weight;
  return value;
}

Value Value::dict(Dict entries) {
  Extent extent;
  for (const auto& [key, item] : entries.entries()) {
    extent.add(item);
    extent.weight += std::ssize(key);
  }
  Value value(Kind::dict, std::make_shared<Dict>(std::move(entries)));
  value.depth_ = extent.depth;
  value.weight_ = extent.weight;
  return value;
}

Value Value::name_space(Dict entries) {
  Extent extent;
  for (const auto& entry : entries.entries()) extent.add(entry.second);
  return Value(Kind::name_space, std::make_shared<Dict>(std::move(entries)));
}

Value Value::callable(Callable function) {
  return Value(Kind::callable, std::make_shared<const Callable>(std::move(function)));
}

Value Value::as_markup() const {
  Value markup = string(str());
  markup.is_markup_ = true;
  return markup;
}

const char* Value::type() const {
  constexpr std::array<const char*, 11> kNames = {
      "undefined value", "None", "bool", "int", "float", "str", "list", "tuple", "dict", "namespace", "function"};
  return kNames.at(static_cast<std::size_t>(kind_));
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean: return std::get<bool>(held_);
    case Kind::integer: return std::get<std::int64_t>(held_) != 0;
    case Kind::real: return std::get<double>(held_) != 0;
    case Kind::string: return !text().empty();
    case Kind::list:
    case Kind::tuple: return !items().empty();
    case Kind::dict: return entries().size() > 0;
    default: return true;
  }
}

std::int64_t Value::as_integer() const {
  if (is(Kind::boolean)) return std::get<bool>(held_) ? 1 : 0;
  if (!is(Kind::integer)) fail(fmt::format("a {} is no integer", type()));
  return std::get<std::int64_t>(held_);
}

double Value::as_real() const {
  if (is(Kind::real)) return std::get<double>(held_);
  if (!is_integer()) fail(fmt::format("a {} is no number", type()));
  return static_cast<double>(as_integer());
}

const std::string& Value::text() const {
  if (!is(Kind::string))
    fail(is(Kind::undefined) ? fmt::format("{} is undefined", name()) : fmt::format("a {} is no text", type()));
  return *std::get<std::shared_ptr<const std::string>>(held_);
}

const List& Value::items() const {
  if (!is_list()) fail(fmt::format("a {} is no list", type()));
  return *std::get<std::shared_ptr<const List>>(held_);
}

const Dict& Value::entries() const {
  if (!is(Kind::dict) && !is(Kind::name_space)) fail(fmt::format("a {} is no dict", type()));
  return *std::get<std::shared_ptr<Dict>>(held_);
}

Dict& Value::fields() const {
  if (!is(Kind::name_space)) fail(fmt::format("a {} is no namespace", type()));
  return *std::get<std::shared_ptr<Dict>>(held_);
}

const Callable& Value::function() const {
  if (!is(Kind::callable)) fail(fmt::format("a {} cannot be called", type()));
  return *std::get<std::shared_ptr<const Callable>>(held_);
}

std::string Value::name() const {
  const auto* const name = std::get_if<std::shared_ptr<const std::string>>(&held_);
  return name == nullptr ? "a value" : fmt::format("'{}'", **name);
}

std::string Value::str() const {
  if (is(Kind::string)) return text();
  return is(Kind::undefined) ? std::string() : repr();
}

std::string Value::repr() const {
  switch (kind_) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "None";
    case Kind::boolean: return truth() ? "True" : "False";
    case Kind::integer: return fmt::format("{}", as_integer());
    case Kind::real: return real_text(as_real());
    case Kind::string: return string_repr(text());
    case Kind::list:
    case Kind::tuple: return list_repr(*this);
    case Kind::dict: return dict_repr(*this);
    default: refuse(fmt::format("the text of a {} is not supported", type()));
  }
}

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_not_of("-0123456789") == text.npos ? text + ".0" : text;
}

bool operator==(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.as_integer() == b.as_integer() : a.as_real() == b.as_real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Value::Kind::undefined:
    case Value::Kind::none: return true;
    case Value::Kind::string: return a.text() == b.text();
    case Value::Kind::list:
    case Value::Kind::tuple: return a.items() == b.items();
    case Value::Kind::dict:
      return a.entries().size() == b.entries().size() &&
             std::all_of(a.entries().entries().begin(), a.entries().entries().end(), [&](const Dict::Entry& entry) {
               const Value* const other = b.entries().find(entry.first);
               return other != nullptr && *other == entry.second;
             });
    case Value::Kind::name_space: return &a.fields() == &b.fields();
    default: return &a.function() == &b.function();
  }
}

bool is_less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number())
    return a.is_integer() && b.is_integer() ? a.as_integer() < b.as_integer() : a.as_real() < b.as_real();
  if (a.is(Value::Kind::string) && b.is(Value::Kind::string)) return a.text() < b.text();
  if (a.is_list() && a.kind() == b.kind())
    return std::lexicographical_compare(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                                        [](const Value& x, const Value& y) { return !(x == y) && is_less(x, y); });
  if (a.is(Value::Kind::undefined)) a.text();  // says whose name it is
  if (b.is(Value::Kind::undefined)) b.text();
  fail(fmt::format("a {} and a {} have no order", a.type(), b.type()));
}

std::size_t character_count(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::vector<std::size_t> character_begins(std::string_view text) {
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) begins.push_back(i);
  begins.push_back(text.size());
  return begins;
}

List characters(std::string_view text) {
  const std::vector<std::size_t> begins = character_begins(text);
  List list;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i)
    list.push_back(Value::string(std::string(text.substr(begins[i], begins[i + 1] - begins[i]))));
  return list;
}

}  // namespace zs::jinja
