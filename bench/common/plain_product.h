#pragma once

#include <cstdint>
#include <memory>

#include "runtime/base/buffer.h"

namespace zs::bench {

/// A square product C := A times B transposed by oneDNN's matmul primitive alone, its own threading included: half of
/// what the product ceiling is measured with. Made, used and destroyed on one thread.
class PlainProduct {
 public:
  /// A, B and C are row-major (size, size) of `dtype`.
  PlainProduct(DType dtype, std::int64_t size, int threads);
  ~PlainProduct();
  /// False where this oneDNN has no such product on this processor.
  bool exists() const { return parts_ != nullptr; }
  void run(const Buffer& c, const Buffer& a, const Buffer& b);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  int threads_;
};

}  // namespace zs::bench
