#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/chat/expression_parser.h"
#include "model/chat/template_tree.h"
#include "runtime/base/reader_limits.h"

namespace zs::jinja {
namespace {

using StatementKind = Statement::Kind;

/// Parser of statements, above that of expressions.
class TemplateParser {
 public:
  TemplateParser(std::vector<TemplateToken> tokens, TemplateTree& tree) : in_(std::move(tokens), tree), tree_(tree) {}

  Block run() {
    Block body = block({});
    if (in_.next().kind == TemplateToken::Kind::block_begin) {
      in_.take();
      in_.error(fmt::format("'{}' ends nothing", in_.next().text.substr(0, 40)));
    }
    return body;
  }

 private:
  using Names = std::initializer_list<std::string_view>;
  static constexpr std::array<std::string_view, 10> kEnds = {
      "endfor", "endif", "else", "elif", "endset", "endmacro", "endcall", "endfilter", "endwith", "endgeneration"};

  static bool ends_block(const TemplateToken& token) {
    return token.kind == TemplateToken::Kind::name && std::find(kEnds.begin(), kEnds.end(), token.text) != kEnds.end();
  }

  Statement make(StatementKind kind) const {
    Statement made;
    made.kind = kind;
    made.line = in_.next().line;
    return made;
  }

  /// Statements up to a tag that ends a block: it must be one of `ends`, and stays.
  Block block(Names ends) {
    const ExpressionParser::Nesting nesting(in_);
    Block body;
    for (;;) {
      const TemplateToken& token = in_.next();
      if (token.kind == TemplateToken::Kind::end) {
        if (ends.size() > 0) in_.error(fmt::format("the template ends where '{}' is due", *ends.begin()));
        return body;
      }
      if (token.kind == TemplateToken::Kind::data) {
        body.push_back(make(StatementKind::data));
        body.back().text = in_.take().text;
      } else if (token.kind == TemplateToken::Kind::variable_begin) {
        body.push_back(make(StatementKind::output));
        in_.take();
        body.back().expressions.push_back(in_.tuple());
        expect(TemplateToken::Kind::variable_end, "}}");
      } else {
        const TemplateToken& word = in_.behind_next();
        if (ends_block(word)) {
          const bool is_due = std::any_of(ends.begin(), ends.end(), [&](auto end) { return word.is_name(end); });
          if (!is_due && ends.size() > 0) {
            in_.take();
            in_.error(fmt::format("'{}' stands where '{}' is due", word.text, *ends.begin()));
          }
          return body;
        }
        in_.take();
        body.push_back(statement());
      }
    }
  }

  void expect(TemplateToken::Kind kind, std::string_view what) {
    if (in_.next().kind != kind) in_.error(fmt::format("a tag goes on where '{}' is due", what));
    in_.take();
  }
  void end_tag() { expect(TemplateToken::Kind::block_end, "%}"); }
  /// `{% word %}`, which is there.
  void closing(std::string_view word) {
    in_.take();
    in_.expect_name(word);
    end_tag();
  }

  Statement statement() {
    Statement made = make(StatementKind::data);
    const std::string word = in_.expect_any_name("a statement");
    if (word == "if") return choice(std::move(made));
    if (word == "for") return loop(std::move(made));
    if (word == "set") return set(std::move(made));
    if (word == "macro") return macro(std::move(made));
    if (word == "call") return call(std::move(made));
    if (word == "filter") return filter(std::move(made));
    if (word == "with") return with(std::move(made));
    if (word == "generation") {
      tree_.has_generation = true;
      made.kind = StatementKind::generation;
      end_tag();
      return body_of(std::move(made), "endgeneration");
    }
    if (word == "break" || word == "continue") {
      if (loops_ == 0) in_.error(fmt::format("'{}' outside of a loop", word));
      made.kind = word == "break" ? StatementKind::stop : StatementKind::next;
      end_tag();
      return made;
    }
    in_.error(fmt::format("the statement '{}' is not supported", word.substr(0, 40)), TemplateError::Kind::unsupported);
  }

  Statement body_of(Statement made, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    made.bodies.push_back(block({end}));
    loops_ = loops;
    closing(end);
    return made;
  }

  Statement choice(Statement made) {
    made.kind = StatementKind::choice;
    for (bool goes_on = true; goes_on;) {
      made.expressions.push_back(in_.tuple(false));
      end_tag();
      made.bodies.push_back(block({"endif", "elif", "else"}));
      goes_on = in_.behind_next().is_name("elif");
      if (!goes_on) break;
      in_.take();
      in_.take();
    }
    if (in_.behind_next().is_name("else")) {
      closing("else");
      made.bodies.push_back(block({"endif"}));
    }
    closing("endif");
    return made;
  }

