#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/base/buffer.h"

namespace zs {

/// A debugging aid that finds what no sanitizer sees: who writes to, or reads from, a buffer while an operation between
/// ranks uses it. The operation runs on private copies. Meanwhile the user's inputs must stay as they are, and the
/// user's outputs hold a pattern (every byte 0xff: not a number, or -1), which must stay too; who reads it early gets
/// that. Only at the end, a while later, are the results copied out.
///
/// One operation of one rank, on its stream's thread. Costs copies, memory and the delay.
class BufferRaceCheck {
 public:
  /// `what` ("all_gather(blocks.3)") must outlive it. The delay before the end is drawn from `draw`, between half of
  /// `longest_ms` and all of it.
  BufferRaceCheck(std::string_view what, double longest_ms, std::uint64_t draw);
  /// Unfinished, it leaves the user's buffers as they were.
  ~BufferRaceCheck();
  BufferRaceCheck(const BufferRaceCheck&) = delete;
  BufferRaceCheck& operator=(const BufferRaceCheck&) = delete;

  /// A private copy of what nobody watches.
  Buffer copy_of(const Buffer& user);

  /// A private copy of what must not change until the end.
  Buffer input(const Buffer& user);
  /// Private memory, with a copy of what `user` holds, for results that go there at the end. `spared`: a slice of
  /// `user` that is an input too, in place.
  Buffer output(const Buffer& user, const Buffer& spared = {});
  /// The place in a private output of what was in the user's: for operations in place.
  static Buffer same_place(const Buffer& slice, const Buffer& user, const Buffer& copy);

  /// Fills the buffer with the pattern.
  static void hide(const Buffer& buffer);

  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Bytes = std::unique_ptr<std::byte, Free>;
  /// Aligned as buffers are.
  static Bytes allocate(std::int64_t bytes);

  /// Waits, looks, copies out. Throws Error(internal) that names the operation, the buffer and the byte.
  void finish();

 private:
  struct Watched {
    const std::byte* user;
    Bytes expected;  // null: the pattern
    std::int64_t bytes;
    const char* kind;
  };
  struct Result {
    std::byte* user;
    const std::byte* copy;
    std::int64_t bytes;
    Bytes before;
  };
  void watch_input(const std::byte* user, std::int64_t bytes);
  void watch_output(std::byte* user, std::int64_t bytes);
  void check(const Watched& watched) const;

  std::string_view what_;
  double delay_ms_;
  std::vector<Bytes> copies_;
  std::vector<Watched> watched_;
  std::vector<Result> results_;
  bool is_finished_ = false;
};

}  // namespace zs
