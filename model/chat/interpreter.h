#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/chat/template_tree.h"
#include "model/chat/value.h"

namespace zs::jinja {

/// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

/// Text that a template makes of its variables.
struct Rendered {
  std::string text;
  std::vector<TextSpan> generated;  ///< spans of its generation blocks, in their order
};
/// Throws TemplateError with the line, also where it takes more steps, memory or depth than ReaderLimits has.
Rendered render(const TemplateTree& tree, const Dict& variables);

}  // namespace zs::jinja
