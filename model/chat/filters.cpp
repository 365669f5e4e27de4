#include "model/chat/filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "model/chat/json_value.h"
#include "model/chat/methods.h"
#include "model/chat/operators.h"

namespace zs::jinja {
namespace {

using ValueKind = Value::Kind;
using Given = const CallArguments&;
using Filter = Value (*)(const Value& of, Given given);
using Test = bool (*)(const Value& of, Given given);

Value length(const Value& of, Given) {
  if (of.is(ValueKind::string)) return Value::integer(static_cast<std::int64_t>(character_count(of.text())));
  if (of.is(ValueKind::dict)) return Value::integer(static_cast<std::int64_t>(of.entries().size()));
  return Value::integer(of.is(ValueKind::undefined) ? 0 : std::ssize(of.items()));
}

Value otherwise(const Value& of, Given given) {
  const Arguments arguments("default", given, {"default_value", "boolean"});
  const bool is_missing = of.is(ValueKind::undefined) || (arguments.truth(1, false) && !of.truth());
  if (!is_missing) return of;
  return arguments.find(0) == nullptr ? Value::string("") : *arguments.find(0);
}

/// Value of.a.b, or of.0: what `attribute=` of filters means.
Value at_path(const Value& of, const Value& path) {
  if (!path.is(ValueKind::string)) return subscript(of, path);
  Value value = of;
  std::string_view rest = path.text();
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    rest = rest.substr(std::min(part.size() + 1, rest.size()));
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = error == std::errc() && end == part.data() + part.size();
    value = subscript(value, is_index ? Value::integer(index) : Value::string(std::string(part)));
  }
  return value;
}

Value join(const Value& of, Given given) {
  const Arguments arguments("join", given, {"d", "attribute"});
  List items = iterated(of);
  if (const Value* const path = arguments.find(1))
    for (Value& item : items) item = at_path(item, *path);
  return Value::string(joined_texts(items, arguments.text(0, "")));
}

Value tojson(const Value& of, Given given) {
  const Arguments arguments("tojson", given, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonForm form{.is_ascii = arguments.truth(0, false), .sorts_keys = arguments.truth(3, false), .indent = {}};
  const Value* const indent = arguments.find(1);
  if (indent != nullptr && !indent->is(ValueKind::none)) {
    const std::int64_t width = indent->is(ValueKind::string) ? 0 : indent->as_integer();
    if (width > 64) fail("tojson with an indent of more than 64 is not supported");
    form.indent = indent->is(ValueKind::string)
                      ? indent->text()
                      : std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    form.item_separator = ",";
  }
  const Value* const separators = arguments.find(2);
  if (separators != nullptr && !separators->is(ValueKind::none)) {
    if (separators->items().size() != 2) fail("tojson takes two separators");
    form.item_separator = separators->items()[0].text();
    form.key_separator = separators->items()[1].text();
  }
  return Value::string(to_json(of, form));
}

Value indent(const Value& of, Given given) {
  const Arguments arguments("indent", given, {"width", "first", "blank"});
  const Value* const width = arguments.find(0);
  const bool is_text = width != nullptr && width->is(ValueKind::string);
  const std::int64_t spaces = is_text ? 0 : arguments.integer(0, 4);
  if (spaces > 1024) fail("indent by more than 1024 is not supported");
  const std::string pad =
      is_text ? width->text() : std::string(static_cast<std::size_t>(std::max<std::int64_t>(spaces, 0)), ' ');
  std::string text = of.str() + "\n", out;  // as Jinja: its last line end is kept
  const std::vector<std::string_view> lines = lines_of(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i == 0 ? arguments.truth(1, false) : !lines[i].empty() || arguments.truth(2, false)) out += pad;
    out += lines[i];
    check_length(std::ssize(out));
  }
  return Value::string(std::move(out));
}

/// The arguments from number `from` on.
CallArguments rest_of(Given given, std::size_t from) {
  CallArguments rest{{}, given.named};
  for (std::size_t i = from; i < given.positional.size(); ++i) rest.positional.push_back(given.positional[i]);
  return rest;
}

Value selected(const Value& of, Given given, bool has_path, bool wants) {
  if (has_path && given.positional.empty()) fail("selectattr lacks the name of an attribute");
  const std::size_t at = has_path ? 1 : 0;
  List list;
  for (const Value& item : iterated(of)) {
    const Value value = has_path ? at_path(item, given.positional[0]) : item;
    const bool is_so = given.positional.size() > at
                           ? apply_test(given.positional[at].text(), value, rest_of(given, at + 1))
                           : value.truth();
    if (is_so == wants) list.push_back(item);
  }
  return Value::list(std::move(list));
}

Value map(const Value& of, Given given) {
  List list;
  if (given.positional.empty()) {
    const Arguments arguments("map", given, {"attribute", "default"});
    for (const Value& item : iterated(of)) {
      const Value value = at_path(item, arguments.get(0));
      list.push_back(value.is(ValueKind::undefined) && arguments.find(1) != nullptr ? *arguments.find(1) : value);
    }
  } else {
    const std::string& name = given.positional[0].text();
    for (const Value& item : iterated(of)) list.push_back(apply_filter(name, item, rest_of(given, 1)));
  }
  return Value::list(std::move(list));
}

/// A text's order leaves its case out, unless it is asked for.
Value order_key(const Value& value, bool has_case) {
  return value.is(ValueKind::string) && !has_case ? Value::string(lower_case(value.text())) : value;
}

Value sorted(const Value& of, Given given) {
  const Arguments arguments("sort", given, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : iterated(of))
    keyed.emplace_back(
        order_key(arguments.find(2) == nullptr ? item : at_path(item, *arguments.find(2)), arguments.truth(1, false)),
        item);
  const bool is_reverse = arguments.truth(0, false);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return is_reverse ? is_less(b.first, a.first) : is_less(a.first, b.first);
  });
  List list;
  for (auto& [key, item] : keyed) list.push_back(std::move(item));
  return Value::list(std::move(list));
}

