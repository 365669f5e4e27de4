#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

/// The metadata of a GGUF file, as bytes (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
class GgufFields {
 public:
  enum Type : std::uint32_t { u8 = 0, u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8, array = 9 };

  void add(const std::string& key, std::int64_t value) { begin(key, u32), put(static_cast<std::uint32_t>(value)); }
  void add(const std::string& key, double value) { begin(key, f32), put(static_cast<float>(value)); }
  void add(const std::string& key, const std::string& value) { begin(key, string), put_text(value); }
  void add(const std::string& key, bool value) { begin(key, boolean), put(static_cast<std::uint8_t>(value)); }
  void add(const std::string& key, const std::vector<std::string>& values) {
    begin_array(key, string, values.size());
    for (const std::string& value : values) put_text(value);
  }
  void add(const std::string& key, const std::vector<std::int32_t>& values) {
    begin_array(key, i32, values.size());
    for (const std::int32_t value : values) put(value);
  }
  void add(const std::string& key, const std::vector<float>& values) {
    begin_array(key, f32, values.size());
    for (const float value : values) put(value);
  }
  void add_bytes(const std::string& key, const std::string& values) {
    begin_array(key, u8, values.size());
    bytes_ += values;
  }
  template <class T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(const std::string& text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_ += text;
  }
  std::uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(const std::string& key, Type type) {
    ++count_;
    put_text(key);
    put(static_cast<std::uint32_t>(type));
  }
  void begin_array(const std::string& key, Type type, std::size_t size) {
    begin(key, array);
    put(static_cast<std::uint32_t>(type));
    put(static_cast<std::uint64_t>(size));
  }

  std::string bytes_;
  std::uint64_t count_ = 0;
};

}  // namespace zs
