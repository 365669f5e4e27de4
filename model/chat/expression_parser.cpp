#include "model/chat/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "model/chat/filters.h"
#include "runtime/base/reader_limits.h"

namespace zs::jinja {
namespace {

using ExpressionKind = Expression::Kind;

constexpr int kMostOperands = 128;  // limit of one chain, which is as deep as it is long

std::string described(const TemplateToken& token) {
  switch (token.kind) {
    case TemplateToken::Kind::block_end: return "'%}'";
    case TemplateToken::Kind::variable_end: return "'}}'";
    case TemplateToken::Kind::end: return "the end";
    case TemplateToken::Kind::data: return "text";
    case TemplateToken::Kind::string: return "a string";
    default: return fmt::format("'{}'", token.text.substr(0, 40));
  }
}

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ <= ReaderLimits::kTemplateDepth) return;
  --parser_.depth_;
  parser_.error(fmt::format("it nests deeper than {}", ReaderLimits::kTemplateDepth));
}

void ExpressionParser::error(const std::string& what, TemplateError::Kind kind) const {
  throw TemplateError(kind, what, next().line);
}

bool ExpressionParser::skip_op(std::string_view op) { return next().is_op(op) && (++at_, true); }
bool ExpressionParser::skip_name(std::string_view name) { return next().is_name(name) && (++at_, true); }

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) error(fmt::format("{} stands where '{}' is due", described(next()), op));
}

void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) error(fmt::format("{} stands where '{}' is due", described(next()), name));
}

std::string ExpressionParser::expect_any_name(const char* what) {
  if (next().kind != TemplateToken::Kind::name)
    error(fmt::format("{} stands where {} is due", described(next()), what));
  return take().text;
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, std::string name) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = next().line;
  made->name = std::move(name);
  return made;
}

ExpressionPtr ExpressionParser::expression(bool with_choice) {
  const Nesting nesting(*this);
  ExpressionPtr value = either();
  while (with_choice && next().is_name("if")) {
    ExpressionPtr choice = make(ExpressionKind::choice);
    take();
    choice->parts.push_back(std::move(value));
    choice->parts.push_back(either());
    choice->parts.push_back(skip_name("else") ? expression() : nullptr);
    value = std::move(choice);
  }
  return value;
}

ExpressionPtr ExpressionParser::tuple(bool with_choice) {
  ExpressionPtr first = expression(with_choice);
  if (!next().is_op(",")) return first;
  ExpressionPtr made = make(ExpressionKind::tuple);
  made->parts.push_back(std::move(first));
  while (skip_op(",")) {
    const bool is_last = next().kind == TemplateToken::Kind::block_end ||
                         next().kind == TemplateToken::Kind::variable_end || next().is_op(")");
    if (is_last) break;
    made->parts.push_back(expression(with_choice));
  }
  return made;
}

template <class Operand>
ExpressionPtr ExpressionParser::left_binary(std::initializer_list<std::string_view> ops, const Operand& operand) {
  ExpressionPtr left = operand();
  for (int count = 0;; ++count) {
    const auto op = std::find_if(ops.begin(), ops.end(),
                                 [&](std::string_view one) { return next().is_op(one) || next().is_name(one); });
    if (op == ops.end()) return left;
    if (count == kMostOperands) error("an expression is too long");
    ExpressionPtr made = make(ExpressionKind::binary, std::string(*op));
    take();
    made->parts.push_back(std::move(left));
    made->parts.push_back(operand());
    left = std::move(made);
  }
}

ExpressionPtr ExpressionParser::either() {
  return left_binary({"or"}, [this] { return both(); });
}
ExpressionPtr ExpressionParser::both() {
  return left_binary({"and"}, [this] { return negation(); });
}

