#pragma once

#include <string>
#include <vector>

#include "runtime/base/shape.h"
#include "runtime/tensor/tensor.h"

namespace zs {

class Parameter;

/// The ops of a recomputed function that gradients will flow through, taken down when it runs for the first time, in
/// order; when it runs again, they must come again: the same names, shapes and parameters. What else it does, such as a
/// table that is made once and kept, may differ.
class OpTrace {
 public:
  /// A copy of a function's input for its first run, cut off from the graph. What comes from it is known by that where
  /// the input wants a gradient.
  static Tensor cut(const Tensor& input);

  /// In the first run, of every op. UsageError: it takes what wants a gradient and is no input of the function.
  void note(const std::string& name, Tensor& output, const std::vector<Tensor>& inputs,
            const std::vector<Parameter*>& parameters);
  /// The trained and frozen parameters of all ops, each once.
  const std::vector<Parameter*>& parameters() const { return parameters_; }

  /// The second run begins.
  void begin() { next_ = 0; }
  /// In it, of every op. UsageError: gradients flow through it, and it is not the one that comes next.
  void repeat(const std::string& name, const Tensor& output, const std::vector<Tensor>& inputs,
              const std::vector<Parameter*>& parameters);
  /// UsageError: ops are missing.
  void end() const;

 private:
  struct Op {
    std::string name;
    Shape shape;
    std::vector<Parameter*> parameters;
    bool operator==(const Op&) const = default;
    std::string describe() const;
  };
  [[noreturn]] void refuse(const Op* again) const;

  std::vector<Op> ops_;
  std::vector<Parameter*> parameters_;
  std::size_t next_ = 0;
};

}  // namespace zs
