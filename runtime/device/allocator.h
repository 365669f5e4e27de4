#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/buffer.h"
#include "runtime/device/slab.h"
#include "runtime/device/stream.h"

namespace zs {

/// Raw device memory. Addresses are aligned to at least 64 bytes. Thread-safe. Throws Error(out_of_memory) that names
/// the size asked for.
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual DeviceKind device() const = 0;
  virtual void* allocate(std::int64_t bytes) = 0;
  virtual void deallocate(void* address, std::int64_t bytes) noexcept = 0;
};

/// Memory of this host: zero-cost until touched, page-aligned from 1 MiB, huge pages asked for from 4 MiB. Not
/// initialised.
std::unique_ptr<Allocator> make_cpu_allocator();
/// Addresses that nothing backs, never handed out twice. Allocators whose addresses meet in one trace need different
/// `range`s (0 is the device's own); a range is 16 TiB wide.
std::unique_ptr<Allocator> make_meta_allocator(int range = 0);

class Trace;

/// Counts live bytes by label ("activation", "full_param", "master" ...), and what the pools have taken from their
/// allocators for them. Owned by a Device, used by its host thread only.
class MemoryCounter {
 public:
  /// `trace`: where acquisitions and releases are noted while it records; may be null.
  explicit MemoryCounter(Trace* trace = nullptr) : trace_(trace) {}

  void add(const std::string& label, std::int64_t bytes);
  void remove(const std::string& label, std::int64_t bytes);
  /// Count a block of a pool that is acquired for `stream`, or released by it as of `last_use`; the trace notes both
  /// while it records.
  void acquired(const std::string& label, const Buffer& block, const Stream& stream);
  void released(const std::string& label, const Buffer& block, const Stream& stream, const Event& last_use);
  /// A pool's allocation (bytes > 0) or deallocation (bytes < 0).
  void allocated(std::int64_t bytes);
  /// Counts memory that a pool has adopted from another owner (bytes > 0), or no longer holds (bytes < 0).
  void adopted(std::int64_t bytes);

  /// Sets the owner of memory that is acquired from now on: a unit's name, or nothing. Only noted in the trace. Returns
  /// the previous owner.
  std::string set_owner(std::string owner) { return std::exchange(owner_, std::move(owner)); }

  std::int64_t live_bytes() const { return live_; }
  std::int64_t peak_bytes() const { return peak_; }
  /// Live bytes of each label at the moment of the peak.
  const std::map<std::string, std::int64_t>& at_peak() const { return at_peak_; }
  const std::map<std::string, std::int64_t>& live_by_label() const { return by_label_; }
  /// Starts a new peak from what is live now.
  void reset_peak();
  /// The most that was live since mark(), whatever reset_peak() does meanwhile.
  std::int64_t peak_since_mark() const { return marked_peak_; }
  void mark() { marked_peak_ = live_; }
  /// A hash of which blocks of pools are live, and where.
  std::uint64_t layout() const { return layout_; }
  /// Bytes taken from the allocators and not given back, in use or cached: what the process really holds for the
  /// counted bytes.
  std::int64_t reserved_bytes() const { return reserved_; }
  /// Part of reserved_bytes that another owner has allocated: this rank's part of memory that ranks share.
  std::int64_t adopted_bytes() const { return adopted_; }
  /// Number of times that a pool had to ask its allocator.
  std::int64_t allocation_calls() const { return allocation_calls_; }

 private:
  Trace* trace_;
  std::string owner_;
  std::int64_t live_ = 0, peak_ = 0, marked_peak_ = 0, reserved_ = 0, adopted_ = 0, allocation_calls_ = 0;
  std::uint64_t layout_ = 0;
  std::map<std::string, std::int64_t> by_label_, at_peak_;
};

/// Scope in which memory that is acquired belongs to `owner` (MemoryCounter::set_owner).
class MemoryOwner {
 public:
  MemoryOwner(MemoryCounter& counter, std::string owner)
      : counter_(counter), previous_(counter.set_owner(std::move(owner))) {}
  ~MemoryOwner() { counter_.set_owner(std::move(previous_)); }
  MemoryOwner(const MemoryOwner&) = delete;
  MemoryOwner& operator=(const MemoryOwner&) = delete;

