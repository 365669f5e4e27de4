#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/datasets/sampler.h"
#include "model/weights/weight_files.h"
#include "runtime/shard/placement/rank_grid.h"
#include "runtime/tensor/tensor.h"

namespace zs {

/// Samples that are rows of tensors in safetensors files: images and their kinds, say. Which row a sample is follows
/// from a Sampler: it is the same at any number of ranks, and after a restart. Rows are read when they are asked for.
/// One host thread uses it.
class TensorDataset {
 public:
  /// `path`: a file, an index (NAME.json), or a folder that has model.safetensors or its index. Tensors of F32, F16 and
  /// BF16 are read as f32, those of I32 and I64 as i32. Error(model) where the file is damaged, Error(dataset) where a
  /// tensor is not there, has another dtype or no rows, or they have different numbers of rows.
  TensorDataset(const std::string& path, const std::vector<std::string>& names, std::optional<std::uint64_t> seed = {});

  /// Rows: samples of an epoch.
  std::int64_t size() const { return order_->size(); }
  /// Row that sample `sample` >= 0 is.
  std::int64_t row_of(std::int64_t sample) const { return order_->item(sample); }
  /// Samples [first, first + count): for each name, in their order, (count, ...). Error(dataset) where an integer has
  /// no room in i32.
  std::vector<Tensor> read(Context& context, std::int64_t first, std::int64_t count);
  /// samples_of_rank() of this share: that of the world, or ShardedRuntime::data_share().
  std::vector<Tensor> batch(Context& context, DataShare share, std::int64_t step, std::int64_t batch);

 private:
  struct Column {
    std::string name;
    FileDType dtype;
    std::vector<std::int64_t> dims;  // sizes of a row
    std::int64_t elems, bytes;       // elements and bytes of a row
    bool is_float() const { return is_parameter_dtype(dtype); }
  };
  Column column_of(const std::string& name) const;
  Tensor read_column(Context& context, const Column& column, std::int64_t first, std::int64_t count);

  WeightFiles files_;
  std::string path_;
  std::vector<Column> columns_;
  std::optional<Sampler> order_;  // order of the rows
};

}  // namespace zs
