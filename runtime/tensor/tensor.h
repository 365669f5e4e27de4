#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/shape.h"
#include "runtime/tensor/context.h"

namespace zs {

class Node;
class Parameter;
class Tensor;

/// Autograd's record of a tensor: the op that produced it, or, for a leaf, that it wants a gradient, and the gradient.
struct AutogradState {
  std::shared_ptr<Node> producer;
  bool is_leaf_with_grad = false;
  std::shared_ptr<Tensor> grad;
};

/// A value handle: dense, row-major elements of one dtype, in storage that views share and that goes back to the
/// device's pool when the last handle dies (in the compute stream's order). A default-constructed tensor is empty: no
/// storage.
class Tensor {
 public:
  Tensor() = default;
  /// Uninitialised elements. `label` names the memory in the plan.
  static Tensor empty(Context& context, Shape shape, DType dtype, const char* label = "activation");
  static Tensor zeros(Context& context, Shape shape, DType dtype, const char* label = "activation");
  /// Copies host values; they are captured now and written in stream order.
  static Tensor from_host(Context& context, Shape shape, std::vector<float> values, DType dtype = DType::f32);
  static Tensor from_host(Context& context, Shape shape, std::vector<std::int32_t> values);

  explicit operator bool() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  std::int64_t numel() const { return shape_.numel(); }
  /// Size of dim `i`; negative counts from the end.
  std::int64_t size(int i) const { return shape_[i]; }
  DType dtype() const { return dtype_; }
  /// "f32 (4, 64)"
  std::string describe() const { return std::string(name_of(dtype_)).append(" ").append(shape_.str()); }
  Context& context() const;
  Buffer buffer() const;

  /// View of these elements under another shape of equal numel; gradients flow through.
  Tensor reshape(Shape shape) const;
  /// One of the sizes may be -1: it is what the others leave.
  Tensor reshape(std::initializer_list<std::int64_t> sizes) const;
  /// Rows [first, first + count) of the outermost dim; shares storage, and gradients flow through.
  Tensor rows(std::int64_t first, std::int64_t count) const;
  /// Handle to these elements that is cut off from the graph.
  Tensor detach() const;

  /// Synchronises the compute stream and copies f32 or bf16 elements to the host. An error on the meta device.
  std::vector<float> to_host() const;

  /// zs::backward(*this, seed).
  void backward(float seed = 1.0f) const;
  bool requires_grad() const { return autograd_ && (autograd_->producer || autograd_->is_leaf_with_grad); }
  /// Makes this a leaf whose gradient `grad()` holds after backward().
  void set_requires_grad();
  Tensor grad() const { return autograd_ && autograd_->grad ? *autograd_->grad : Tensor{}; }
  const std::shared_ptr<AutogradState>& autograd() const { return autograd_; }
  void set_autograd(std::shared_ptr<AutogradState> state) { autograd_ = std::move(state); }
  /// True if no other handle shares the storage, so that it may be overwritten.
  bool is_sole_owner() const { return storage_.use_count() == 1; }
  /// True if both share one storage.
  bool is_same_storage(const Tensor& other) const { return storage_ == other.storage_; }
  /// Calls of the same names of the context's StorageLog, for this storage.
  void note_write() const;
  const Parameter* take_unnamed(std::span<Parameter* const> named) const;

 private:
  std::shared_ptr<TensorStorage> storage_;
  Shape shape_;
  std::int64_t offset_ = 0;
  DType dtype_ = DType::f32;
  std::shared_ptr<AutogradState> autograd_;
};

}  // namespace zs
