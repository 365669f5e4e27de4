#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "bench/common/ranks.h"
#include "comm/world.h"
#include "runtime/base/dtype.h"
#include "runtime/device/device.h"

namespace zs::bench {

/// The ceiling that products are compared with: the best rate at which all threads of all ranks together have
/// multiplied matrices of 2048 x 2048 in this process, through the kernel table, with B plain and with B transposed, or
/// through oneDNN with its own threading. Owns a device and memory of its own while it lives. One host thread uses it.
class ProductCeiling {
 public:
  /// Collective.
  ProductCeiling(World& world, const DeviceOptions& options, DType dtype);

  /// Runs every kind of product `rounds` times more and returns the best rate so far in GFLOP/s. The ranks line up
  /// before each product and their rates are added. Collective; blocks the host.
  double measure(int rounds);

 private:
  struct Operands {
    Buffer c, a, b;
  };
  /// Runs on the stream's thread; returns GFLOP/s, or 0 where the product does not exist.
  using Product = std::function<double(ExecContext&, const Operands&)>;

  static Product through_table(bool transpose_b);
  static Product through_library(DType dtype);

  std::unique_ptr<Device> device_;
  Ranks ranks_;
  std::array<Memory, 3> memory_;
  Operands operands_;
  std::vector<Product> products_;
  double best_ = 0;
};

}  // namespace zs::bench
