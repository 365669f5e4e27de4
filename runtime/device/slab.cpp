#include "runtime/device/slab.h"

#include <iterator>

namespace zs {
namespace {

std::int64_t align_up(std::int64_t offset, std::int64_t bytes) {
  const std::int64_t alignment = bytes >= kPageAlignedFrom ? kPageAlignment : kBlockAlignment;
  return (offset + alignment - 1) / alignment * alignment;
}

}  // namespace

Slab::Slab(void* address, std::int64_t bytes) : address_(static_cast<std::byte*>(address)) {
  ZS_CHECK(bytes > 0 && bytes % kBlockAlignment == 0, "a slab of {} bytes", bytes);
  free_[0].bytes = bytes;
}

bool Slab::contains(const void* address) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(address_), at = reinterpret_cast<std::uintptr_t>(address);
  return at >= begin && at - begin < static_cast<std::uintptr_t>(high_water_);
}

void* Slab::take(std::int64_t bytes, Stream& stream) {
  const std::int64_t begin = first_fit(bytes);
  if (begin < 0) return nullptr;
  carve(begin, bytes, stream);
  high_water_ = std::max(high_water_, begin + bytes);
  return address_ + begin;
}

std::int64_t Slab::first_fit(std::int64_t bytes) const {
  std::int64_t begin = 0, end = -1;  // the run of neighbours
  for (const auto& [offset, piece] : free_) {
    if (offset != end) begin = align_up(offset, bytes);
    end = offset + piece.bytes;
    if (end - begin >= bytes) return begin;
  }
  return -1;
}

void Slab::carve(std::int64_t begin, std::int64_t bytes, Stream& stream) {
  const std::int64_t end = begin + bytes;
  for (auto at = std::prev(free_.upper_bound(begin)); at != free_.end() && at->first < end;) {
    const std::int64_t offset = at->first, piece_end = offset + at->second.bytes;
    const Piece piece = std::move(at->second);
    if (piece.last_user != nullptr && piece.last_user != &stream) stream.wait(piece.last_use);
    at = free_.erase(at);
    if (offset < begin) free_[offset] = {begin - offset, piece.last_user, piece.last_use};
    if (piece_end > end) free_[end] = {piece_end - end, piece.last_user, piece.last_use};
  }
}

void Slab::reclaim(void* address, std::int64_t bytes, Stream& last_user, const Event& last_use) {
  const auto offset = static_cast<std::byte*>(address) - address_;
  auto at = free_.insert_or_assign(offset, Piece{bytes, &last_user, last_use}).first;
  if (at != free_.begin()) at = join(std::prev(at), at);
  if (std::next(at) != free_.end()) join(at, std::next(at));
}

/// Makes one piece of two neighbours that were last used up to the same point. Others stay apart: with one event for
/// both, who takes over the older would wait for the newer.
Slab::Pieces::iterator Slab::join(Pieces::iterator left, Pieces::iterator right) {
  Piece &a = left->second, &b = right->second;
  if (left->first + a.bytes != right->first || a.last_user != b.last_user) return right;
  if (a.last_use.is_before(b.last_use) || b.last_use.is_before(a.last_use)) return right;
  a.bytes += b.bytes;
  free_.erase(right);
  return left;
}

}  // namespace zs