Value dictsort(const Value& of, Given given) {
  const Arguments arguments("dictsort", given, {"case_sensitive", "by", "reverse"});
  const bool by_value = arguments.text(1, "key") == "value";
  CallArguments sorting;
  sorting.named = {{"attribute", Value::integer(by_value ? 1 : 0)},
                   {"reverse", Value::boolean(arguments.truth(2, false))},
                   {"case_sensitive", Value::boolean(arguments.truth(0, false))}};
  return sorted(call_method(of, "items", {}), sorting);
}

Value unique(const Value& of, Given) {
  List list, keys;
  for (const Value& item : iterated(of)) {
    const Value key = order_key(item, false);
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    keys.push_back(key);
    list.push_back(item);
  }
  return Value::list(std::move(list));
}

Value extreme(const Value& of, Given, bool is_most) {
  const List items = iterated(of);
  if (items.empty()) return Value::undefined("an item of an empty list");
  const auto less = [](const Value& a, const Value& b) { return is_less(order_key(a, false), order_key(b, false)); };
  return is_most ? *std::max_element(items.begin(), items.end(), less)
                 : *std::min_element(items.begin(), items.end(), less);
}

Value sum(const Value& of, Given given) {
  const Arguments arguments("sum", given, {"attribute", "start"});
  Value all = arguments.find(1) == nullptr ? Value::integer(0) : *arguments.find(1);
  for (const Value& item : iterated(of))
    all = binary("+", all, arguments.find(0) == nullptr ? item : at_path(item, *arguments.find(0)));
  return all;
}

Value end_item(const Value& of, bool is_first) {
  const List items = iterated(of);
  if (items.empty()) return Value::undefined("an item of an empty list");
  return is_first ? items.front() : items.back();
}

Value reversed(const Value& of, Given) {
  const Value step = Value::integer(-1);
  return slice(of.is(ValueKind::string) || of.is_list() ? of : Value::list(iterated(of)), nullptr, nullptr, &step);
}