 private:
  MemoryCounter& counter_;
  std::string previous_;
};

class Pool;

/// Owns one block of a Pool; returning it is ordered by the stream that used it last (see Pool). Movable. Host thread
/// only; must die before its pool and the streams that used it.
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept;
  ~Memory() { reset(); }

  explicit operator bool() const { return address_ != nullptr; }
  void* address() const { return address_; }
  std::int64_t bytes() const { return bytes_; }
  Buffer buffer(DType dtype, std::int64_t elems) const;

  /// Gives the block back; its last use is everything enqueued so far on `last_user` (default: the stream it was
  /// acquired for). The next stream that acquires the block waits for exactly that point.
  void release(Stream& last_user);
  /// Releases as above, with an event of `last_user` that marks the last use more exactly than now would.
  void release(Stream& last_user, const Event& last_use);
  void reset() noexcept;

 private:
  friend class Pool;
  Pool* pool_ = nullptr;
  void* address_ = nullptr;
  std::int64_t bytes_ = 0, block_bytes_ = 0;
  Stream* stream_ = nullptr;
  bool is_adopted_ = false;
  std::string label_;
};

/// A stream-ordered caching pool over an Allocator. Blocks go out and come back in the host's program order, which
/// makes the counted peak deterministic and equal on the meta device; a block acquired for a stream other than the one
/// that used it last makes the acquiring stream wait for that last use, on the device. One host thread uses it. Sizes
/// are rounded up to whole 64 bytes, and counted so; blocks outside a slab are reused by exact rounded size; nothing
/// goes back to the allocator before the pool dies, which must not be before the streams have finished with its blocks.
class Pool {
 public:
  static constexpr std::int64_t kGrowingSlab = -1;

  /// `poison`: fill a block with 0xff bytes (NaN in every floating-point type) when it is new, and by an op on its last
  /// user when it is released (DeviceOptions::perturb_seed). Counts and addresses stay the same.
  /// `slab_bytes`: taken from the allocator at once; blocks come out of it as long as they fit (0: no slab;
  /// kGrowingSlab: they always do, on the meta device only).
  Pool(Allocator& allocator, MemoryCounter& counter, bool poison = false, std::int64_t slab_bytes = 0);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// `bytes` >= 0; zero bytes give an empty (but valid, non-null) block.
  Memory acquire(std::int64_t bytes, Stream& stream, std::string label);
  /// Takes in memory that another owner has allocated, and keeps until it was released and the streams have finished
  /// with it: counted like a block, but never handed out again or poisoned.
  Memory adopt(void* address, std::int64_t bytes, Stream& stream, std::string label);
  /// Size that `bytes` are counted as: the next multiple of 64.
  static std::int64_t rounded(std::int64_t bytes) {
    return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  }
  /// Bytes taken from the allocator so far, in use or cached.
  std::int64_t reserved_bytes() const { return reserved_; }
  std::int64_t allocation_calls() const { return allocation_calls_; }
  /// (address, bytes) of all that was taken so far.
  const std::vector<std::pair<void*, std::int64_t>>& allocations() const { return blocks_; }
  MemoryCounter& counter() { return counter_; }
  DeviceKind device() const { return allocator_.device(); }

 private:
  friend class Memory;
  struct FreeBlock {
    void* address;
    Stream* last_user;
    Event last_use;
  };
  FreeBlock take_block(std::int64_t block_bytes);
  void* take_from_slab(std::int64_t block_bytes, Stream& stream);
  void* allocate(std::int64_t bytes);
  void count_allocation(std::int64_t bytes);
  Buffer block_buffer(const Memory& memory) const {
    return {memory.address_, memory.block_bytes_, DType::u8, device()};
  }
  void reclaim(Memory& memory, Stream& last_user, Event last_use);

  Allocator& allocator_;
  MemoryCounter& counter_;
  bool poison_, slab_grows_;
  std::optional<Slab> slab_;
  std::map<std::int64_t, std::vector<FreeBlock>> free_;  // by block size; last in, first out
  std::vector<std::pair<void*, std::int64_t>> blocks_;
  std::int64_t reserved_ = 0, allocation_calls_ = 0;
};

}  // namespace zs