ExpressionPtr ExpressionParser::negation() {
  if (!next().is_name("not")) return comparison();
  const Nesting nesting(*this);
  ExpressionPtr made = make(ExpressionKind::unary, "not");
  take();
  made->parts.push_back(negation());
  return made;
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr first = sum();
  ExpressionPtr made;
  for (;;) {
    std::string op;
    for (const std::string_view one : {"==", "!=", "<=", ">=", "<", ">"})
      if (next().is_op(one)) op = one;
    if (next().is_name("in")) op = "in";
    if (next().is_name("not") && behind_next().is_name("in")) op = "not in";
    if (op.empty()) return made ? std::move(made) : std::move(first);
    if (!made) {
      made = make(ExpressionKind::compare);
      made->parts.push_back(std::move(first));
    }
    take();
    if (op == "not in") take();
    made->names.push_back(op);
    made->parts.push_back(sum());
  }
}

ExpressionPtr ExpressionParser::sum() {
  return left_binary({"+", "-"}, [this] { return concatenation(); });
}
ExpressionPtr ExpressionParser::concatenation() {
  return left_binary({"~"}, [this] { return product(); });
}
ExpressionPtr ExpressionParser::product() {
  return left_binary({"*", "/", "//", "%"}, [this] { return power(); });
}
ExpressionPtr ExpressionParser::power() {
  return left_binary({"**"}, [this] { return unary(); });
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  const Nesting nesting(*this);
  ExpressionPtr made;
  if (next().is_op("-") || next().is_op("+")) {
    made = make(ExpressionKind::unary, next().text);
    take();
    made->parts.push_back(unary(false));
  } else {
    made = postfix(primary());
  }
  return with_filter ? filtered(std::move(made)) : std::move(made);
}

ExpressionPtr ExpressionParser::primary() {
  switch (next().kind) {
    case TemplateToken::Kind::name: return name();
    case TemplateToken::Kind::integer:
    case TemplateToken::Kind::real: return number();
    case TemplateToken::Kind::string: {
      ExpressionPtr made = make(ExpressionKind::constant);
      std::string text;
      while (next().kind == TemplateToken::Kind::string) text += take().text;
      tree_.literals.insert(text);
      made->value = Value::string(std::move(text));
      return made;
    }
    default: break;
  }
  if (next().is_op("[")) return list();
  if (next().is_op("{")) return dict();
  if (!skip_op("(")) error(fmt::format("{} stands where a value is due", described(next())));
  const Nesting nesting(*this);
  ExpressionPtr made = next().is_op(")") ? make(ExpressionKind::tuple) : tuple();
  expect_op(")");
  return made;
}

ExpressionPtr ExpressionParser::name() {
  ExpressionPtr made = make(ExpressionKind::constant);
  const std::string text = take().text;
  if (text == "true" || text == "True" || text == "false" || text == "False") {
    made->value = Value::boolean(text == "true" || text == "True");
  } else if (text == "none" || text == "None") {
    made->value = Value::none();
  } else {
    made->kind = ExpressionKind::variable;
    made->name = text;
    tree_.names.insert(text);
  }
  return made;
}

ExpressionPtr ExpressionParser::number() {
  ExpressionPtr made = make(ExpressionKind::constant);
  const TemplateToken token = take();
  const char* const begin = token.text.data();
  const char* const end = begin + token.text.size();
  std::int64_t integer = 0;
  double real = 0;
  const bool is_integer = token.kind == TemplateToken::Kind::integer;
  const auto [stop, error_code] = is_integer ? std::from_chars(begin, end, integer) : std::from_chars(begin, end, real);
  if (error_code != std::errc() || stop != end || (is_integer && integer > 0 && token.text.front() == '0'))
    error(fmt::format("the number {} is not supported", token.text.substr(0, 40)), TemplateError::Kind::unsupported);
  made->value = is_integer ? Value::integer(integer) : Value::real(real);
  return made;
}

