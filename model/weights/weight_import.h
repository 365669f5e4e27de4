#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/weights/quantized_tensor.h"
#include "model/weights/tensor_map.h"
#include "model/weights/weight_files.h"

namespace zs {

/// The files of a model, as the parameters that they hold. Each rank reads the byte ranges of what it keeps, a bounded
/// number of them at a time. One thread uses it. Throws Error(model).
class WeightImport {
 public:
  /// Every parameter must be in the files with its shape, in f32, f16 or bf16, or as a QuantizedTensor, and nothing
  /// else: one line names the first five of what is otherwise, and says that they are not the `what`.
  WeightImport(const std::string& path, const TensorMap& map, const std::vector<ParameterShape>& parameters,
               const std::string& what = "weights of this model");

  /// Warnings about the files' index (WeightFiles).
  const std::vector<std::string>& warnings() const { return files_.warnings(); }
  /// True if the files have this parameter.
  bool has(const std::string& parameter) const { return places_.contains(parameter); }

  /// A block of a parameter, row after row, as f32. Of a tied head that the files have beside the embedding, the values
  /// must be the embedding's: Error(model).
  void read(const std::string& parameter, const Block& block, float* out);

 private:
  struct Part {
    std::string tensor;  // as the file names it
    FileDType dtype;
    std::int64_t row, rows;  // rows of the parameter
    bool is_transposed = false;
    std::shared_ptr<const QuantizedTensor> quantized = {};  // format that it is saved in, if not as numbers
  };
  struct Place {
    std::vector<Part> parts;
    std::optional<Part> twin;  // has the values of the first part once more
    std::int64_t columns = 0;
    bool are_side_by_side = false;
    std::int64_t matrices = 1, interleaved = 1;  // division of each part's rows: see TensorRule
  };
  /// Rows of a part that files have `step` lines apart.
  struct Lines {
    std::int64_t matrix;             // first element of their matrix
    std::int64_t first, step, rows;  // line of the first one; how many
    std::int64_t length;             // lines of the matrix
  };

  void match(const TensorMap& map, const std::vector<ParameterShape>& parameters, const std::string& what);
  /// The tied head, where the files have it beside the embedding, in whose place it is.
  void match_twin(const TensorMap& map, Place& place, std::vector<std::string>& problems) const;
  void check_twin(const Place& place, const Block& block, const float* values);
  /// The name under which the files have a tensor; empty: they have not.
  std::string name_in_files(const std::string& name, const TensorMap& map) const;
  void read_part(const Place& place, const Part& part, const Block& block, float* out);
  void read_rows(const Part& part, const Lines& lines, std::int64_t columns, const Block& block, float* out);
  void read_transposed(const Part& part, const Lines& lines, const Block& block, float* out);
  /// All of the file's tensor is read at once.
  void read_side_by_side(const Place& place, const Part& part, const Block& block, float* out);
  void read_values(const Part& part, std::int64_t first, float* out, std::int64_t count);

  WeightFiles files_;
  std::map<std::string, Place> places_;
  std::vector<float> lines_;  // lines of a tensor whose rows are elsewhere, on their way
  std::vector<char> stored_;  // values on their way to f32
};

}  // namespace zs
