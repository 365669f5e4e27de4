#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/train/run_dir/metrics.h"
#include "runtime/base/file.h"

namespace zs {

/// CRC-32C (Castagnoli) of `data`, masked as TFRecord files have it (tensorflow/core/lib/hash/crc32c.h).
std::uint32_t masked_crc32c(std::string_view data);

/// The scalars of a run as TensorBoard reads them: a TFRecord file of Event messages. It only grows, so that a
/// TensorBoard which is reading goes on: a run that goes on from an earlier step begins with SessionLog.START, from
/// which readers drop what they have seen of later steps. One write an event. Owns the descriptor; one thread uses it.
/// Follows no link. Throws Error(cannot_create) where the file cannot be opened or is no file of events, and Error(io)
/// where a write fails.
class EventFile {
 public:
  /// Goes on after step `done` in a file that is there; a record at its end that is torn is cut off.
  EventFile(std::string path, std::int64_t done);

  void add(const StepMetrics& metrics);
  void add_validation(const StepMetrics& metrics);

 private:
  void go_on();
  void write_record(std::string_view event);
  void check(const char* operation, int error) const;

  std::string path_;
  File file_;
};

/// True if it is a regular file that begins as a file of events does, or is empty.
bool begins_as_events(const std::string& path);

}  // namespace zs
