#pragma once

#include <string>

namespace zs {

/// Lines of standard input as they come, without waiting for long: whoever reads has other things to do. One thread
/// uses it.
class LineInput {
 public:
  enum class State { nothing, line, end };

  /// Waits for a line, `timeout_ms` at most: then line() has it, without its end.
  State poll(int timeout_ms);
  const std::string& line() const { return line_; }
  /// True if somebody types: then a signal may come at any time.
  static bool is_terminal();

 private:
  bool take_line();

  std::string line_, read_;
  bool has_ended_ = false;
};

}  // namespace zs
