#include "model/train/run_dir/event_file.h"

#include <fcntl.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "runtime/base/file.h"

namespace zs {
namespace {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

constexpr std::string_view kVersion = "brain.Event:2";
constexpr std::uint64_t kLongestEvent = 1 << 16;
constexpr std::size_t kLengthBytes = 8, kCrcBytes = 4;

constexpr auto kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = (table[i] >> 1) ^ ((table[i] & 1) != 0 ? 0x82f63b78U : 0);
  }
  return table;
}();

template <class T>
std::string bytes_of(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

/// Fields of a message: https://protobuf.dev/programming-guides/encoding
enum class Wire : std::uint8_t { integer = 0, eight_bytes = 1, message = 2, four_bytes = 5 };
std::string tag_of(int field, Wire wire) {
  return varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}
std::string text_field(int field, std::string_view text) {
  return tag_of(field, Wire::message) + varint(text.size()) + std::string(text);
}
std::string number_field(int field, std::int64_t number) {
  return tag_of(field, Wire::integer) + varint(static_cast<std::uint64_t>(number));
}

/// Field numbers of tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
namespace event_field {
enum Number : std::uint8_t { wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7 };
}
std::string event_of(std::int64_t step, int field, std::string_view content) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return tag_of(event_field::wall_time, Wire::eight_bytes) + bytes_of(std::chrono::duration<double>(now).count()) +
         number_field(event_field::step, step) + text_field(field, content);
}

/// A Summary's value: a tag and a simple_value.
std::string scalar(std::string_view tag, double value) {
  return text_field(1, text_field(1, tag) + tag_of(2, Wire::four_bytes) + bytes_of(static_cast<float>(value)));
}

std::string validation_scalars(const StepMetrics& m) {
  std::string values = m.val_loss ? scalar("loss/validation", *m.val_loss) : "";
  for (const TaskMetric& task : m.tasks)
    values += scalar(fmt::format("task/{}/{}", task.task, task.metric), task.value);
  return values;
}

std::string record_of(std::string_view event) {
  const std::string length = bytes_of(static_cast<std::uint64_t>(event.size()));
  return length + bytes_of(masked_crc32c(length)) + std::string(event) + bytes_of(masked_crc32c(event));
}

/// Reads records one after the other, as far as they are whole.
class RecordReader {
 public:
  explicit RecordReader(const File& file) : file_(file) {}

  /// The next record's event; false where no whole one follows.
  bool next(std::string& event) {
    std::string head;
    if (!read(at_, kLengthBytes + kCrcBytes, head)) return false;
    std::uint64_t length = 0;
    std::memcpy(&length, head.data(), sizeof length);
    const std::string_view length_bytes = std::string_view(head).substr(0, kLengthBytes);
    if (head.substr(kLengthBytes) != bytes_of(masked_crc32c(length_bytes)) || length > kLongestEvent) return false;
    std::string rest;
    if (!read(at_ + std::ssize(head), length + kCrcBytes, rest)) return false;
    event = rest.substr(0, length);
    if (rest.substr(length) != bytes_of(masked_crc32c(event))) return false;
    at_ += std::ssize(head) + std::ssize(rest);
    return true;
  }
  /// End of the last whole record.
  std::int64_t end() const { return at_; }

 private:
  bool read(std::int64_t from, std::uint64_t count, std::string& bytes) {
    if (from < begin_ || from + static_cast<std::int64_t>(count) > begin_ + std::ssize(buffer_)) fill(from);
    const auto offset = static_cast<std::size_t>(from - begin_);
    if (offset + count > buffer_.size()) return false;
    bytes = buffer_.substr(offset, count);
    return true;
  }
  void fill(std::int64_t from) {
    buffer_.resize(kBufferBytes);
    buffer_.resize(file_.read_at(from, buffer_.data(), buffer_.size()).bytes);
    begin_ = from;
  }

  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
  const File& file_;
  std::string buffer_;
  std::int64_t begin_ = 0, at_ = 0;
};

bool is_version(std::string_view event) { return event.ends_with(text_field(event_field::file_version, kVersion)); }

}  // namespace

std::uint32_t masked_crc32c(std::string_view data) {
  std::uint32_t crc = ~0U;
  for (const char c : data) crc = kCrcTable[(crc ^ static_cast<std::uint8_t>(c)) & 0xff] ^ (crc >> 8);
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

EventFile::EventFile(std::string path, std::int64_t done)
    : path_(std::move(path)), file_(File::open(path_, O_RDWR | O_APPEND | O_CREAT | O_NOFOLLOW)) {
  if (!file_.is_open())
    throw Error(ExitCode::cannot_create, fmt::format("cannot write events: {}", system_reason(file_.error())), path_,
                "check the folder's permissions, or set run.tensorboard=false");
  if (!begins_as_events(path_))
    throw Error(ExitCode::cannot_create, "this is in the way, and it is no file of events", path_,
                "move it elsewhere, or set run.tensorboard=false");
  go_on();
  constexpr std::int64_t kStart = 1;  // SessionLog.status
  if (file_.bytes() == 0)
    write_record(event_of(0, event_field::file_version, kVersion));
  else
    write_record(event_of(done + 1, event_field::session_log, number_field(1, kStart)));
}

/// Cuts a torn record, after which nothing could be read.
void EventFile::go_on() {
  RecordReader records(file_);
  for (std::string event; records.next(event);) continue;
  if (records.end() < file_.bytes()) check("cutting", file_.truncate(records.end()));
}

void EventFile::check(const char* operation, int error) const {
  if (error != 0) throw file_error(ExitCode::io, fmt::format("{} events", operation), error, path_);
}

void EventFile::write_record(std::string_view event) { check("writing", file_.write(record_of(event))); }

void EventFile::add(const StepMetrics& m) {
  if (m.step == 0) return m.is_validated() ? add_validation(m) : void();
  std::string values = scalar("loss/train", m.loss) + scalar("train/learning_rate", m.lr) +
                       scalar("train/gradient_norm", m.grad_norm) + scalar("speed/tokens_per_s", m.tokens_per_s) +
                       scalar("speed/step_ms", m.step_ms) +
                       scalar("memory/peak_bytes", static_cast<double>(m.peak_bytes));
  values += validation_scalars(m);
  for (const MixtureLoad& mixture : m.mixtures) {
    values += scalar(fmt::format("experts/load_max/layer_{}", mixture.layer), mixture.most);
    values += scalar(fmt::format("experts/load_entropy/layer_{}", mixture.layer), mixture.entropy);
    if (mixture.balance_loss)
      values += scalar(fmt::format("experts/balance_loss/layer_{}", mixture.layer), *mixture.balance_loss);
  }
  write_record(event_of(m.step, event_field::summary, values));
}

void EventFile::add_validation(const StepMetrics& m) {
  write_record(event_of(m.step, event_field::summary, validation_scalars(m)));
}

bool begins_as_events(const std::string& path) {
  const File file = File::open(path, O_RDONLY | O_NOFOLLOW);
  if (!file.is_open() || !file.is_regular()) return false;
  // A first record that is torn holds nothing.
  const std::string length =
      bytes_of(static_cast<std::uint64_t>(event_of(0, event_field::file_version, kVersion).size()));
  std::array<char, kLengthBytes> begin{};
  const File::Count count = file.read_at(0, begin.data(), begin.size());
  if (count.error != 0) return false;
  const bool is_torn = file.bytes() < 64 && length.starts_with(std::string_view(begin.data(), count.bytes));
  std::string event;
  return is_torn || (RecordReader(file).next(event) && is_version(event));
}

}  // namespace zs
