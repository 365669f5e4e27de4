#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "model/weights/weight_files.h"
#include "runtime/tensor/tensor.h"

namespace zs {

/// Samples that are rows of tensors in safetensors files: images and their kinds, say. Sample s belongs to epoch s /
/// size(). With a seed every epoch has all rows once, in an order that follows from seed and epoch alone: sample s is
/// the same row at any number of ranks, and after a restart. Without a seed rows come as they are in the file. Rows are
/// read when they are asked for. One host thread uses it.
class TensorDataset {
 public:
  /// `path`: a file, an index (NAME.json), or a folder that has model.safetensors or its index. Tensors of F32, F16 and
  /// BF16 are read as f32, those of I32 and I64 as i32. Error(model) where the file is damaged, Error(dataset) where a
  /// tensor is not there, has another dtype or no rows, or they have different numbers of rows.
  TensorDataset(const std::string& path, const std::vector<std::string>& names, std::optional<std::uint64_t> seed = {});

  /// Rows: samples of an epoch.
  std::int64_t size() const { return rows_; }
  /// Which row sample `sample` >= 0 is.
  std::int64_t row_of(std::int64_t sample) const;
  /// Samples [first, first + count): for each name, in their order, (count, ...). Error(dataset) where an integer has
  /// no room in i32.
  std::vector<Tensor> read(Context& context, std::int64_t first, std::int64_t count);
  /// This rank's part of the samples of step `step` >= 0, of `batch` on all ranks together, which are dealt out in
  /// equal parts, rank after rank. UsageError where they cannot be.
  std::vector<Tensor> batch(Context& context, const World& world, std::int64_t step, std::int64_t batch);

 private:
  struct Column {
    std::string name;
    FileDType dtype;
    std::vector<std::int64_t> dims;  // of a row
    std::int64_t elems, bytes;       // of a row
    bool is_float() const { return is_parameter_dtype(dtype); }
  };
  Column column_of(const std::string& name) const;
  Tensor read_column(Context& context, const Column& column, std::int64_t first, std::int64_t count);

  WeightFiles files_;
  std::string path_;
  std::optional<std::uint64_t> seed_;
  std::int64_t rows_ = 0;
  std::vector<Column> columns_;
};

}  // namespace zs
