#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/shape.h"

namespace zs {

/// A tensor of a file, which is `rows` rows of a parameter of the model; 0: all of them.
struct TensorPart {
  std::string tensor;
  std::int64_t rows = 0;
};

/// Rule by which one parameter lies in files: its rows, part after part. A name with "{}" is of every block. What the
/// parts leave of its rows is padding: zero, and in no file.
struct TensorRule {
  std::string parameter;
  std::vector<TensorPart> parts;
  bool is_transposed = false;  ///< a file has (columns, rows)
  /// The rows are those of so many matrices, one below the other, and a file has them as its first dim: (matrices, rows
  /// / matrices, ...), or, transposed, (matrices, ..., rows / matrices). 0: they are of one, which has no such dim.
  std::int64_t matrices = 0;
  /// A matrix's rows are so many runs of equal length, and a file has their first rows, then their second ones.
  std::int64_t interleaved = 1;
  /// True if a file has the same element of all matrices side by side: (rows / matrices, columns x matrices).
  bool are_side_by_side = false;
};

/// Shape that files have of `rows` rows of a parameter.
std::vector<std::int64_t> shape_in_file(const TensorRule& rule, const Shape& parameter, std::int64_t rows);

/// Map of a model's parameters to the files of its family, for reading and writing. Names are those that are written.
struct TensorMap {
  std::vector<TensorRule> rules = {};
  std::string prefix = {};                    ///< files may leave it out: "transformer."
  std::vector<std::string> passed_over = {};  ///< tensors of files that are no parameters; with "{}" as in rules
  /// For a model whose head is the token embedding: the head's name, under which a file may have it.
  std::string tied_head = {};
  std::string token_embedding = {};  ///< the embedding's
};

/// A parameter of the model.
struct ParameterShape {
  std::string name;
  Shape shape;
};

/// A rectangle of a parameter: of its first dim, and of what all others are together.
struct Block {
  std::int64_t row = 0, rows = 0, column = 0, columns = 0;
};

/// `count` elements in runs of `run`, the first at `begin` and each `stride` after the one before, of a parameter with
/// so many columns: as blocks, in the same order.
std::vector<Block> blocks_of(std::int64_t begin, std::int64_t count, std::int64_t run, std::int64_t stride,
                             std::int64_t columns);

inline std::int64_t rows_of(const Shape& shape) { return shape.rank() == 0 ? 1 : shape[0]; }
inline std::int64_t columns_of(const Shape& shape) { return rows_of(shape) == 0 ? 0 : shape.numel() / rows_of(shape); }

/// A map for a model of so many blocks: every name is written out.
TensorMap expanded(const TensorMap& map, std::int64_t layers);

/// "model.layers.3.a" for "model.layers.{}.a".
std::string of_layer(const std::string& name, std::int64_t layer);

/// Text of the number of `problems`, and the first five. Of those that follow each other and begin with the same word,
/// only the first says it: "2 tensors: missing a, b".
std::string first_five(const std::vector<std::string>& problems);

}  // namespace zs
