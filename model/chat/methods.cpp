#include "model/chat/methods.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <limits>
#include <map>

#include "model/chat/operators.h"
#include "model/tokenizer/utf8.h"

namespace zs::jinja {
namespace {

using ValueKind = Value::Kind;

/// Python's str.isspace of a character: Unicode's White_Space and the four separators of ASCII.
bool is_space(char32_t code) { return is_white_space(code) || (code >= 0x1c && code <= 0x1f); }

template <class Change>
std::string changed(std::string_view text, const Change& change) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); i += utf8_length(text[i])) append_utf8(change(utf8_at(text, i)), out);
  return out;
}

char32_t to_upper(char32_t code) {
  if (code == 0xdf || (code >= 0xfb00 && code <= 0xfb17)) refuse("upper case that has more letters is not supported");
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}
char32_t to_lower(char32_t code) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

bool is_letter(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_digit(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_ND; }

template <class Is>
bool all_of_text(std::string_view text, const Is& is) {
  for (std::size_t i = 0; i < text.size(); i += utf8_length(text[i]))
    if (!is(utf8_at(text, i))) return false;
  return !text.empty();
}

Value texts(const std::vector<std::string_view>& parts) {
  List list;
  for (const std::string_view part : parts) list.push_back(Value::string(std::string(part)));
  return Value::list(std::move(list));
}

/// At white space, of which runs count once.
std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t most) {
  std::vector<std::string_view> parts;
  std::size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < text.size() && is_space(utf8_at(text, at)) == space) at += utf8_length(text[at]);
  };
  for (skip(true); at < text.size(); skip(true)) {
    const std::size_t begin = at;
    if (std::ssize(parts) == most) {
      const std::string rest = stripped(text.substr(begin), nullptr, false, true);
      parts.push_back(text.substr(begin, rest.size()));
      break;
    }
    skip(false);
    parts.push_back(text.substr(begin, at - begin));
  }
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view by, std::int64_t most, bool from_end) {
  if (by.empty()) fail("a text is split at an empty one");
  std::vector<std::string_view> parts;
  while (std::ssize(parts) < most) {
    const std::size_t found = from_end ? text.rfind(by) : text.find(by);
    if (found == text.npos) break;
    parts.push_back(from_end ? text.substr(found + by.size()) : text.substr(0, found));
    text = from_end ? text.substr(0, found) : text.substr(found + by.size());
  }
  parts.push_back(text);
  if (from_end) std::reverse(parts.begin(), parts.end());
  return parts;
}

Value split(const std::string& text, const CallArguments& given, bool from_end) {
  const Arguments arguments(from_end ? "rsplit" : "split", given, {"sep", "maxsplit"});
  std::int64_t most = arguments.integer(1, -1);
  if (most < 0) most = std::numeric_limits<std::int64_t>::max();
  const Value* const by = arguments.find(0);
  const bool at_space = by == nullptr || by->is(ValueKind::none);
  if (at_space && from_end && most != std::numeric_limits<std::int64_t>::max())
    refuse("rsplit at white space is not supported");
  return texts(at_space ? split_at_space(text, most) : split_at(text, by->text(), most, from_end));
}

Value partition(const std::string& text, const CallArguments& given, bool from_end) {
  const std::string by = Arguments("partition", given, {"sep"}).get(0).text();
  if (by.empty()) fail("a text is split at an empty one");
  const std::size_t found = from_end ? text.rfind(by) : text.find(by);
  const auto tuple = [](const std::string& a, const std::string& b, const std::string& c) {
    return Value::list({Value::string(a), Value::string(b), Value::string(c)}, ValueKind::tuple);
  };
  if (found == std::string::npos) return from_end ? tuple("", "", text) : tuple(text, "", "");
  return tuple(text.substr(0, found), by, text.substr(found + by.size()));
}

Value is_affix(const std::string& text, const CallArguments& given, bool at_end) {
  const Arguments arguments(at_end ? "endswith" : "startswith", given, {"affix"});
  const Value& affix = arguments.get(0);
  const auto matches = [&](const Value& one) {
    return at_end ? text.ends_with(one.text()) : text.starts_with(one.text());
  };
  const bool is_one =
      affix.is(ValueKind::tuple) ? std::any_of(affix.items().begin(), affix.items().end(), matches) : matches(affix);
  return Value::boolean(is_one);
}

