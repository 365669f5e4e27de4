#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "runtime/device/cublas_lt.h"
#include "tests/gpu/emulation/emulated_driver.h"

namespace zs::test {

/// cuBLASLt for tests, on an emulated driver's GPUs: products are computed by the host when the GPU comes to them, in
/// f32. It refuses what the library refuses: matrices that do not go together, an algorithm that was found for
/// something else, a workspace that is too small, addresses less aligned than the algorithm was told, a matrix for
/// GELU's input that is missing, of another type than the result, askew, or whose rows are no multiple of 8. It has one
/// candidate for each product, or more that differ in nothing but time. One at a time, no longer than its driver.
class EmulatedCublas {
 public:
  explicit EmulatedCublas(EmulatedDriver& driver);
  ~EmulatedCublas();
  EmulatedCublas(const EmulatedCublas&) = delete;
  EmulatedCublas& operator=(const EmulatedCublas&) = delete;

  std::shared_ptr<const CublasLt> table() const { return table_; }

  /// From now on no algorithm is found.
  void know_nothing() { knows_nothing_ = true; }
  /// The same for products with GELU, or its gradient, alone.
  void know_no_gelu() { knows_gelu_ = false; }
  /// From now on each product has so many candidates; `ms`: what one takes on a GPU, the first is 0.
  void know_candidates(int count, std::function<double(int gpu, int candidate)> ms) {
    candidates_ = count, ms_ = std::move(ms);
  }
  /// Products that were begun by a candidate on a GPU.
  int products_by(int candidate, int gpu = 0) const { return products_by_[{gpu, candidate}]; }
  /// Products with GELU, and with its gradient, that were begun.
  int gelu_products() const { return gelu_products_; }
  int gelu_gradient_products() const { return gelu_gradient_products_; }
  /// The next call of this function ("cublasLtMatmul") returns `status` and does nothing.
  void fail(const std::string& function, int status) { calls_.fail(function, status); }
  int calls(const std::string& function) const { return calls_.count(function); }
  std::set<std::string> functions_called() const { return calls_.functions(); }
  /// Objects that nobody has given back.
  std::size_t live_handles() const;

 private:
  friend struct EmulatedCublasFunctions;
  /// How long it takes.
  double begin(int candidate) {
    const int gpu = EmulatedDriver::current_gpu();
    ++products_by_[{gpu, candidate}];
    return ms_(gpu, candidate);
  }

  EmulatedDriver& driver_;
  std::shared_ptr<const CublasLt> table_;
  bool knows_nothing_ = false, knows_gelu_ = true;
  int gelu_products_ = 0, gelu_gradient_products_ = 0;
  int candidates_ = 1;
  std::function<double(int gpu, int candidate)> ms_ = [](int, int) { return 0.0; };
  mutable std::map<std::pair<int, int>, int> products_by_;  // GPU and candidate
  FunctionCalls calls_;
  std::map<const void*, std::shared_ptr<void>> objects_;
};

}  // namespace zs::test
