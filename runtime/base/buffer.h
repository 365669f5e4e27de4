#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/base/dtype.h"

namespace zs {

enum class DeviceKind : std::uint8_t { cpu, meta, cuda };

constexpr const char* name_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::meta: return "meta";
    case DeviceKind::cuda: return "cuda";
  }
  return "?";
}

/// A non-owning range of device memory with its element type. On the meta device `data` is an address that identifies
/// the range and must never be dereferenced.
struct Buffer {
  void* data = nullptr;
  std::int64_t elems = 0;
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  /// Number, in its context, of the tensor's storage or the parameter that the range is a part of (StorageLog); 0: of
  /// neither.
  std::uint32_t number = 0;

  std::int64_t bytes() const { return elems * size_of(dtype); }
  bool empty() const { return elems == 0; }

  /// Elements [offset, offset + count).
  Buffer slice(std::int64_t offset, std::int64_t count) const {
    if (offset < 0 || count < 0 || offset + count > elems) [[unlikely]]
      refuse_slice(offset, count);
    return {static_cast<std::byte*>(data) + offset * size_of(dtype), count, dtype, device, number};
  }

  /// Typed pointer; the element type must match. Only for code that runs on the buffer's device.
  template <class T>
  T* as() const {
    if (DTypeOf<T>::value != dtype) [[unlikely]]
      refuse_dtype(DTypeOf<T>::value);
    return static_cast<T*>(data);
  }

 private:
  [[noreturn]] void refuse_slice(std::int64_t offset, std::int64_t count) const;
  [[noreturn]] void refuse_dtype(DType as) const;
};

}  // namespace zs
