#include "runtime/device/allocator.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "runtime/base/random.h"
#include "runtime/base/standard_streams.h"
#include "runtime/device/trace.h"

namespace zs {
namespace {

/// Stands for every block of zero bytes: valid, aligned, and never dereferenced.
alignas(64) constexpr std::byte kEmptyBlock[64] = {};

constexpr unsigned char kPoison = 0xff;

std::uint64_t hash_of(const Buffer& block) {
  return mix64(reinterpret_cast<std::uintptr_t>(block.data) ^ mix64(static_cast<std::uint64_t>(block.bytes())));
}

}  // namespace

void MemoryCounter::add(const std::string& label, std::int64_t bytes) {
  live_ += bytes;
  by_label_[label] += bytes;
  marked_peak_ = std::max(marked_peak_, live_);
  if (live_ <= peak_) return;
  peak_ = live_;
  at_peak_ = by_label_;
}

void MemoryCounter::remove(const std::string& label, std::int64_t bytes) {
  const auto entry = by_label_.find(label);
  ZS_CHECK(entry != by_label_.end() && entry->second >= bytes, "{} bytes of '{}' given back, {} are live", bytes, label,
           entry == by_label_.end() ? 0 : entry->second);
  live_ -= bytes;
  entry->second -= bytes;
  if (entry->second == 0) by_label_.erase(entry);
}

void MemoryCounter::acquired(const std::string& label, const Buffer& block, const Stream& stream) {
  add(label, block.bytes());
  layout_ ^= hash_of(block);
  if (trace_ == nullptr || !trace_->is_recording()) return;
  trace_->add({TraceEntry::Kind::acquire, stream.role(), {label, {}, {block}}, -1, owner_, live_});
}

void MemoryCounter::released(const std::string& label, const Buffer& block, const Stream& stream,
                             const Event& last_use) {
  remove(label, block.bytes());
  layout_ ^= hash_of(block);
  if (trace_ == nullptr || !trace_->is_recording()) return;
  trace_->add({TraceEntry::Kind::release, stream.role(), {label, {}, {block}}, last_use.id(), {}, live_});
}

void MemoryCounter::allocated(std::int64_t bytes) {
  reserved_ += bytes;
  if (bytes > 0) ++allocation_calls_;
}

void MemoryCounter::adopted(std::int64_t bytes) {
  reserved_ += bytes;
  adopted_ += bytes;
}

void MemoryCounter::reset_peak() {
  peak_ = live_;
  at_peak_ = by_label_;
}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this == &other) return *this;
  reset();
  pool_ = std::exchange(other.pool_, nullptr);
  address_ = std::exchange(other.address_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  block_bytes_ = std::exchange(other.block_bytes_, 0);
  stream_ = std::exchange(other.stream_, nullptr);
  is_adopted_ = std::exchange(other.is_adopted_, false);
  label_ = std::move(other.label_);
  return *this;
}

Buffer Memory::buffer(DType dtype, std::int64_t elems) const {
  ZS_CHECK(address_ != nullptr, "a buffer of memory that was released");
  ZS_CHECK(elems >= 0 && elems * size_of(dtype) <= bytes_, "a buffer of {} x {} in {} bytes", elems, name_of(dtype),
           bytes_);
  return {address_, elems, dtype, pool_->device()};
}

void Memory::release(Stream& last_user) {
  Event last_use;
  if (pool_ != nullptr && !pool_->poison_) last_user.record(last_use);
  release(last_user, last_use);
}

void Memory::release(Stream& last_user, const Event& last_use) {
  if (Pool* const pool = std::exchange(pool_, nullptr)) pool->reclaim(*this, last_user, last_use);
  address_ = nullptr;
  bytes_ = block_bytes_ = 0;
}

void Memory::reset() noexcept {
  if (pool_ == nullptr) return;
  try {
    release(*stream_);
  } catch (const std::exception& e) {
    // The block stays reserved until the pool dies; nothing else is lost.
    print_to_stderr("zshard: a block of '{}' could not be given back: {}\n", label_, e.what());
  }
}

