#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "model/chat/template_lexer.h"
#include "model/chat/template_tree.h"

namespace zs::jinja {

/// Parser of a template's expressions: it goes over the tokens, of which the statements' parser takes the rest.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<TemplateToken> tokens, TemplateTree& tree) : tokens_(std::move(tokens)), tree_(tree) {}

  const TemplateToken& next() const { return tokens_[at_]; }
  const TemplateToken& behind_next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  TemplateToken take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string expect_any_name(const char* what);
  [[noreturn]] void error(const std::string& what, TemplateError::Kind kind = TemplateError::Kind::syntax) const;

  /// An expression, `a if b else c` unless it is not allowed.
  ExpressionPtr expression(bool with_choice = true);
  /// Expressions with commas between them are a tuple.
  ExpressionPtr tuple(bool with_choice = true);
  /// A block's filters: `upper | trim`, whose first has nothing before it.
  ExpressionPtr filters(ExpressionPtr of);
  /// `(a, b, name=c)`.
  void arguments(Expression& call);
  ExpressionPtr primary();
  ExpressionPtr postfix(ExpressionPtr of);

  /// Counts brackets and blocks in one another, for as long as it lives.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  ExpressionPtr make(Expression::Kind kind, std::string name = {}) const;
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr filtered(ExpressionPtr of);
  ExpressionPtr filter(ExpressionPtr of);
  ExpressionPtr test(ExpressionPtr of);
  ExpressionPtr subscript(ExpressionPtr of);
  ExpressionPtr name();
  ExpressionPtr number();
  ExpressionPtr list();
  ExpressionPtr dict();
  template <class Operand>
  ExpressionPtr left_binary(std::initializer_list<std::string_view> ops, const Operand& operand);

  std::vector<TemplateToken> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
  TemplateTree& tree_;
};

}  // namespace zs::jinja
