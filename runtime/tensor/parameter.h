#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/buffer.h"
#include "runtime/base/shape.h"
#include "runtime/base/usage_error.h"

namespace zs {

class Context;
class Parameter;
class Tensor;

/// Owner that materialises parameters. The autograd engine calls it around the backward of every op that used one of
/// its parameters, so values are there when backward needs them and the owner knows when its gradients are complete.
class ParameterOwner {
 public:
  /// `context`: where ops use its parameters, and outlives their time with it; null: it is not known which ops do.
  explicit ParameterOwner(Context* context = nullptr) : context_of_ops_(context) {}
  virtual ~ParameterOwner() = default;
  /// Called before the op's backward is enqueued (or, of an op that computes its gradients in forward, these): value
  /// and gradient target must be bound on return.
  virtual void before_backward(Parameter& parameter) = 0;
  /// Called after it is enqueued. `parameter.pending_uses()` has already been lowered.
  virtual void after_backward(Parameter& parameter) = 0;
  /// Somebody asks for its value while none is bound: throws a UsageError that says why there is none.
  [[noreturn]] virtual void refuse_use(const Parameter& parameter) const;
  Context* context_of_ops() const { return context_of_ops_; }

 private:
  Context* context_of_ops_;
};

/// Initial values: normal with this standard deviation; where it is zero, uniform between -uniform_bound and
/// uniform_bound; where that is zero, too, a constant. Instead of all that, a function: of an element's number in the
/// row-major parameter, the same on every rank, which calls it for the elements that it holds. Of parameters, not of
/// buffers.
struct Init {
  float normal_std = 0;
  float constant = 0;
  float uniform_bound = 0;
  std::function<float(std::int64_t element)> function = {};
};

/// Part of a parameter that is partitioned: of `count` equal parts along `dim`, the one at `index`. count 1: all of it.
struct ParameterPart {
  int dim = 0, index = 0, count = 1;
  /// Sizes of the whole's blocks along `dim`, of each of which the part has its equal part: one block's after the
  /// other's. Empty: all of the dim is one block.
  std::vector<std::int64_t> blocks = {};
  bool is_whole() const { return count == 1; }
  /// Shape of the whole, whose part has this one.
  Shape whole_of(const Shape& part) const;
  bool operator==(const ParameterPart&) const = default;
};

/// A tensor that is trained (unless it is frozen), known by its name. Holds no memory: its owner binds a view of the
/// unsharded flat parameter while it is materialised, and a view of the flat gradient buffer during backward. Ops keep
/// a Parameter*, never its buffer.
class Parameter {
 public:
  Parameter(std::string name, Shape shape, Init init, bool has_decay)
      : name_(std::move(name)), shape_(shape), init_(init), has_decay_(has_decay) {}
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  const Shape& shape() const { return shape_; }
  /// Part of the model's parameter that the value is, where ranks own different ones.
  const ParameterPart& part() const { return part_; }
  std::int64_t numel() const { return shape_.numel(); }
  const Init& init() const { return init_; }
  /// Sets the initial values, before a unit has the parameter.
  void set_init(Init init) { init_ = init; }
  /// Rows of the matrices that the parameter is made of, one below the other, each of all columns; rows that are left
  /// are padding. Empty: it is one matrix. An optimizer that takes a matrix as a whole takes each by itself (Muon).
  const std::vector<std::int64_t>& matrix_rows() const { return matrix_rows_; }
  /// Call it before a unit has the parameter. UsageError where it has not two dims, or fewer rows.
  void set_matrix_rows(std::vector<std::int64_t> rows);
  /// Sizes of the blocks along the first dim, of each of which a part that is cut there has its part, such as the
  /// queries', keys' and values' rows of one product. Empty: one block.
  const std::vector<std::int64_t>& blocks() const { return blocks_; }
  /// Call it before a unit has the parameter. UsageError where they do not make up its first dim.
  void set_blocks(std::vector<std::int64_t> blocks);
  /// True if weight decay applies (not to norms and biases).
  bool has_decay() const { return has_decay_; }
  /// True if the parameter gets gradients; a new parameter does. A frozen one is gathered and freed like any other, and
  /// ops leave its gradient out. Change it between micro-batches, alike on every rank.
  bool is_trainable() const { return is_trainable_; }
  void set_trainable(bool is_trainable) { is_trainable_ = is_trainable; }