Value without_affix(const std::string& text, const CallArguments& given, bool at_end) {
  const std::string affix = Arguments("removeprefix", given, {"affix"}).get(0).text();
  if (at_end ? !text.ends_with(affix) : !text.starts_with(affix)) return Value::string(text);
  return Value::string(at_end ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size()));
}

Value position(const std::string& text, const CallArguments& given, bool from_end, bool must_be) {
  const std::string what = Arguments("find", given, {"sub"}).get(0).text();
  const std::size_t found = from_end ? text.rfind(what) : text.find(what);
  if (found == std::string::npos && must_be) fail("a text is not found in another");
  return Value::integer(found == std::string::npos ? -1
                                                   : static_cast<std::int64_t>(character_count(text.substr(0, found))));
}

Value count_of(const std::string& text, const CallArguments& given) {
  const std::string what = Arguments("count", given, {"sub"}).get(0).text();
  if (what.empty()) return Value::integer(static_cast<std::int64_t>(character_count(text)) + 1);
  return Value::integer(std::ssize(split_at(text, what, std::numeric_limits<std::int64_t>::max(), false)) - 1);
}

Value justified(const std::string& name, const std::string& text, const CallArguments& given) {
  const Arguments arguments(name, given, {"width", "fillchar"});
  const std::string fill = arguments.text(1, name == "zfill" ? "0" : " ");
  const std::int64_t room = arguments.get(0).as_integer() - static_cast<std::int64_t>(character_count(text));
  if (room <= 0) return Value::string(text);
  check_length(room > std::numeric_limits<std::int32_t>::max() ? room : room * std::ssize(fill) + std::ssize(text));
  std::string pad;
  for (std::int64_t i = 0; i < room; ++i) pad += fill;
  if (name == "zfill" && !text.empty() && (text[0] == '-' || text[0] == '+'))
    return Value::string(text[0] + pad + text.substr(1));
  return Value::string(name == "ljust" ? text + pad : pad + text);
}

using TextMethod = Value (*)(const std::string& text, const CallArguments& given);
Value strip_of(const char* name, const std::string& text, const CallArguments& given, bool front, bool end) {
  return Value::string(stripped(text, Arguments(name, given, {"chars"}).find(0), front, end));
}

