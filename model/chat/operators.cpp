#include "model/chat/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/chat/methods.h"
#include "runtime/base/reader_limits.h"

namespace zs::jinja {
namespace {

using ValueKind = Value::Kind;

[[noreturn]] void no_operator(const std::string& op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is(ValueKind::undefined)) fail(fmt::format("{} is undefined", value->name()));
  fail(fmt::format("'{}' of a {} and a {} has no meaning", op, a.type(), b.type()));
}

Value whole(std::int64_t a, std::int64_t b, bool (*compute)(std::int64_t, std::int64_t, std::int64_t&)) {
  std::int64_t out = 0;
  if (compute(a, b, out)) fail("an integer has more than 64 bits");
  return Value::integer(out);
}
bool add(std::int64_t a, std::int64_t b, std::int64_t& out) { return __builtin_add_overflow(a, b, &out); }
bool subtract(std::int64_t a, std::int64_t b, std::int64_t& out) { return __builtin_sub_overflow(a, b, &out); }
bool multiply(std::int64_t a, std::int64_t b, std::int64_t& out) { return __builtin_mul_overflow(a, b, &out); }

Value power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  if (base == 0 || base == 1 || base == -1)
    return Value::integer(exponent == 0 ? 1 : exponent % 2 == 0 ? base * base : base);
  Value out = Value::integer(1);
  for (std::int64_t i = 0; i < exponent; ++i) out = whole(out.as_integer(), base, multiply);  // 63 times at most
  return out;
}

Value integers(const std::string& op, std::int64_t a, std::int64_t b) {
  if (op == "+") return whole(a, b, add);
  if (op == "-") return whole(a, b, subtract);
  if (op == "*") return whole(a, b, multiply);
  if (op == "**") return power(a, b);
  if (b == 0) fail("a division by zero");
  if (op == "/") return Value::real(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == "//" ? whole(0, a, subtract) : Value::integer(0);
  const std::int64_t quotient = a / b, rest = a % b;
  const bool is_below = rest != 0 && (rest < 0) != (b < 0);
  return Value::integer(op == "//" ? quotient - (is_below ? 1 : 0) : rest + (is_below ? b : 0));
}

Value reals(const std::string& op, double a, double b) {
  if (op == "+") return Value::real(a + b);
  if (op == "-") return Value::real(a - b);
  if (op == "*") return Value::real(a * b);
  if (op == "**") return Value::real(std::pow(a, b));
  if (b == 0) fail("a division by zero");
  if (op == "/") return Value::real(a / b);
  const double rest = std::fmod(a, b), floored = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  return Value::real(op == "//" ? std::floor((a - floored) / b + 0.5) : floored);
}

Value repeated(const Value& of, std::int64_t count) {
  count = std::max<std::int64_t>(count, 0);
  const bool is_text = of.is(ValueKind::string);
  const std::int64_t size = is_text ? std::ssize(of.text()) : std::ssize(of.items()) * 16;
  if (size == 0) return of;
  check_length(count > ReaderLimits::kTemplateTextBytes / size ? std::numeric_limits<std::int64_t>::max()
                                                               : size * count);
  if (is_text) {
    std::string out;
    for (std::int64_t i = 0; i < count; ++i) out += of.text();
    return Value::string(std::move(out));
  }
  List out;
  for (std::int64_t i = 0; i < count; ++i) out.insert(out.end(), of.items().begin(), of.items().end());
  return Value::list(std::move(out), of.kind());
}

/// Texts that `safe` has marked escape what they are joined with.
Value joined(const Value& a, const Value& b) {
  if (a.is_markup() != b.is_markup()) refuse("joining a text that is 'safe' with another is not supported");
  std::string left = a.str();
  const std::string right = b.str();
  check_length(std::ssize(left) + std::ssize(right));
  Value out = Value::string(std::move(left += right));
  return a.is_markup() ? out.as_markup() : out;
}

struct Range {
  std::int64_t from = 0, to = 0, step = 1;
};
/// Indices of a slice of something of `size`, as Python has them.
Range slice_range(std::int64_t size, const Value* from, const Value* to, const Value* step) {
  const auto given = [](const Value* value) { return value != nullptr && !value->is(ValueKind::none); };
  Range range;
  if (given(step)) range.step = step->as_integer();
  if (range.step == 0) fail("a slice has the step 0");
  const bool is_backward = range.step < 0;
  const std::int64_t least = is_backward ? -1 : 0, most = is_backward ? size - 1 : size;
  const auto place = [&](const Value* value, std::int64_t otherwise) {
    if (!given(value)) return otherwise;
    const std::int64_t at = value->as_integer();
    return std::clamp(at < 0 ? std::max(at, -size - 1) + size : at, least, most);
  };
  range.from = place(from, is_backward ? most : least);
  range.to = place(to, is_backward ? least : most);
  return range;
}

template <class Each>
void for_each_of(const Range& range, std::int64_t size, const Each& each) {
  const std::int64_t step = std::clamp(range.step, -size - 1, size + 1);
  for (std::int64_t i = range.from; step > 0 ? i < range.to : i > range.to; i += step)
    each(static_cast<std::size_t>(i));
}

/// Place of an index in something of `size`; `size`: none.
std::size_t place_of(const Value& key, std::size_t size) {
  const std::int64_t at = key.as_integer(), count = static_cast<std::int64_t>(size);
  return at >= -count && at < count ? static_cast<std::size_t>(at < 0 ? at + count : at) : size;
}

Value character(const std::string& text, const Value& key) {
  const std::vector<std::size_t> begins = character_begins(text);
  const std::size_t at = place_of(key, begins.size() - 1);
  return at + 1 < begins.size() ? Value::string(text.substr(begins[at], begins[at + 1] - begins[at]))
                                : Value::undefined(key.str());
}

}  // namespace

