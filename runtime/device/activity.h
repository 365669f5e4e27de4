#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace zs {

/// Activity of a thread or process, readable at any time by another one, without ordering the two: words of a text,
/// stored and loaded one by one. A text read while it changes is torn; it is only read of those that hang. At most 95
/// bytes.
class Activity {
 public:
  void set(std::string_view text) noexcept;
  std::string get() const;

 private:
  std::array<std::atomic<std::uint64_t>, 12> words_{};
};

}  // namespace zs
