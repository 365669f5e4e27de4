#include "runtime/device/upload_ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "runtime/base/deadline.h"

namespace zs {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::chrono::microseconds kUploadPause{20};  // between two looks at a GPU that is behind

}  // namespace

void UploadRing::start(Memory memory, Streams streams) {
  bytes_ = memory.bytes() / kAlignment * kAlignment;
  ZS_CHECK(bytes_ >= 2 * kAlignment, "page-locked memory of {} bytes for uploads", memory.bytes());
  memory_ = std::move(memory);
  streams_ = std::move(streams);
}

UploadRing::~UploadRing() {
  for (const Piece& piece : pieces_) unused_.push_back(piece.passed);
  for (CUevent_st* event : unused_)
    log_cuda(context_.driver(), context_.driver().event_destroy(event), "cuEventDestroy");
}

void UploadRing::upload(CUstream_st* stream, const Buffer& out, const void* in) {
  if (refuses_) {
    throw Error(ExitCode::usage, "an upload within captured work, whose replays would all have these values", "",
                "upload them before, to memory that stays");
  }
  const auto* const from = static_cast<const std::byte*>(in);
  const std::int64_t most = bytes_ / 2 / kAlignment * kAlignment;
  const Buffer all{out.data, out.bytes(), DType::u8, out.device};
  for (std::int64_t at = 0; at < all.elems; at += most) {
    const Buffer part = all.slice(at, std::min(most, all.elems - at));
    std::byte* const piece = take((part.elems + kAlignment - 1) / kAlignment * kAlignment);
    CUevent_st* const passed = take_event();
    pieces_.push_back({piece - static_cast<std::byte*>(memory_.address()), passed});
    std::memcpy(piece, from + at, static_cast<std::size_t>(part.elems));
    context_.copy(stream, part, {piece, part.elems, DType::u8, DeviceKind::cpu});
    context_.check(context_.driver().event_record(passed, stream), "cuEventRecord");
  }
}

std::byte* UploadRing::take(std::int64_t bytes) {
  for (forget_passed(); !fits(bytes); forget_passed()) await_oldest();
  std::byte* const piece = static_cast<std::byte*>(memory_.address()) + next_;
  next_ += bytes;
  return piece;
}

/// True if so many bytes fit from next_ on, which may become the beginning. What is in use lies between the oldest
/// piece and next_; where they meet, all is.
bool UploadRing::fits(std::int64_t bytes) {
  if (pieces_.empty()) {
    next_ = 0;
    return true;
  }
  const std::int64_t oldest = pieces_.front().offset;
  if (next_ <= oldest) return next_ + bytes <= oldest;
  if (next_ + bytes <= bytes_) return true;
  if (bytes > oldest) return false;
  next_ = 0;
  return true;
}

void UploadRing::forget_passed() {
  while (!pieces_.empty()) {
    const int status = context_.driver().event_query(pieces_.front().passed);
    if (status == cuda_status::kNotReady) return;
    context_.check(status, "cuEventQuery");
    unused_.push_back(pieces_.front().passed);
    pieces_.pop_front();
  }
}

void UploadRing::await_oldest() const {
  Deadline deadline(timeout_s_);
  while (context_.driver().event_query(pieces_.front().passed) == cuda_status::kNotReady) {
    streams_.check();  // else what NCCL has to tell would be heard at the next synchronize, which is after this wait
    if (timeout_s_ > 0 && deadline.has_passed()) {
      throw Error(ExitCode::peer_lost, fmt::format("the GPU has not taken what was uploaded within {} s", timeout_s_),
                  fmt::format("{}; {}", context_.gpu().describe(), streams_.activity()),
                  "a rank is lost, stopped or much slower than the others");
    }
    std::this_thread::sleep_for(kUploadPause);
  }
}

CUevent_st* UploadRing::take_event() {
  CUevent_st* event = nullptr;
  if (unused_.empty()) {
    context_.check(context_.driver().event_create(&event, CudaDriver::kWithoutTime), "cuEventCreate");
  } else {
    event = unused_.back();
    unused_.pop_back();
  }
  return event;
}

}  // namespace zs