const std::map<std::string, TextMethod, std::less<>>& text_methods() {
  using Text = const std::string&;
  using Given = const CallArguments&;
  static const std::map<std::string, TextMethod, std::less<>> kMethods = {
      {"strip", [](Text t, Given g) { return strip_of("strip", t, g, true, true); }},
      {"lstrip", [](Text t, Given g) { return strip_of("lstrip", t, g, true, false); }},
      {"rstrip", [](Text t, Given g) { return strip_of("rstrip", t, g, false, true); }},
      {"split", [](Text t, Given g) { return split(t, g, false); }},
      {"rsplit", [](Text t, Given g) { return split(t, g, true); }},
      {"partition", [](Text t, Given g) { return partition(t, g, false); }},
      {"rpartition", [](Text t, Given g) { return partition(t, g, true); }},
      {"splitlines",
       [](Text t, Given g) { return texts(lines_of(t, Arguments("splitlines", g, {"keepends"}).truth(0, false))); }},
      {"startswith", [](Text t, Given g) { return is_affix(t, g, false); }},
      {"endswith", [](Text t, Given g) { return is_affix(t, g, true); }},
      {"removeprefix", [](Text t, Given g) { return without_affix(t, g, false); }},
      {"removesuffix", [](Text t, Given g) { return without_affix(t, g, true); }},
      {"find", [](Text t, Given g) { return position(t, g, false, false); }},
      {"rfind", [](Text t, Given g) { return position(t, g, true, false); }},
      {"index", [](Text t, Given g) { return position(t, g, false, true); }},
      {"count", [](Text t, Given g) { return count_of(t, g); }},
      {"upper", [](Text t, Given) { return Value::string(upper_case(t)); }},
      {"lower", [](Text t, Given) { return Value::string(lower_case(t)); }},
      {"capitalize", [](Text t, Given) { return Value::string(capitalized(t)); }},
      {"title", [](Text t, Given) { return Value::string(titled(t, false)); }},
      {"replace",
       [](Text t, Given g) {
         const Arguments a("replace", g, {"old", "new", "count"});
         return Value::string(replaced(t, a.get(0).text(), a.get(1).text(), a.integer(2, -1)));
       }},
      {"join",
       [](Text t, Given g) {
         const List items = iterated(Arguments("join", g, {"items"}).get(0));
         for (const Value& item : items) item.text();
         return Value::string(joined_texts(items, t));
       }},
      {"isdigit", [](Text t, Given) { return Value::boolean(all_of_text(t, is_digit)); }},
      {"isnumeric", [](Text t, Given) { return Value::boolean(all_of_text(t, is_digit)); }},
      {"isalpha", [](Text t, Given) { return Value::boolean(all_of_text(t, is_letter)); }},
      {"isalnum",
       [](Text t, Given) {
         return Value::boolean(all_of_text(t, [](char32_t c) { return is_letter(c) || is_digit(c); }));
       }},
      {"isspace", [](Text t, Given) { return Value::boolean(all_of_text(t, is_space)); }},
      {"isupper", [](Text t, Given) { return Value::boolean(upper_case(t) == t && lower_case(t) != t); }},
      {"islower", [](Text t, Given) { return Value::boolean(lower_case(t) == t && upper_case(t) != t); }},
      {"zfill", [](Text t, Given g) { return justified("zfill", t, g); }},
      {"ljust", [](Text t, Given g) { return justified("ljust", t, g); }},
      {"rjust", [](Text t, Given g) { return justified("rjust", t, g); }}};
  return kMethods;
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value dict_method(const Value& of, const std::string& name, const CallArguments& given) {
  const auto& entries = of.entries().entries();
  if (name == "copy") return of;
  if (name == "get") {
    const Arguments arguments("get", given, {"key", "default"});
    const Value& key = arguments.get(0);
    const Value* const found = key.is(ValueKind::string) ? of.entries().find(key.text()) : nullptr;
    return found != nullptr ? *found : arguments.find(1) != nullptr ? *arguments.find(1) : Value::none();
  }
  if (!is_one_of(name, {"items", "keys", "values"}))
    refuse(fmt::format("the method '{}' of a dict is not supported", name));
  List list;
  for (const auto& [key, value] : entries) {
    if (name == "items")
      list.push_back(Value::list({Value::string(key), value}, ValueKind::tuple));
    else
      list.push_back(name == "keys" ? Value::string(key) : value);
  }
  return Value::list(std::move(list));
}

Value list_method(const Value& of, const std::string& name, const CallArguments& given) {
  if (!is_one_of(name, {"index", "count"})) refuse(fmt::format("the method '{}' of a list is not supported", name));
  const Value& item = Arguments(name, given, {"item"}).get(0);
  const auto begin = of.items().begin(), end = of.items().end();
  if (name == "count") return Value::integer(std::count(begin, end, item));
  const auto found = std::find(begin, end, item);
  if (found == end) fail("a value is not in the list");
  return Value::integer(found - begin);
}

}  // namespace

Arguments::Arguments(std::string_view of, const CallArguments& given, std::initializer_list<const char*> names)
    : of_(of), names_(names.begin(), names.end()), values_(names.size(), nullptr) {
  if (given.positional.size() > names.size()) fail(fmt::format("'{}' takes {} arguments at most", of, names.size()));
  for (std::size_t i = 0; i < given.positional.size(); ++i) values_[i] = &given.positional[i];
  for (const auto& [name, value] : given.named) {
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) refuse(fmt::format("'{}' with the argument '{}' is not supported", of, name));
    values_[static_cast<std::size_t>(found - names_.begin())] = &value;
  }
}

