#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "model/chat/value.h"

namespace zs::jinja {

/// Reads the arguments of a method, filter or function by place or name.
class Arguments {
 public:
  /// `names`: of its parameters, in their order. Throws for one that is not there, or comes twice.
  Arguments(std::string_view of, const CallArguments& given, std::initializer_list<const char*> names);

  /// Null: left out.
  const Value* find(std::size_t i) const { return values_[i]; }
  const Value& get(std::size_t i) const;
  std::string text(std::size_t i, const char* otherwise) const;
  std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  bool truth(std::size_t i, bool otherwise) const;

 private:
  std::string of_;
  std::vector<std::string> names_;
  std::vector<const Value*> values_;
};

/// Methods of texts, lists and dictionaries, as Python has them.
bool has_method(const Value& of, std::string_view name);
Value call_method(const Value& of, const std::string& name, const CallArguments& arguments);

/// Python's str.strip: without the characters of `chars`; null: without white space.
std::string stripped(std::string_view text, const Value* chars, bool at_front, bool at_end);
std::string replaced(std::string_view text, std::string_view what, std::string_view by, std::int64_t most);
std::string upper_case(std::string_view text);
std::string lower_case(std::string_view text);
std::string capitalized(std::string_view text);
/// Each word's first letter, as Jinja's filter has it.
std::string titled(std::string_view text, bool as_filter);
std::string joined_texts(const List& items, std::string_view between);
std::vector<std::string_view> lines_of(std::string_view text, bool keeps_ends = false);

}  // namespace zs::jinja
