#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/dtype.h"
#include "runtime/base/shape.h"
#include "runtime/tensor/parameter.h"

namespace zs {

/// View of one parameter in a buffer that holds its whole unit, in elements.
struct FlatView {
  std::string name;
  Shape shape;
  std::int64_t offset = 0, numel = 0;
  bool has_decay = true;
  Init init;
  int dim = 0;                                 ///< over which it is sharded, where parameters are sharded one by one
  bool is_whole = false;                       ///< every rank holds all of it between uses too
  std::vector<std::int64_t> matrix_rows = {};  ///< Parameter::matrix_rows(); none of a part
  ParameterPart part = {};                     ///< Parameter::part(), of which `shape` is

  Shape whole_shape() const { return part.whole_of(shape); }
};

/// Elements of one view inside one shard, where they lie one after the other: `count` elements in runs of `run`, which
/// begin `stride` apart in the view. Where there are several, all strides together are the view.
struct ShardSegment {
  std::size_t view;           ///< index into UnitLayout::views()
  std::int64_t shard_offset;  ///< index of the first element, in the shard
  std::int64_t view_offset;   ///< index of the first element, in the view
  std::int64_t count, run, stride;

  /// Index in the view of the segment's element `i`.
  std::int64_t element(std::int64_t i) const { return view_offset + i / run * stride + i % run; }
  std::int64_t runs() const { return count / run; }
  /// Count of its elements before the view's element `bound`.
  std::int64_t count_before(std::int64_t bound) const;
  /// Its elements in [begin, end) of the view, which begin and end with a run where there are several.
  ShardSegment within(std::int64_t begin, std::int64_t end) const;
};

/// Layout of the parameters of one unit: whole, and cut into one shard for each of `ranks` ranks. A *bucket* is what is
/// communicated: shard after shard. A value that does not change; any thread may read it.
///
///     shard   | sharded parameters | a part of each whole parameter | padding
///             shard_elems(); the first gathered_shard_elems() are gathered
///     full    | sharded parameters, whole ones after them | padding
///             full_elems(); views() say where
///     held    | shard | whole parameters
///             held_elems(): what a rank keeps of weights and moments
///
/// Padding is zero, and never seen by optimizer or norm.
class UnitLayout {
 public:
  static constexpr std::int64_t kAlignBytes = 64;

  virtual ~UnitLayout() = default;

  const std::vector<FlatView>& views() const { return views_; }
  int ranks() const { return ranks_; }
  /// Elements of the parameters themselves.
  std::int64_t numel() const { return numel_; }
  std::int64_t shard_elems() const { return shard_elems_; }
  std::int64_t full_elems() const { return shard_elems_ * ranks_; }
  std::int64_t gathered_shard_elems() const { return gathered_shard_elems_; }
  std::int64_t gathered_elems() const { return gathered_shard_elems_ * ranks_; }
  std::int64_t whole_elems() const { return full_elems() - gathered_elems(); }
  std::int64_t held_elems() const { return shard_elems() + whole_elems(); }
  /// Offset of a whole parameter in what a rank holds.
  std::int64_t held_offset(const FlatView& view) const { return shard_elems() + view.offset - gathered_elems(); }

  /// True if the shards one after the other are not the views one after the other, so that copies lie between bucket
  /// and full buffer.
  virtual bool is_interleaved() const = 0;
  /// Segments of the shard of `rank`, ascending: of all ranks together they are every element once.
  virtual std::vector<ShardSegment> segments(int rank) const = 0;
  /// Segments of what the rank holds, whole parameters whole.
  std::vector<ShardSegment> held_segments(int rank) const;
  /// Ranges (offset, count) of the full buffer that belong to no view, in order.
  std::vector<std::pair<std::int64_t, std::int64_t>> padding() const;

 protected:
  explicit UnitLayout(int ranks) : ranks_(ranks) {}
  UnitLayout(const UnitLayout&) = default;
  UnitLayout& operator=(const UnitLayout&) = default;

  static std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  }
  /// View of a parameter, with its offset still to be said.
  static FlatView view_of(const Parameter& parameter);
  struct Range {
    std::int64_t begin, end;
  };
  /// Adds what of the whole parameters, or of the others, lies in a range of the full buffer that begins at
  /// `shard_offset` of a shard.
  void cut(std::vector<ShardSegment>& segments, bool of_whole, const Range& range, std::int64_t shard_offset) const;
  void check_rank(int rank) const;

  std::vector<FlatView> views_;
  int ranks_;
  std::int64_t numel_ = 0, shard_elems_ = 0, gathered_shard_elems_ = 0;
};

enum class Layout : std::uint8_t {
  flat,           ///< a unit's parameters are cut as one
  per_parameter,  ///< each on a dim of its own
};
inline constexpr std::string_view kLayouts = "flat|per_parameter";
const char* name_of(Layout layout);

/// Dim on which a parameter is sharded; negative counts from the last. Alike on every rank.
using ChooseDim = std::function<int(std::string_view name, const Shape& shape)>;

struct LayoutOptions {
  Layout layout = Layout::flat;
  /// Parameters of fewer bytes (of the runtime dtype) stay whole: per_parameter only.
  std::int64_t min_shard_bytes = 0;
  ChooseDim dim = {};  ///< per_parameter only; none: the first dim of each
};

/// Error(config) where an option is given that the layout has no use for.
void check(const LayoutOptions& options);

/// The layout of one unit over `ranks` ranks. `finest` slices, a multiple of `ranks`, must be possible too: what is
/// reduced may be cut finer than shards. Error(config) that names the parameter whose dim it has not.
std::shared_ptr<const UnitLayout> make_layout(const LayoutOptions& options, const std::vector<Parameter*>& parameters,
                                              DType runtime_dtype, int ranks, int finest = 1);

}  // namespace zs