const Value& Arguments::get(std::size_t i) const {
  if (values_[i] == nullptr) fail(fmt::format("'{}' lacks its argument '{}'", of_, names_[i]));
  return *values_[i];
}
std::string Arguments::text(std::size_t i, const char* otherwise) const {
  return values_[i] == nullptr ? otherwise : values_[i]->text();
}
std::int64_t Arguments::integer(std::size_t i, std::int64_t otherwise) const {
  return values_[i] == nullptr ? otherwise : values_[i]->as_integer();
}
bool Arguments::truth(std::size_t i, bool otherwise) const {
  return values_[i] == nullptr ? otherwise : values_[i]->truth();
}

bool has_method(const Value& of, std::string_view name) {
  if (of.is(ValueKind::string))
    return text_methods().contains(name) ||
           is_one_of(name, {"format", "encode", "translate", "center", "casefold", "swapcase", "rindex"});
  if (of.is(ValueKind::dict))
    return is_one_of(name, {"items", "keys", "values", "get", "copy", "pop", "popitem", "update", "setdefault", "clear",
                            "fromkeys"});
  return of.is_list() && is_one_of(name, {"index", "count", "append", "extend", "insert", "pop", "remove", "reverse",
                                          "sort", "clear", "copy"});
}

Value call_method(const Value& of, const std::string& name, const CallArguments& arguments) {
  if (of.is(ValueKind::dict)) return dict_method(of, name, arguments);
  if (of.is_list()) return list_method(of, name, arguments);
  const auto found = text_methods().find(name);
  if (found == text_methods().end()) refuse(fmt::format("the method '{}' of a text is not supported", name));
  return found->second(of.text(), arguments);
}

std::string stripped(std::string_view text, const Value* chars, bool at_front, bool at_end) {
  const bool is_space_meant = chars == nullptr || chars->is(ValueKind::none);
  const auto is_taken = [&](std::size_t begin, std::size_t end) {
    return is_space_meant ? is_space(utf8_at(text, begin))
                          : chars->text().find(text.substr(begin, end - begin)) != std::string::npos;
  };
  std::size_t begin = 0, end = text.size();
  while (at_front && begin < end && is_taken(begin, begin + utf8_length(text[begin])))
    begin += utf8_length(text[begin]);
  while (at_end && begin < end) {
    std::size_t last = end - 1;
    while (is_utf8_continuation(text[last])) --last;
    if (!is_taken(last, end)) break;
    end = last;
  }
  return std::string(text.substr(begin, end - begin));
}

std::string replaced(std::string_view text, std::string_view what, std::string_view by, std::int64_t most) {
  if (what.empty()) refuse("replacing an empty text is not supported");
  std::string out;
  std::size_t at = 0;
  for (std::size_t found = text.find(what); found != text.npos && most != 0; found = text.find(what, at), --most) {
    out.append(text, at, found - at).append(by);
    check_length(std::ssize(out));
    at = found + what.size();
  }
  return out.append(text, at);
}

std::string upper_case(std::string_view text) { return changed(text, to_upper); }
std::string lower_case(std::string_view text) { return changed(text, to_lower); }

std::string capitalized(std::string_view text) {
  const std::size_t first = text.empty() ? 0 : utf8_length(text[0]);
  return upper_case(text.substr(0, first)) + lower_case(text.substr(first));
}

std::string titled(std::string_view text, bool as_filter) {
  bool begins = true;
  return changed(text, [&](char32_t code) {
    const char32_t out = begins ? to_upper(code) : to_lower(code);
    begins = as_filter ? is_space(code) || (code < 0x80 && std::string_view("-({[<").find(static_cast<char>(code)) !=
                                                               std::string_view::npos)
                       : !is_letter(code);
    return out;
  });
}

std::string joined_texts(const List& items, std::string_view between) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += between;
    out += items[i].str();
    check_length(std::ssize(out));
  }
  return out;
}

std::vector<std::string_view> lines_of(std::string_view text, bool keeps_ends) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\n\r\v\f\x1c\x1d\x1e", at), text.size());
    const std::size_t next = end == text.size() ? end : end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
    lines.push_back(text.substr(at, (keeps_ends ? next : end) - at));
    at = next;
  }
  return lines;
}

}  // namespace zs::jinja
