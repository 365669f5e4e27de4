#include "runtime/shard/placement/per_parameter_layout.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>

#include "runtime/device/device.h"
#include "runtime/shard/execute/bucket_copy.h"
#include "tests/shard/parameters.h"

namespace zs::test::per_parameter_layout_test {
namespace {

using Catch::Contains;

const std::vector<std::vector<Shape>>& units() {
  static const std::vector<std::vector<Shape>> units = {
      {{5, 7}, {7}, {1}, {33, 3}, {16}, {64, 2}},  // nothing, and everything, divides
      {{3, 5, 4}, {2, 9, 1}, {6, 1, 7}},
      {{1}},                  // fewer rows than ranks
      {{2, 2}, {0, 4}, {3}},  // an empty parameter in the middle
      {Shape{}, {4}},         // a scalar
      {},
  };
  return units;
}

/// First dims, last dims, and one after the other.
enum class Dims : std::uint8_t { first, last, mixed };

LayoutOptions options_of(Dims dims, std::int64_t min_shard_bytes = 0) {
  LayoutOptions options{.layout = Layout::per_parameter, .min_shard_bytes = min_shard_bytes};
  if (dims == Dims::last) options.dim = [](std::string_view, const Shape&) { return -1; };
  if (dims == Dims::mixed)
    options.dim = [](std::string_view name, const Shape& shape) {
      return (name.back() - '0') % std::max(1, shape.rank());
    };
  return options;
}

std::vector<float> numbered(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

Buffer buffer_of(std::vector<float>& values) {
  return {values.data(), std::ssize(values), DType::f32, DeviceKind::cpu};
}

/// On which rank row `row` of a dim of `rows` belongs, said otherwise than the layout says it: whole rounds of
/// ceil(rows / ranks).
int rank_of_row(std::int64_t row, std::int64_t rows, int ranks) {
  int rank = 0;
  for (std::int64_t left = (rows + ranks - 1) / ranks; row >= left; left += (rows + ranks - 1) / ranks) ++rank;
  return rank;
}

/// The index of element `i` on `dim`.
std::int64_t index_on(const Shape& shape, int dim, std::int64_t i) {
  for (int d = shape.rank() - 1; d > dim; --d) i /= shape[d];
  return shape.rank() == 0 ? 0 : i % shape[dim];
}

}  // namespace

TEST_CASE(
    "1-3, 2B-2: each element is on the rank that has its row of the chosen dim, once, in the order of the parameter") {
  const Dims dims = GENERATE(Dims::first, Dims::last, Dims::mixed);
  const int ranks = GENERATE(2, 3, 4, 8);
  for (const auto& shapes : units()) {
    const Parameters parameters(shapes);
    const auto layout = make_layout(options_of(dims), parameters.pointers(), DType::f32, ranks);
    std::vector<std::vector<int>> covered;
    for (const FlatView& view : layout->views()) covered.emplace_back(static_cast<std::size_t>(view.numel), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const ShardSegment& segment : layout->segments(rank)) {
        const FlatView& view = layout->views()[segment.view];
        for (std::int64_t i = 0; i < segment.count; ++i) {
          const std::int64_t element = segment.element(i);
          ++covered[segment.view].at(static_cast<std::size_t>(element));
          const Shape& shape = view.shape;
          CHECK(rank_of_row(index_on(shape, view.dim, element), shape.rank() == 0 ? 1 : shape[view.dim], ranks) ==
                rank);
          if (i > 0) CHECK(element > segment.element(i - 1));
        }
      }
    }
    for (const auto& counts : covered)
      CHECK(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }));
  }
}

TEST_CASE("1-5: of sizes that do not divide, later ranks have fewer rows or none, on any dim") {
  const Parameters parameters({{9, 2}, {2, 7}, {2}});
  LayoutOptions options = options_of(Dims::mixed);  // dims 0, 1, 0
  const auto layout = make_layout(options, parameters.pointers(), DType::f32, 4);
  const std::vector<std::vector<std::int64_t>> counts = {{6, 4, 1}, {6, 4, 1}, {6, 4, 0}, {0, 2, 0}};
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<std::int64_t> found(3, 0);
    for (const ShardSegment& segment : layout->segments(rank)) found[segment.view] += segment.count;
    CHECK(found == counts[static_cast<std::size_t>(rank)]);
  }
  const auto segments = layout->segments(1);
  CHECK(segments.at(1).runs() == 2);
  CHECK(segments.at(1).run == 2);
  CHECK(segments.at(1).stride == 7);
  CHECK(segments.at(1).view_offset == 2);
}

