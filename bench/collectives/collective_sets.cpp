#include "bench/collectives/collective_sets.h"

#include <utility>

#include "bench/common/arrays.h"
#include "kernels/kernels.h"
#include "runtime/tensor/host_view.h"

namespace zs::bench {

TakeBytes bytes_from(Allocator& memory) {
  return [&memory](std::int64_t bytes) {
    return std::shared_ptr<void>(memory.allocate(bytes),
                                 [&memory, bytes](void* address) { memory.deallocate(address, bytes); });
  };
}

TakeBytes parts_of(const Memory& room) {
  return [&room, at = std::int64_t{0}](std::int64_t bytes) mutable {
    ZS_CHECK(at + bytes <= room.bytes(), "{} bytes at {} of {}", bytes, at, room.bytes());
    void* const part = static_cast<std::byte*>(room.address()) + std::exchange(at, at + bytes);
    return std::shared_ptr<void>(part, [](void*) {});
  };
}

CollectiveSets::CollectiveSets(Device& device, const TakeBytes& take, const CollectiveCase& one, std::int64_t count) {
  if (count == 0) return;
  const std::int64_t elems = one.bytes / size_of(one.dtype);
  Stream& stream = device.stream(StreamRole::compute);
  std::vector<Buffer> all;
  for (int i = 0; i < buffers_of(one); ++i) {
    memory_.push_back(take(one.bytes * count));
    const Buffer buffer = all.emplace_back(Buffer{memory_.back().get(), elems * count, one.dtype, device.kind()});
    stream.enqueue({"zero", {}, {buffer}}, [buffer](ExecContext& exec) { kernels_of(exec).zero(exec, buffer); });
  }
  stream.synchronize();
  for (std::int64_t i = 0; i < count; ++i) {
    data.push_back(all.front().slice(i * elems, elems));
    out.push_back(all.size() > 1 ? all.back().slice(i * elems, elems) : Buffer{});
  }
}

void put(Device& device, Buffer to, const std::vector<std::byte>& image) {
  ZS_CHECK(std::ssize(image) == to.bytes(), "{} bytes for a buffer of {}", image.size(), to.bytes());
  Stream& stream = device.stream(StreamRole::compute);
  stream.enqueue({"upload", {}, {to}},
                 [to, &image](ExecContext& exec) { kernels_of(exec).upload(exec, to, image.data()); });
  stream.synchronize();
}

std::vector<std::byte> get(Device& device, Buffer from) {
  const Context context(device);
  const HostView view(context, context.stream(), from);
  const auto* const begin = static_cast<const std::byte*>(view.buffer().data);
  return {begin, begin + from.bytes()};
}

}  // namespace zs::bench
