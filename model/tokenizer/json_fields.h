#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "runtime/base/check.h"

namespace zs {

/// A file that is JSON. Throws Error(model) that names it.
nlohmann::json read_tokenizer_document(const std::string& path);

/// The beginning of a text, for an error.
inline std::string shown(const std::string& text) { return text.size() <= 40 ? text : text.substr(0, 37) + "..."; }

/// An object of a JSON file, with its place in it for errors. It knows what was read of it, so that nothing is passed
/// over unseen. It refers to the document.
class Fields {
 public:
  Fields(const nlohmann::json& object, std::string file, std::string place)
      : object_(object), file_(std::move(file)), place_(std::move(place)) {
    if (!object.is_object()) fail("is no object");
  }

  [[noreturn]] void fail(const std::string& what, const std::string& todo = {}) const {
    throw Error(ExitCode::model, fmt::format("{} {}", place_.empty() ? "the file" : place_, what), file_, todo);
  }
  [[noreturn]] void refuse(const std::string& key, const std::string& value) const {
    throw Error(ExitCode::model,
                fmt::format("{} = {} is not supported, and it changes the ids", path_of(key), shown(value)), file_,
                "use a tokenizer without it");
  }
  std::string path_of(const std::string& key) const { return place_.empty() ? key : place_ + "." + key; }
  const std::string& file() const { return file_; }

  /// None where it is absent or null.
  const nlohmann::json* find(const char* key) {
    read_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const nlohmann::json& get(const char* key) {
    const nlohmann::json* const value = find(key);
    if (value == nullptr) fail(fmt::format("lacks {}", key));
    return *value;
  }
  bool boolean(const char* key) { return boolean_of(get(key), key); }
  bool boolean(const char* key, bool otherwise) {
    const nlohmann::json* const value = find(key);
    return value == nullptr ? otherwise : boolean_of(*value, key);
  }
  std::string text(const char* key) {
    const nlohmann::json& value = get(key);
    if (!value.is_string()) fail(fmt::format("has a {} that is no text", key));
    return value.get<std::string>();
  }
  std::string text(const char* key, const std::string& otherwise) {
    return find(key) == nullptr ? otherwise : text(key);
  }
  std::int64_t integer(const char* key, std::int64_t most) { return integer_of(get(key), key, most); }
  std::int64_t integer_of(const nlohmann::json& value, const std::string& key, std::int64_t most) const {
    if (!value.is_number_integer() || value < 0 || value > most)
      fail(fmt::format("has a {} that is no number from 0 to {}", key, most));
    return value.get<std::int64_t>();
  }
  const nlohmann::json& array(const char* key) {
    const nlohmann::json& value = get(key);
    if (!value.is_array()) fail(fmt::format("has a {} that is no list", key));
    return value;
  }
  Fields object(const char* key) { return Fields(get(key), file_, path_of(key)); }
  Fields element(const nlohmann::json& list, const std::string& key, std::size_t i) const {
    return Fields(list[i], file_, fmt::format("{}[{}]", path_of(key), i));
  }
  void ignore(std::initializer_list<const char*> keys) { read_.insert(keys.begin(), keys.end()); }
  /// Call it last.
  void check_all_read() const {
    for (const auto& entry : object_.items())
      if (!read_.contains(entry.key())) refuse(entry.key(), entry.value().is_null() ? "null" : "...");
  }

 private:
  bool boolean_of(const nlohmann::json& value, const char* key) const {
    if (!value.is_boolean()) fail(fmt::format("has a {} that is neither true nor false", key));
    return value.get<bool>();
  }

  const nlohmann::json& object_;
  std::string file_, place_;
  std::set<std::string> read_;
};

}  // namespace zs
