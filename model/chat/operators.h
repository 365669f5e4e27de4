#pragma once

#include <string>

#include "model/chat/value.h"

namespace zs::jinja {

/// Value of `a op b`, with + - ~ * / // % **, as Python has it.
Value binary(const std::string& op, const Value& a, const Value& b);
/// True if `a op b`, with == != < <= > >= in, not in.
bool compare(const std::string& op, const Value& a, const Value& b);
bool contains(const Value& of, const Value& item);
/// Item of[key]; undefined where there is none.
Value subscript(const Value& of, const Value& key);
/// Method, field or item of.name; undefined where there is none.
Value attribute(const Value& of, const std::string& name);
/// Slice of[from:to:step]; null: left out.
Value slice(const Value& of, const Value* from, const Value* to, const Value* step);
/// Items that a loop goes over; of a dict its keys, of a text its characters.
List iterated(const Value& of);
/// Throws where a text of so many bytes would be too long.
void check_length(std::int64_t bytes);

}  // namespace zs::jinja
