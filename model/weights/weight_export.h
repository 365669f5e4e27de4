#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/weights/file_dtype.h"
#include "model/weights/tensor_map.h"
#include "runtime/base/file.h"

namespace zs {

/// Source of a model's f32 weights. One thread uses it.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  ParameterSource() = default;
  ParameterSource(const ParameterSource&) = delete;
  ParameterSource& operator=(const ParameterSource&) = delete;

  virtual const std::vector<ParameterShape>& parameters() const = 0;
  /// Elements [first, first + count) of a parameter.
  virtual void read(const std::string& parameter, std::int64_t first, std::int64_t count, float* out) = 0;
};

/// A tensor that is written: some rows of a parameter.
struct ExportedTensor {
  std::string name, parameter;
  Shape shape;  ///< as it is written
  std::int64_t row = 0, rows = 0, columns = 0;
  bool is_transposed = false;
  bool are_side_by_side = false;
  std::int64_t matrices = 1, interleaved = 1;  ///< division of the rows: see TensorRule

  std::int64_t elems() const { return rows * columns; }
  /// Row of a matrix that is written as the `place`-th.
  std::int64_t row_at(std::int64_t place) const {
    return place % interleaved * (rows / matrices / interleaved) + place / interleaved;
  }
};

/// Tensors that a map makes of these parameters, by name. Every parameter must have its rule, and every rule its
/// parameter: Error(model).
std::vector<ExportedTensor> exported_tensors(const TensorMap& map, const std::vector<ParameterShape>& parameters);

/// Hands a tensor's f32 values to `use(values, count)`, piece after piece in the order in which they are written; of
/// one that is transposed, or has rows elsewhere, a whole matrix is read first.
template <class Use>
void for_each_piece(ParameterSource& source, const ExportedTensor& tensor, std::int64_t piece_elems, const Use& use);

struct ExportOptions {
  FileDType dtype = FileDType::f32;
  std::int64_t shard_bytes = std::int64_t{5}
                             << 30;  ///< a file is begun before it has more, but for a tensor that alone has
};

/// Writes model.safetensors, or files of about shard_bytes and their index, into a folder that exists. Error(io),
/// Error(cannot_create).
void export_safetensors(ParameterSource& source, const TensorMap& map, const std::string& folder,
                        const ExportOptions& options);

/// Exports as one f32 file of this name, otherwise as above. Error(io), Error(cannot_create).
void export_file(ParameterSource& source, const TensorMap& map, const std::string& path);

/// Error(model) where a number of `tensor` would become infinite as `dtype`.
void check_overflow(FileDType dtype, const float* values, std::int64_t count, const std::string& tensor);

/// Copies into the folder `to`, as far as they are there, generation_config.json of a model's folder, and a tokenizer's
/// files; `tokenizer`: its folder, or one of its files. A line for each that does not belong there (file_of_model()).
std::vector<std::string> copy_companions(const std::string& model, const std::string& tokenizer, const std::string& to);

/// Name of the file by which a folder that is being written is known; locked by who writes. A kill may leave it in a
/// folder that has its name, of which it is no part.
inline constexpr const char* kWritingMark = ".zshard-writing";

/// A folder that appears whole or not at all: written beside its place, and renamed by commit(). What a killed process
/// has left is removed by the next one that writes there. Error(cannot_create) where the place is taken by more than an
/// empty folder, unless that may go.
class OutputFolder {
 public:
  /// Test whether what is at the place may go, asked before the work and again behind it.
  using MayReplace = std::function<bool(const std::string& path)>;
  explicit OutputFolder(std::string path, MayReplace may_replace = {});
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& writing() const { return temporary_; }
  /// `before`: is called when all is on the disk but the name.
  void commit(const std::function<void()>& before = {});

 private:
  void check_place() const;
  void make_temporary();

  std::string path_, temporary_;
  MayReplace may_replace_;
  File mark_;  // says with its lock that the folder is being written
};

/// for_each_piece of matrices whose places are beside each other: line after line, and all is read first.
template <class Use>
void use_side_by_side(ParameterSource& source, const ExportedTensor& tensor, const Use& use) {
  const std::int64_t rows = tensor.rows / tensor.matrices, length = tensor.columns * tensor.matrices;
  std::vector<float> values(static_cast<std::size_t>(tensor.elems())), line(static_cast<std::size_t>(length));
  source.read(tensor.parameter, tensor.row * tensor.columns, tensor.elems(), values.data());
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t at = 0; at < length; ++at) {
      const std::int64_t row = at % tensor.matrices * rows + tensor.row_at(i), column = at / tensor.matrices;
      line[static_cast<std::size_t>(at)] = values[static_cast<std::size_t>(row * tensor.columns + column)];
    }
    use(line.data(), length);
  }
}

template <class Use>
void for_each_piece(ParameterSource& source, const ExportedTensor& tensor, std::int64_t piece_elems, const Use& use) {
  const std::int64_t first = tensor.row * tensor.columns, count = tensor.elems();
  if (!tensor.is_transposed && tensor.interleaved == 1 && !tensor.are_side_by_side) {
    std::vector<float> values(static_cast<std::size_t>(std::min(count, piece_elems)));
    for (std::int64_t done = 0; done < count; done += piece_elems) {
      const std::int64_t piece = std::min(piece_elems, count - done);
      source.read(tensor.parameter, first + done, piece, values.data());
      use(values.data(), piece);
    }
    return;
  }
  if (tensor.are_side_by_side) return use_side_by_side(source, tensor, use);
  const std::int64_t rows = tensor.rows / tensor.matrices, all_columns = tensor.columns;
  const std::int64_t lines = tensor.is_transposed ? all_columns : rows,  // lines of the file, and their lengths
      length = tensor.is_transposed ? rows : all_columns, at_once = std::max<std::int64_t>(1, piece_elems / length);
  std::vector<float> values(static_cast<std::size_t>(rows * all_columns)),
      turned(static_cast<std::size_t>(std::min(at_once, lines) * length));
  for (std::int64_t matrix = 0; matrix < tensor.matrices; ++matrix) {
    source.read(tensor.parameter, first + matrix * rows * all_columns, rows * all_columns, values.data());
    for (std::int64_t line = 0; line < lines; line += at_once) {
      const std::int64_t some = std::min(at_once, lines - line);
      for (std::int64_t j = 0; j < length; ++j)
        for (std::int64_t i = 0; i < some; ++i) {
          const std::int64_t row = tensor.row_at(tensor.is_transposed ? j : line + i),
                             column = tensor.is_transposed ? line + i : j;
          turned[static_cast<std::size_t>(i * length + j)] =
              values[static_cast<std::size_t>(row * all_columns + column)];
        }
      use(turned.data(), some * length);
    }
  }
}

}  // namespace zs
