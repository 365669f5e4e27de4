#pragma once

#include <string>

#include "model/chat/value.h"

namespace zs::jinja {

/// `of | name(arguments)`. Throws TemplateError, also for a filter that is not supported.
Value apply_filter(const std::string& name, const Value& of, const CallArguments& arguments);
/// `of is name(arguments)`.
bool apply_test(const std::string& name, const Value& of, const CallArguments& arguments);
/// True if there is such a one, for a template that is refused before it runs.
bool has_filter(const std::string& name);
bool has_test(const std::string& name);

}  // namespace zs::jinja
