#pragma once

#include <cstdint>
#include <string>

#include "runtime/device/device.h"

namespace zs {

/// Numbers of ops and waits that were found in order.
struct VerifiedOrder {
  std::int64_t ops = 0, waits = 0;
};

/// Verifies a device's work piece by piece; the host has waited for the whole device wherever a piece begins and ends,
/// so that nothing needs an order across. Uses the device's trace while it lives. Host thread only.
class StepVerifier {
 public:
  /// Best right after the device was made: violations then name the block of every buffer.
  explicit StepVerifier(Device& device);
  ~StepVerifier();
  StepVerifier(const StepVerifier&) = delete;
  StepVerifier& operator=(const StepVerifier&) = delete;

  /// Checks everything enqueued since the last call and begins the next piece. Error(internal) that says the first
  /// violation, and how many there are.
  VerifiedOrder check(const std::string& where);
  /// Pauses and resumes recording.
  void pause() { device_.trace().stop(); }
  void resume() { device_.trace().start(); }

 private:
  void forget_all_but_live_blocks();

  Device& device_;
};

/// Error(internal) for violations of a trace; nothing for none. The text is one line.
void throw_if_out_of_order(const std::vector<OrderViolation>& violations, const std::string& where);

}  // namespace zs