  /// The unsharded value; an error that names the parameter while it is not materialised.
  Buffer value() const {
    if (value_.data == nullptr) [[unlikely]]
      refuse_use();
    return value_;
  }
  bool is_bound() const { return value_.data != nullptr; }
  void bind(Buffer value) {
    value_ = value;
    value_.number = number_;
  }
  void unbind() { value_ = {}; }

  /// Adds an op's share of the gradient, f32 or bf16, of this parameter's shape; enqueues. Nothing where the parameter
  /// is frozen.
  void add_grad(Context& context, const Tensor& share);

  /// Destination of an op's share of the gradient: the op writes beta * what lies there + the share.
  struct GradTarget {
    Buffer buffer;
    float beta;
  };
  /// Target for a backward that makes its share in place. Zeros lie there, and beta is 0: an op that adds and an op
  /// that writes over them are both right, whatever other ops gave, and in whichever order. Each call is a share of its
  /// own.
  GradTarget grad_target();
  /// Target for an op that goes by beta: the sum itself, with beta 0 on first touch, when nothing that means anything
  /// lies there, then 1. Saves the zeros, and the pass that adds a share.
  GradTarget accumulation_target();
  /// The engine, around an op's backward. The second adds the shares that lie apart; whether the op has given any.
  /// Where it has been called already, as by an op that names a parameter twice, it does nothing.
  void begin_shares(Context& context) {
    op_context_ = &context;
    has_share_ = false;
  }
  bool end_shares();
  /// Leaves out the shares of a backward that threw.
  void drop_shares() {
    op_context_ = nullptr;
    shares_.reset();
  }
  /// Binds the buffer of the sum; empty: none.
  void bind_grad(Buffer grad = {}, bool is_written = false) {
    grad_ = grad;
    grad_is_written_ = is_written;
  }
  bool is_grad_written() const { return grad_is_written_; }
  /// The sum so far, of this parameter's shape; empty where none is bound.
  Buffer grad() const { return grad_; }

  ParameterOwner* owner() const { return owner_; }
  /// Sets the owner, and the part of the parameter that it has on this rank, of which shape and value are from now on;
  /// the part's `dim` may be negative: it counts from the last; its `blocks` are the parameter's own. UsageError where
  /// there are no such parts.
  void set_owner(ParameterOwner* owner, ParameterPart part = {});

  /// Recorded ops that used it and whose backward has not run yet.
  int pending_uses() const { return pending_uses_; }
  void add_use() { ++pending_uses_; }
  void drop_use() { --pending_uses_; }
  void clear_uses() { pending_uses_ = early_gradients_ = 0; }

  /// Ops that wrote their share of its gradient in forward and whose backward has not run yet: until then the gradients
  /// of what came before them are missing.
  int early_gradients() const { return early_gradients_; }
  void add_early_gradient() { ++early_gradients_; }
  void drop_early_gradient() { --early_gradients_; }

 private:
  friend class StorageLog;
  struct Shares;
  [[noreturn]] void refuse_use() const;

  std::string name_;
  Shape shape_;
  ParameterPart part_;
  Init init_;
  std::vector<std::int64_t> matrix_rows_, blocks_;
  bool has_decay_, is_trainable_ = true;
  Buffer value_, grad_;
  bool grad_is_written_ = false;
  Context* op_context_ = nullptr;   // between begin_shares and end_shares
  bool has_share_ = false;          // since begin_shares
  std::shared_ptr<Shares> shares_;  // null: none lie apart
  ParameterOwner* owner_ = nullptr;
  std::uint32_t number_ = 0;  // number in the StorageLog of its owner's context; 0: in none
  int pending_uses_ = 0;
  int early_gradients_ = 0;
};

}  // namespace zs