void check_length(std::int64_t bytes) {
  if (bytes > ReaderLimits::kTemplateTextBytes)
    fail(fmt::format("a text would be longer than {} MiB", ReaderLimits::kTemplateTextBytes >> 20));
}

Value binary(const std::string& op, const Value& a, const Value& b) {
  if (op == "~") return joined(a, b);
  if (op == "+" && a.is(ValueKind::string) && b.is(ValueKind::string)) return joined(a, b);
  if (a.is_integer() && b.is_integer()) return integers(op, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return reals(op, a.as_real(), b.as_real());
  if (op == "+" && a.is_list() && a.kind() == b.kind()) {
    List all = a.items();
    all.insert(all.end(), b.items().begin(), b.items().end());
    return Value::list(std::move(all), a.kind());
  }
  const auto is_repeated = [](const Value& value) { return value.is(ValueKind::string) || value.is_list(); };
  if (op == "*" && is_repeated(a) && b.is_integer()) return repeated(a, b.as_integer());
  if (op == "*" && is_repeated(b) && a.is_integer()) return repeated(b, a.as_integer());
  if (op == "%" && a.is(ValueKind::string)) refuse("formatting with '%' is not supported");
  no_operator(op, a, b);
}

bool compare(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return a == b;
  if (op == "!=") return !(a == b);
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  if (op == "<") return is_less(a, b);
  if (op == ">") return is_less(b, a);
  return a == b || (op == "<=" ? is_less(a, b) : is_less(b, a));
}

bool contains(const Value& of, const Value& item) {
  if (of.is(ValueKind::string)) {
    if (!item.is(ValueKind::string)) no_operator("in", item, of);
    return of.text().find(item.text()) != std::string::npos;
  }
  if (of.is(ValueKind::dict)) return item.is(ValueKind::string) && of.entries().find(item.text()) != nullptr;
  if (of.is(ValueKind::undefined)) return false;
  if (!of.is_list()) no_operator("in", item, of);
  return std::find(of.items().begin(), of.items().end(), item) != of.items().end();
}

Value subscript(const Value& of, const Value& key) {
  if (of.is(ValueKind::undefined)) of.text();  // says whose name it is
  if (key.is(ValueKind::string)) {
    const Value* const found = of.is(ValueKind::dict) ? of.entries().find(key.text()) : nullptr;
    return found != nullptr ? *found : attribute(of, key.text());
  }
  if (key.is_integer() && of.is_list()) {
    const std::size_t at = place_of(key, of.items().size());
    return at < of.items().size() ? of.items()[at] : Value::undefined(key.str());
  }
  if (key.is_integer() && of.is(ValueKind::string)) return character(of.text(), key);
  return Value::undefined(key.str());
}

Value attribute(const Value& of, const std::string& name) {
  if (of.is(ValueKind::undefined)) of.text();  // says whose name it is
  if (has_method(of, name))
    return Value::callable([of, name](const CallArguments& arguments) { return call_method(of, name, arguments); });
  const Value* const found = of.is(ValueKind::dict) || of.is(ValueKind::name_space) ? of.entries().find(name) : nullptr;
  return found != nullptr ? *found : Value::undefined(name);
}

Value slice(const Value& of, const Value* from, const Value* to, const Value* step) {
  if (of.is(ValueKind::string)) {
    const std::vector<std::size_t> begins = character_begins(of.text());
    const std::int64_t size = std::ssize(begins) - 1;
    std::string out;
    for_each_of(slice_range(size, from, to, step), size,
                [&](std::size_t i) { out.append(of.text(), begins[i], begins[i + 1] - begins[i]); });
    return Value::string(std::move(out));
  }
  if (!of.is_list()) return of.is(ValueKind::undefined) ? (of.text(), of) : Value::undefined("a slice");
  const std::int64_t size = std::ssize(of.items());
  List out;
  for_each_of(slice_range(size, from, to, step), size, [&](std::size_t i) { out.push_back(of.items()[i]); });
  return Value::list(std::move(out), of.kind());
}

List iterated(const Value& of) {
  if (of.is_list()) return of.items();
  if (of.is(ValueKind::undefined)) return {};
  if (of.is(ValueKind::string)) return characters(of.text());
  if (!of.is(ValueKind::dict)) fail(fmt::format("a {} is no list to go over", of.type()));
  List keys;
  for (const auto& entry : of.entries().entries()) keys.push_back(Value::string(entry.first));
  return keys;
}

}  // namespace zs::jinja
