#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/chat/value.h"

namespace zs::jinja {

/// Expression of a template. What `name` and `parts` are follows from the kind.
struct Expression {
  enum class Kind : std::uint8_t {
    constant,  ///< `value`
    variable,  ///< `name`
    list,
    tuple,      ///< parts
    dict,       ///< parts: key, value, key, value ...
    attribute,  ///< parts[0].name
    subscript,  ///< parts[0][parts[1]]
    slice,      ///< parts[0][parts[1]:parts[2]:parts[3]], each of which may be null
    call,       ///< parts[0](parts[1 + i], named)
    filter,
    test,     ///< parts[0] | name(parts[1 + i], named); parts[0] null: of a block
    unary,    ///< name parts[0]
    binary,   ///< parts[0] name parts[1]
    compare,  ///< parts[0] names[0] parts[1] names[1] parts[2] ...
    choice    ///< parts[0] if parts[1] else parts[2], which may be null
  };
  Kind kind = Kind::constant;
  int line = 0;
  std::string name = {};
  Value value = {};
  std::vector<std::unique_ptr<Expression>> parts = {};
  std::vector<std::string> names = {};  ///< names of the last parts of a call or filter
};
using ExpressionPtr = std::unique_ptr<Expression>;

struct Statement;
using Block = std::vector<Statement>;

/// Statement of a template.
struct Statement {
  enum class Kind : std::uint8_t {
    data,        ///< `text`
    output,      ///< expressions[0]
    choice,      ///< bodies[i] if expressions[i]; one more body: else
    loop,        ///< for targets in expressions[0] if expressions[1] (may be null): bodies[0]; else bodies[1]
    set,         ///< targets = expressions[0]
    set_block,   ///< targets = bodies[0], through expressions[0] (may be null)
    macro,       ///< `text`(targets = expressions, aligned at the end): bodies[0]
    call,        ///< expressions[0], a call, with caller(targets) = bodies[0]
    filter,      ///< bodies[0] through expressions[0]
    with,        ///< targets[i] = expressions[i]: bodies[0]
    generation,  ///< bodies[0]: what an assistant has written
    stop,
    next  ///< break, continue
  };
  Kind kind = Kind::data;
  int line = 0;
  std::string text = {};
  std::vector<ExpressionPtr> expressions = {};
  std::vector<std::string> targets = {};  ///< names; "ns.name": a namespace's field
  std::vector<Block> bodies = {};
  bool is_tuple = false;  ///< targets are unpacked, one though there may be
};

/// A template as a tree.
struct TemplateTree {
  Block body;
  std::set<std::string> names;     ///< variables that it reads
  std::set<std::string> literals;  ///< its strings
  bool has_generation = false;     ///< true if it says what the assistant has written
};
/// Throws TemplateError.
TemplateTree parse_template(std::string_view source);

}  // namespace zs::jinja