TEST_CASE("shards are equal, aligned and as long as the largest of each parameter, and can be cut as fine as asked") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const std::int64_t align = 64 / size_of(dtype);
  for (const int ranks : {2, 4}) {
    for (const int finest : {ranks, 8}) {
      for (const std::int64_t threshold : {0, 40, 100000}) {
        for (const auto& shapes : units()) {
          const Parameters parameters(shapes);
          const auto layout =
              make_layout(options_of(Dims::mixed, threshold), parameters.pointers(), dtype, ranks, finest);
          const std::int64_t slices = finest / ranks;
          CHECK(layout->gathered_shard_elems() % (slices * align) == 0);
          CHECK(layout->shard_elems() % (slices * align) == 0);
          std::int64_t end = 0;
          for (const FlatView& view : layout->views()) {
            CHECK(view.offset % align == 0);
            end = std::max(end, view.offset + view.numel);
          }
          CHECK(end <= layout->full_elems());
          for (int rank = 0; rank < ranks; ++rank) {
            std::int64_t last = 0;
            for (const ShardSegment& segment : layout->segments(rank)) {
              CHECK(segment.shard_offset >= last);
              if (!layout->views()[segment.view].is_whole) CHECK(segment.shard_offset % align == 0);
              last = segment.shard_offset + segment.count;
            }
            CHECK(last <= layout->shard_elems());
          }
        }
      }
    }
  }
}

TEST_CASE(
    "1-4: parameters of fewer bytes than the threshold are held whole by every rank and cut for their reduction "
    "alone") {
  const Parameters parameters({{16, 2}, {31}, {32}, {3, 5}});  // of f32: 128, 124, 128 and 60 bytes
  const int ranks = GENERATE(2, 3, 8);
  const auto layout = make_layout(options_of(Dims::first, 128), parameters.pointers(), DType::f32, ranks);
  const std::vector<bool> is_whole = {false, true, false, true};
  std::vector<std::int64_t> reduced(4, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::int64_t> held(4, 0);
    for (const ShardSegment& segment : layout->held_segments(rank)) {
      held[segment.view] += segment.count;
      CHECK(segment.shard_offset + segment.count <= layout->held_elems());
    }
    for (const ShardSegment& segment : layout->segments(rank)) {
      reduced[segment.view] += segment.count;
      CHECK((segment.shard_offset >= layout->gathered_shard_elems()) == layout->views()[segment.view].is_whole);
    }
    CHECK(held[1] == 31);
    CHECK(held[3] == 15);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(layout->views()[i].is_whole == is_whole[i]);
    CHECK(reduced[i] == layout->views()[i].numel);
  }
  CHECK(layout->gathered_elems() == ranks * 2 * 16);  // one line of 64 bytes for each of the two that are sharded
  // In bf16 all four are below it, and nothing is left to gather.
  CHECK(make_layout(options_of(Dims::first, 128), parameters.pointers(), DType::bf16, ranks)->gathered_elems() == 0);
}

