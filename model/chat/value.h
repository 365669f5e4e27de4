#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace zs::jinja {

/// Fault of a template, or of what it makes of its input: one line, and the template's line where it is known.
class TemplateError : public std::runtime_error {
 public:
  enum class Kind : std::uint8_t {
    syntax,       ///< no template
    unsupported,  ///< a template that is not read here
    raised,       ///< raise_exception
    failed        ///< a step that cannot be done, or takes too much
  };
  TemplateError(Kind kind, const std::string& what, int line = 0)
      : std::runtime_error(what), kind_(kind), line_(line) {}
  Kind kind() const { return kind_; }
  int line() const { return line_; }

 private:
  Kind kind_;
  int line_;
};

[[noreturn]] void fail(const std::string& what);
[[noreturn]] void refuse(const std::string& what);

class Value;
struct CallArguments;
using List = std::vector<Value>;
/// Values by name, in the order in which they came.
class Dict {
 public:
  using Entry = std::pair<std::string, Value>;
  const Value* find(std::string_view key) const;
  void set(const std::string& key, Value value);
  void erase(std::string_view key);
  const std::vector<Entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;
};
/// Function of a template. It must not outlive what it was made by.
using Callable = std::function<Value(const CallArguments&)>;

/// Value as a Jinja template has it, with Python's meaning. Copies share what they hold, which never changes but for a
/// namespace.
class Value {
 public:
  /// Kind of it, in the order of what it may hold.
  enum class Kind : std::uint8_t {
    undefined,
    none,
    boolean,
    integer,
    real,
    string,
    list,
    tuple,
    dict,
    name_space,
    callable
  };
  Value() = default;
  static Value undefined(std::string name);
  static Value none() { return Value(Kind::none, std::monostate()); }
  static Value boolean(bool value) { return Value(Kind::boolean, value); }
  static Value integer(std::int64_t value) { return Value(Kind::integer, value); }
  static Value real(double value) { return Value(Kind::real, value); }
  static Value string(std::string text);
  /// Throws where lists would nest deeper than any published template needs, or hold what cannot be held.
  static Value list(List items, Kind kind = Kind::list);
  static Value dict(Dict entries);
  static Value name_space(Dict entries);
  static Value callable(Callable function);
  /// Copy of its text, as `safe` marks it.
  Value as_markup() const;

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return is(Kind::boolean) || is(Kind::integer) || is(Kind::real); }
  bool is_integer() const { return is(Kind::boolean) || is(Kind::integer); }
  bool is_list() const { return is(Kind::list) || is(Kind::tuple); }
  bool is_markup() const { return is_markup_; }
  /// Name of its type, as Python has it.
  const char* type() const;

  bool truth() const;
  std::int64_t as_integer() const;
  double as_real() const;
  const std::string& text() const;
  const List& items() const;
  const Dict& entries() const;
  Dict& fields() const;  ///< a namespace's
  const Callable& function() const;
  /// Text of a string conversion; and Python's repr.
  std::string str() const;
  std::string repr() const;
  /// An undefined value's name, quoted.
  std::string name() const;
  int depth() const { return depth_; }
  /// Bytes that its text would have, or so: shared values count wherever they are.
  std::int64_t weight() const { return weight_; }

 private:
  using Held = std::variant<std::monostate, bool, std::int64_t, double, std::shared_ptr<const std::string>,
                            std::shared_ptr<const List>, std::shared_ptr<Dict>, std::shared_ptr<const Callable>>;
  Value(Kind kind, Held held) : kind_(kind), held_(std::move(held)) {}

  Kind kind_ = Kind::undefined;
  bool is_markup_ = false;
  int depth_ = 0;  // nesting of lists and dictionaries
  std::int64_t weight_ = 8;
  Held held_;
};

/// Arguments of a call.
struct CallArguments {
  List positional;
  std::vector<Dict::Entry> named;
};

bool operator==(const Value& a, const Value& b);
/// Python's <; throws for values without an order.
bool is_less(const Value& a, const Value& b);
/// Python's repr of a number.
std::string real_text(double value);

/// Characters of a text, for what counts in them.
std::size_t character_count(std::string_view text);
/// Begins of characters, and the end.
std::vector<std::size_t> character_begins(std::string_view text);
List characters(std::string_view text);

}  // namespace zs::jinja
