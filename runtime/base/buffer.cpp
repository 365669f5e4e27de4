#include "runtime/base/buffer.h"

namespace zs {

void Buffer::refuse_slice(std::int64_t offset, std::int64_t count) const {
  throw Error(ExitCode::internal,
              fmt::format("check failed: slice [{}, {}) of a buffer of {} elements", offset, offset + count, elems));
}

void Buffer::refuse_dtype(DType as) const {
  throw Error(ExitCode::internal, fmt::format("check failed: buffer of {} read as {}", name_of(dtype), name_of(as)));
}

}  // namespace zs