  /// Names that a value is unpacked into; with `has_fields` also a field of a namespace.
  void targets(Statement& made, bool has_fields) {
    const bool has_bracket = in_.skip_op("(");
    do {
      if (in_.next().kind != TemplateToken::Kind::name && !made.targets.empty()) break;  // a comma at the end
      std::string name = in_.expect_any_name("a name");
      if (has_fields && in_.skip_op(".")) name += "." + in_.expect_any_name("a name");
      for (const std::string_view taken : {"true", "false", "none", "True", "False", "None"})
        if (name == taken) in_.error(fmt::format("'{}' cannot be set", name));
      made.targets.push_back(std::move(name));
      made.is_tuple = in_.next().is_op(",");
    } while (in_.skip_op(","));
    made.is_tuple = made.is_tuple || made.targets.size() > 1;
    if (has_bracket) in_.expect_op(")");
  }

  Statement loop(Statement made) {
    made.kind = StatementKind::loop;
    targets(made, false);
    in_.expect_name("in");
    made.expressions.push_back(in_.tuple(false));
    made.expressions.push_back(in_.skip_name("if") ? in_.expression() : nullptr);
    if (in_.next().is_name("recursive"))
      in_.error("a recursive loop is not supported", TemplateError::Kind::unsupported);
    end_tag();
    ++loops_;
    made.bodies.push_back(block({"endfor", "else"}));
    --loops_;
    if (in_.behind_next().is_name("else")) {
      closing("else");
      made.bodies.push_back(block({"endfor"}));
    }
    closing("endfor");
    return made;
  }

  Statement set(Statement made) {
    made.kind = StatementKind::set;
    targets(made, true);
    if (in_.skip_op("=")) {
      made.expressions.push_back(in_.tuple());
      end_tag();
      return made;
    }
    made.kind = StatementKind::set_block;
    made.expressions.push_back(in_.skip_op("|") ? in_.filters(nullptr) : nullptr);
    end_tag();
    return body_of(std::move(made), "endset");
  }

  /// `(a, b=1)`: targets, and values of the last of them.
  void parameters(Statement& made, std::size_t from) {
    in_.expect_op("(");
    while (!in_.next().is_op(")")) {
      made.targets.push_back(in_.expect_any_name("a name"));
      if (in_.skip_op("="))
        made.expressions.push_back(in_.expression());
      else if (made.expressions.size() > from)
        in_.error("a parameter without a value stands behind one with a value");
      if (!in_.skip_op(",")) break;
    }
    in_.expect_op(")");
  }

  Statement macro(Statement made) {
    made.kind = StatementKind::macro;
    made.text = in_.expect_any_name("a name");
    parameters(made, 0);
    end_tag();
    return body_of(std::move(made), "endmacro");
  }

  Statement call(Statement made) {
    made.kind = StatementKind::call;
    made.expressions.push_back(nullptr);
    if (in_.next().is_op("(")) parameters(made, 1);
    made.expressions.front() = in_.expression();
    if (made.expressions.front()->kind != Expression::Kind::call) in_.error("a call block without a call");
    end_tag();
    return body_of(std::move(made), "endcall");
  }

  Statement filter(Statement made) {
    made.kind = StatementKind::filter;
    made.expressions.push_back(in_.filters(nullptr));
    end_tag();
    return body_of(std::move(made), "endfilter");
  }

  Statement with(Statement made) {
    made.kind = StatementKind::with;
    while (in_.next().kind == TemplateToken::Kind::name) {
      made.targets.push_back(in_.take().text);
      in_.expect_op("=");
      made.expressions.push_back(in_.expression());
      if (!in_.skip_op(",")) break;
    }
    end_tag();
    return body_of(std::move(made), "endwith");
  }

  ExpressionParser in_;
  TemplateTree& tree_;
  int loops_ = 0;  // around, up to the next block that is a function
};

}  // namespace

TemplateTree parse_template(std::string_view source) {
  if (std::ssize(source) > ReaderLimits::kTemplateBytes)
    throw TemplateError(TemplateError::Kind::failed,
                        fmt::format("it has {} bytes, more than {}", source.size(), ReaderLimits::kTemplateBytes));
  TemplateTree tree;
  tree.body = TemplateParser(lex_template(source), tree).run();
  return tree;
}

}  // namespace zs::jinja