ExpressionPtr ExpressionParser::list() {
  const Nesting nesting(*this);
  ExpressionPtr made = make(ExpressionKind::list);
  expect_op("[");
  while (!next().is_op("]")) {
    made->parts.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_op("]");
  return made;
}

ExpressionPtr ExpressionParser::dict() {
  const Nesting nesting(*this);
  ExpressionPtr made = make(ExpressionKind::dict);
  expect_op("{");
  while (!next().is_op("}")) {
    made->parts.push_back(expression());
    expect_op(":");
    made->parts.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_op("}");
  return made;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr of) {
  for (int count = 0;; ++count) {
    if (count == kMostOperands) error("an expression is too long");
    if (next().is_op(".")) {
      ExpressionPtr made = make(ExpressionKind::attribute);
      take();
      if (next().kind == TemplateToken::Kind::integer) {
        made->kind = ExpressionKind::subscript;
        made->parts.push_back(std::move(of));
        made->parts.push_back(number());
      } else {
        made->name = expect_any_name("a name");
        made->parts.push_back(std::move(of));
      }
      of = std::move(made);
    } else if (next().is_op("[")) {
      of = subscript(std::move(of));
    } else if (next().is_op("(")) {
      ExpressionPtr made = make(ExpressionKind::call);
      made->parts.push_back(std::move(of));
      arguments(*made);
      of = std::move(made);
    } else {
      return of;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr of) {
  const Nesting nesting(*this);
  ExpressionPtr made = make(ExpressionKind::subscript);
  expect_op("[");
  made->parts.push_back(std::move(of));
  if (!next().is_op(":")) made->parts.push_back(expression());
  if (next().is_op(":")) {
    made->kind = ExpressionKind::slice;
    made->parts.resize(2);
    while (skip_op(":")) {
      const bool is_left_out = next().is_op(":") || next().is_op("]");
      made->parts.push_back(is_left_out ? nullptr : expression());
    }
    if (made->parts.size() > 4) error("a slice has more than three parts");
    made->parts.resize(4);
  }
  if (next().is_op(",")) error("a subscript of several values is not supported", TemplateError::Kind::unsupported);
  expect_op("]");
  return made;
}

void ExpressionParser::arguments(Expression& call) {
  const Nesting nesting(*this);
  expect_op("(");
  while (!next().is_op(")")) {
    if (next().is_op("*") || next().is_op("**"))
      error("arguments from a list are not supported", TemplateError::Kind::unsupported);
    if (next().kind == TemplateToken::Kind::name && behind_next().is_op("=")) {
      call.names.push_back(take().text);
      take();
    } else if (!call.names.empty()) {
      error("an argument without a name stands behind one with a name");
    }
    call.parts.push_back(expression());
    if (!skip_op(",")) break;
  }
  expect_op(")");
}

ExpressionPtr ExpressionParser::filtered(ExpressionPtr of) {
  for (int count = 0;; ++count) {
    if (count == kMostOperands) error("an expression is too long");
    if (skip_op("|"))
      of = filter(std::move(of));
    else if (skip_name("is"))
      of = test(std::move(of));
    else if (next().is_op("("))
      of = postfix(std::move(of));
    else
      return of;
  }
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr of) {
  of = filter(std::move(of));
  return filtered(std::move(of));
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr of) {
  ExpressionPtr made = make(ExpressionKind::filter);
  made->name = expect_any_name("a filter");
  if (!has_filter(made->name))
    error(fmt::format("the filter '{}' is not supported", made->name.substr(0, 40)), TemplateError::Kind::unsupported);
  made->parts.push_back(std::move(of));
  if (next().is_op("(")) arguments(*made);
  return made;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr of) {
  const bool is_negated = skip_name("not");
  ExpressionPtr made = make(ExpressionKind::test);
  made->name = expect_any_name("a test");
  if (!has_test(made->name))
    error(fmt::format("the test '{}' is not supported", made->name.substr(0, 40)), TemplateError::Kind::unsupported);
  made->parts.push_back(std::move(of));
  const TemplateToken& token = next();
  const bool is_word = token.is_name("else") || token.is_name("or") || token.is_name("and") || token.is_name("is");
  const bool begins_value = token.kind == TemplateToken::Kind::name || token.kind == TemplateToken::Kind::string ||
                            token.kind == TemplateToken::Kind::integer || token.kind == TemplateToken::Kind::real ||
                            token.is_op("[") || token.is_op("{");
  if (token.is_op("("))
    arguments(*made);
  else if (begins_value && !is_word && !token.is_name("if"))
    made->parts.push_back(postfix(primary()));
  if (!is_negated) return made;
  ExpressionPtr negated = make(ExpressionKind::unary, "not");
  negated->parts.push_back(std::move(made));
  return negated;
}

}  // namespace zs::jinja