template <class Number>
std::optional<Number> parsed(const Value& of) {
  const std::string text = stripped(of.text(), nullptr, true, true);
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

Value to_integer(const Value& of, Given given) {
  const Arguments arguments("int", given, {"default"});
  if (of.is_integer()) return Value::integer(of.as_integer());
  if (of.is(ValueKind::real) && std::abs(of.as_real()) < 9e18)
    return Value::integer(static_cast<std::int64_t>(of.as_real()));
  if (of.is(ValueKind::string)) {
    if (const auto integer = parsed<std::int64_t>(of)) return Value::integer(*integer);
    if (const auto real = parsed<double>(of); real && std::abs(*real) < 9e18)
      return Value::integer(static_cast<std::int64_t>(*real));
  }
  return Value::integer(arguments.integer(0, 0));
}

Value to_real(const Value& of, Given given) {
  const Arguments arguments("float", given, {"default"});
  if (of.is_number()) return Value::real(of.as_real());
  if (const auto real = of.is(ValueKind::string) ? parsed<double>(of) : std::nullopt) return Value::real(*real);
  return Value::real(arguments.find(0) == nullptr ? 0.0 : arguments.get(0).as_real());
}

Value rounded(const Value& of, Given given) {
  const Arguments arguments("round", given, {"precision", "method"});
  if (arguments.text(1, "common") != "common" || arguments.integer(0, 0) != 0)
    refuse("'round' to other than integers is not supported");
  return Value::real(std::nearbyint(of.as_real()));
}

const std::map<std::string, Filter>& filters() {
  static const std::map<std::string, Filter> kFilters = {
      {"length", length},
      {"count", length},
      {"default", otherwise},
      {"d", otherwise},
      {"join", join},
      {"tojson", tojson},
      {"indent", indent},
      {"map", map},
      {"sort", sorted},
      {"dictsort", dictsort},
      {"unique", unique},
      {"sum", sum},
      {"reverse", reversed},
      {"int", to_integer},
      {"float", to_real},
      {"round", rounded},
      {"trim",
       [](const Value& of, Given g) {
         return Value::string(stripped(of.str(), Arguments("trim", g, {"chars"}).find(0), true, true));
       }},
      {"upper", [](const Value& of, Given) { return Value::string(upper_case(of.str())); }},
      {"lower", [](const Value& of, Given) { return Value::string(lower_case(of.str())); }},
      {"capitalize", [](const Value& of, Given) { return Value::string(capitalized(of.str())); }},
      {"title", [](const Value& of, Given) { return Value::string(titled(of.str(), true)); }},
      {"string", [](const Value& of, Given) { return of.is(ValueKind::string) ? of : Value::string(of.str()); }},
      {"safe", [](const Value& of, Given) { return of.as_markup(); }},
      {"list", [](const Value& of, Given) { return Value::list(iterated(of)); }},
      {"items",
       [](const Value& of, Given) {
         return of.is(ValueKind::undefined) ? Value::list({})
                : of.is(ValueKind::dict)    ? call_method(of, "items", {})
                                            : (fail("'items' of what is no dict"), Value());
       }},
      {"first", [](const Value& of, Given) { return end_item(of, true); }},
      {"last", [](const Value& of, Given) { return end_item(of, false); }},
      {"max", [](const Value& of, Given g) { return extreme(of, g, true); }},
      {"min", [](const Value& of, Given g) { return extreme(of, g, false); }},
      {"abs",
       [](const Value& of, Given) {
         return of.is_integer() ? binary("*", of, Value::integer(of.as_integer() < 0 ? -1 : 1))
                                : Value::real(std::abs(of.as_real()));
       }},
      {"attr",
       [](const Value& of, Given g) {
         return of.is(ValueKind::dict) ? Value::undefined("an attribute")
                                       : attribute(of, Arguments("attr", g, {"name"}).get(0).text());
       }},
      {"replace",
       [](const Value& of, Given g) {
         const Arguments a("replace", g, {"old", "new", "count"});
         return Value::string(replaced(of.str(), a.get(0).str(), a.get(1).str(), a.integer(2, -1)));
       }},
      {"select", [](const Value& of, Given g) { return selected(of, g, false, true); }},
      {"reject", [](const Value& of, Given g) { return selected(of, g, false, false); }},
      {"selectattr", [](const Value& of, Given g) { return selected(of, g, true, true); }},
      {"rejectattr", [](const Value& of, Given g) { return selected(of, g, true, false); }}};
  return kFilters;
}

const Value& operand(Given given) { return Arguments("a test", given, {"other"}).get(0); }

std::int64_t divided(const Value& of, std::int64_t by) {
  if (by == 0) fail("a division by zero");
  return by == -1 ? 0 : of.as_integer() % by;
}

const std::map<std::string, Test>& tests() {
  static const std::map<std::string, Test> kTests = {
      {"defined", [](const Value& of, Given) { return !of.is(ValueKind::undefined); }},
      {"undefined", [](const Value& of, Given) { return of.is(ValueKind::undefined); }},
      {"none", [](const Value& of, Given) { return of.is(ValueKind::none); }},
      {"boolean", [](const Value& of, Given) { return of.is(ValueKind::boolean); }},
      {"true", [](const Value& of, Given) { return of.is(ValueKind::boolean) && of.truth(); }},
      {"false", [](const Value& of, Given) { return of.is(ValueKind::boolean) && !of.truth(); }},
      {"integer", [](const Value& of, Given) { return of.is(ValueKind::integer); }},
      {"float", [](const Value& of, Given) { return of.is(ValueKind::real); }},
      {"number", [](const Value& of, Given) { return of.is_number(); }},
      {"string", [](const Value& of, Given) { return of.is(ValueKind::string); }},
      {"mapping", [](const Value& of, Given) { return of.is(ValueKind::dict); }},
      {"sequence",
       [](const Value& of, Given) {
         return of.is(ValueKind::string) || of.is_list() || of.is(ValueKind::dict) || of.is(ValueKind::undefined);
       }},
      {"iterable",
       [](const Value& of, Given) {
         return of.is(ValueKind::string) || of.is_list() || of.is(ValueKind::dict) || of.is(ValueKind::undefined);
       }},
      {"callable", [](const Value& of, Given) { return of.is(ValueKind::callable); }},
      {"odd", [](const Value& of, Given) { return divided(of, 2) != 0; }},
      {"even", [](const Value& of, Given) { return divided(of, 2) == 0; }},
      {"divisibleby", [](const Value& of, Given g) { return divided(of, operand(g).as_integer()) == 0; }},
      {"upper", [](const Value& of, Given) { return call_method(Value::string(of.str()), "isupper", {}).truth(); }},
      {"lower", [](const Value& of, Given) { return call_method(Value::string(of.str()), "islower", {}).truth(); }},
      {"in", [](const Value& of, Given g) { return contains(operand(g), of); }},
      {"sameas", [](const Value& of, Given g) { return of.kind() == operand(g).kind() && of == operand(g); }},
      {"eq", [](const Value& of, Given g) { return of == operand(g); }},
      {"equalto", [](const Value& of, Given g) { return of == operand(g); }},
      {"==", [](const Value& of, Given g) { return of == operand(g); }},
      {"ne", [](const Value& of, Given g) { return !(of == operand(g)); }},
      {"!=", [](const Value& of, Given g) { return !(of == operand(g)); }},
      {"lt", [](const Value& of, Given g) { return compare("<", of, operand(g)); }},
      {"le", [](const Value& of, Given g) { return compare("<=", of, operand(g)); }},
      {"gt", [](const Value& of, Given g) { return compare(">", of, operand(g)); }},
      {"ge", [](const Value& of, Given g) { return compare(">=", of, operand(g)); }}};
  return kTests;
}

}  // namespace

bool has_filter(const std::string& name) { return filters().contains(name); }
bool has_test(const std::string& name) { return tests().contains(name); }

Value apply_filter(const std::string& name, const Value& of, const CallArguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end()) refuse(fmt::format("the filter '{}' is not supported", name));
  return found->second(of, arguments);
}

bool apply_test(const std::string& name, const Value& of, const CallArguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) refuse(fmt::format("the test '{}' is not supported", name));
  return found->second(of, arguments);
}

}  // namespace zs::jinja