Pool::Pool(Allocator& allocator, MemoryCounter& counter, bool poison, std::int64_t slab_bytes)
    : allocator_(allocator), counter_(counter), poison_(poison), slab_grows_(slab_bytes == kGrowingSlab) {
  if (slab_grows_) {
    constexpr std::int64_t kMore = std::int64_t{1} << 43;  // than any run needs; half of a meta allocator's range
    ZS_CHECK(device() == DeviceKind::meta, "a growing slab on device {}", name_of(device()));
    slab_.emplace(allocator_.allocate(kMore), kMore);
  } else if (slab_bytes > 0) {
    slab_.emplace(allocate(rounded(slab_bytes)), rounded(slab_bytes));
  }
}

Pool::~Pool() {
  for (const auto& [address, bytes] : blocks_) allocator_.deallocate(address, bytes);
  counter_.allocated(-reserved_);
}

Memory Pool::acquire(std::int64_t bytes, Stream& stream, std::string label) {
  ZS_CHECK(bytes >= 0, "acquire of {} bytes for '{}'", bytes, label);
  Memory memory;
  memory.bytes_ = bytes;
  memory.block_bytes_ = rounded(bytes);
  memory.stream_ = &stream;
  memory.label_ = std::move(label);
  if (bytes == 0) {
    memory.address_ = const_cast<std::byte*>(kEmptyBlock);
  } else {
    memory.address_ = take_from_slab(memory.block_bytes_, stream);
    if (memory.address_ == nullptr) {
      const FreeBlock block = take_block(memory.block_bytes_);
      if (block.last_user != nullptr && block.last_user != &stream) stream.wait(block.last_use);
      memory.address_ = block.address;
    }
    counter_.acquired(memory.label_, block_buffer(memory), stream);
  }
  memory.pool_ = this;
  return memory;
}

Memory Pool::adopt(void* address, std::int64_t bytes, Stream& stream, std::string label) {
  Memory memory;
  memory.address_ = address;
  memory.bytes_ = bytes;
  memory.block_bytes_ = rounded(bytes);
  memory.stream_ = &stream;
  memory.is_adopted_ = true;
  memory.label_ = std::move(label);
  memory.pool_ = this;
  counter_.adopted(memory.block_bytes_);
  counter_.acquired(memory.label_, block_buffer(memory), stream);
  return memory;
}

Pool::FreeBlock Pool::take_block(std::int64_t block_bytes) {
  if (auto& blocks = free_[block_bytes]; !blocks.empty()) {
    FreeBlock block = std::move(blocks.back());
    blocks.pop_back();
    return block;
  }
  return {allocate(block_bytes), nullptr, {}};
}

void* Pool::take_from_slab(std::int64_t block_bytes, Stream& stream) {
  if (!slab_) return nullptr;
  const std::int64_t before = slab_->high_water_bytes();
  void* const address = slab_->take(block_bytes, stream);
  if (slab_grows_ && slab_->high_water_bytes() > before) count_allocation(slab_->high_water_bytes() - before);
  return address;
}

void* Pool::allocate(std::int64_t bytes) {
  blocks_.reserve(blocks_.size() + 1);
  void* const address = allocator_.allocate(bytes);
  blocks_.emplace_back(address, bytes);
  count_allocation(bytes);
  if (poison_ && device() == DeviceKind::cpu) std::memset(address, kPoison, static_cast<std::size_t>(bytes));
  return address;
}

void Pool::count_allocation(std::int64_t bytes) {
  reserved_ += bytes;
  ++allocation_calls_;
  counter_.allocated(bytes);
}

void Pool::reclaim(Memory& memory, Stream& last_user, Event last_use) {
  if (memory.block_bytes_ == 0) return;
  const Buffer block = block_buffer(memory);
  if (poison_ && !memory.is_adopted_) {
    last_user.enqueue({"poison", {}, {block}}, [block](ExecContext&) {
      std::memset(block.data, kPoison, static_cast<std::size_t>(block.bytes()));
    });
  }
  if (poison_) last_user.record(last_use);
  counter_.released(memory.label_, block, last_user, last_use);
  if (memory.is_adopted_) return counter_.adopted(-memory.block_bytes_);
  if (slab_ && slab_->contains(memory.address_))
    return slab_->reclaim(memory.address_, memory.block_bytes_, last_user, last_use);
  free_[memory.block_bytes_].push_back({memory.address_, &last_user, std::move(last_use)});
}

}  // namespace zs
