#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "bench/collectives/collective_report.h"
#include "runtime/base/buffer.h"
#include "runtime/device/device.h"

namespace zs::bench {

struct CollectiveCase {
  Collective op;
  std::int64_t bytes;  ///< of a rank's largest buffer
  DType dtype;
};

/// Gives so many bytes that the collectives can work on. What it gives dies before the device.
using TakeBytes = std::function<std::shared_ptr<void>(std::int64_t bytes)>;
TakeBytes bytes_from(Allocator& memory);
/// One after the other of what `room` has.
TakeBytes parts_of(const Memory& room);

/// The buffers of one case, as many times as are together larger than the caches; filled with zeros. One host thread
/// uses them.
class CollectiveSets {
 public:
  /// Blocks the host.
  CollectiveSets(Device& device, const TakeBytes& take, const CollectiveCase& one, std::int64_t count);

  std::vector<Buffer> data, out;  ///< `out` for all_to_all alone, else empty ones

  /// The set for the next call: the one that has not been worked on for the longest, whoever asks.
  std::size_t take_turn() { return std::exchange(next_, (next_ + 1) % data.size()); }

  static std::int64_t bytes_of_one(const CollectiveCase& one) { return one.bytes * buffers_of(one); }
  static int buffers_of(const CollectiveCase& one) { return one.op == Collective::all_to_all ? 2 : 1; }

 private:
  std::vector<std::shared_ptr<void>> memory_;
  std::size_t next_ = 0;
};

/// `to` := `image`, and the bytes of `from`, wherever they are. Both block the host, and are on the compute stream.
void put(Device& device, Buffer to, const std::vector<std::byte>& image);
std::vector<std::byte> get(Device& device, Buffer from);

}  // namespace zs::bench