TEST_CASE("what is copied into a bucket lies where the segments say, and comes out again") {
  const Dims dims = GENERATE(Dims::first, Dims::last, Dims::mixed);
  const int ranks = GENERATE(2, 3, 8);
  const std::int64_t threshold = GENERATE(0, 40);
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Stream& stream = device->stream(StreamRole::compute);
  for (const auto& shapes : units()) {
    const Parameters parameters(shapes);
    const FlatParameter unit("unit", parameters.pointers(),
                             make_layout(options_of(dims, threshold), parameters.pointers(), DType::f32, ranks), 0, {});
    const UnitLayout& layout = *unit.layout;
    std::vector<float> full = numbered(layout.full_elems()), bucket(full.size(), -1.0f), expected(full.size(), 0.0f);
    for (int rank = 0; rank < ranks; ++rank) {
      for (const ShardSegment& segment : layout.segments(rank)) {
        for (std::int64_t i = 0; i < segment.count; ++i) {
          expected.at(static_cast<std::size_t>(rank * layout.shard_elems() + segment.shard_offset + i)) =
              full.at(static_cast<std::size_t>(layout.views()[segment.view].offset + segment.element(i)));
        }
      }
    }
    copy_in(stream, cpu_kernels(), unit, {0, ranks, layout.shard_elems()}, buffer_of(full), buffer_of(bucket));
    stream.synchronize();
    CHECK(bucket == expected);

    // The parts of whole parameters are not gathered.
    std::vector<float> gathered(static_cast<std::size_t>(layout.gathered_elems()), -1.0f), back(gathered.size(), -2.0f);
    copy_in(stream, cpu_kernels(), unit, {0, ranks, layout.gathered_shard_elems()}, buffer_of(full),
            buffer_of(gathered));
    copy_out(stream, cpu_kernels(), unit, buffer_of(gathered), buffer_of(back));
    stream.synchronize();
    std::vector<float> wanted(gathered.size(), -2.0f);
    for (const FlatView& view : layout.views()) {
      if (!view.is_whole) std::copy_n(full.begin() + view.offset, view.numel, wanted.begin() + view.offset);
    }
    CHECK(back == wanted);
  }
}

TEST_CASE("shards in the middle of a bucket are copied in alone, from the parameters that they have rows of") {
  const Parameters parameters({{5, 7}, {2}, {9, 2}});  // the second is on the first two ranks
  const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  Stream& stream = device->stream(StreamRole::compute);
  const FlatParameter unit("unit", parameters.pointers(),
                           make_layout(options_of(Dims::mixed), parameters.pointers(), DType::f32, 8), 0, {});
  const std::int64_t shard = unit.layout->gathered_shard_elems();
  std::vector<float> full = numbered(unit.layout->full_elems()), all(full.size()),
                     some(static_cast<std::size_t>(2 * shard));
  copy_in(stream, cpu_kernels(), unit, {0, 8, shard}, buffer_of(full), buffer_of(all));
  device->trace().start();
  copy_in(stream, cpu_kernels(), unit, {2, 2, shard}, buffer_of(full), buffer_of(some));
  stream.synchronize();
  device->trace().stop();
  std::vector<std::int64_t> read;
  for (const Buffer& buffer : device->trace().entries().front().op.reads) read.push_back(buffer.elems);
  CHECK(read == std::vector<std::int64_t>{35, 18});
  CHECK(some == std::vector<float>(all.begin() + 2 * shard, all.begin() + 4 * shard));
}

TEST_CASE(
    "1.3-6: an option that the layout has no use for, and a dim that a parameter has not, are refused at any number of "
    "ranks") {
  const Parameters parameters({{5, 7}, {7}});
  const int ranks = GENERATE(1, 2);
  const auto made = [&](const LayoutOptions& options) {
    make_layout(options, parameters.pointers(), DType::f32, ranks);
  };
  const auto always = [](int dim) { return [dim](std::string_view, const Shape&) { return dim; }; };
  CHECK_THROWS_WITH(made({.min_shard_bytes = 1}),
                    Contains("a size below which parameters stay whole does not go with the flat layout"));
  CHECK_THROWS_WITH(made({.dim = always(0)}), Contains("a choice of dims does not go with the flat layout"));
  CHECK_THROWS_WITH(made({.layout = Layout::per_parameter, .dim = always(1)}),
                    Contains("parameter p1 of shape (7) has no dim 1"));
  CHECK_THROWS_WITH(made({.layout = Layout::per_parameter, .dim = always(-3)}),
                    Contains("parameter p0 of shape (5, 7) has no dim -3"));
  CHECK_NOTHROW(made({.layout = Layout::per_parameter, .dim = always(-1)}));
}

}  // namespace zs::test::per_parameter_layout_test
