#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zs::jinja {

/// Token of a template: text between tags, tags, and what an expression is made of.
struct TemplateToken {
  enum class Kind : std::uint8_t {
    data,  ///< text that is put out
    block_begin,
    block_end,
    variable_begin,
    variable_end,
    name,
    string,
    integer,
    real,
    op,
    end
  };
  Kind kind = Kind::end;
  std::string text;  ///< a string's without quotes and escapes
  int line = 1;

  bool is_op(std::string_view op) const { return kind == Kind::op && text == op; }
  bool is_name(std::string_view name) const { return kind == Kind::name && text == name; }
};

/// Tokens of a template, as Jinja has them with trim_blocks and lstrip_blocks. Throws TemplateError.
std::vector<TemplateToken> lex_template(std::string_view source);

}  // namespace zs::jinja
