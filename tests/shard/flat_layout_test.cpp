#include "runtime/shard/placement/flat_layout.h"

#include <catch2/catch.hpp>

#include <algorithm>

#include "tests/shard/parameters.h"

namespace zs::test::flat_layout_test {
namespace {

const std::vector<std::vector<Shape>>& units() {
  static const std::vector<std::vector<Shape>> units = {
      {{5, 7}, {7}, {1}, {33, 3}, {16}, {64, 2}},  // nothing, and everything, is a multiple of the alignment
      {{1}},
      {{16}, {32}},
      {{2, 2}, {0, 4}, {3}},  // an empty parameter in the middle
      {},
  };
  return units;
}

std::int64_t align_elems(DType dtype) { return 64 / size_of(dtype); }

}  // namespace

TEST_CASE("every view and every shard boundary lies on a multiple of 64 bytes of the runtime dtype") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int ranks = GENERATE(range(1, 10));
  for (const auto& shapes : units()) {
    const Parameters parameters(shapes);
    const FlatLayout layout(parameters.pointers(), dtype, ranks);
    for (const FlatView& view : layout.views()) CHECK(view.offset % align_elems(dtype) == 0);
    CHECK(layout.shard_elems() % align_elems(dtype) == 0);
    CHECK(layout.full_elems() == layout.shard_elems() * ranks);
    CHECK(layout.ranks() == ranks);
  }
}

TEST_CASE("views keep names, shapes, order and decay, and do not overlap") {
  const Parameters parameters(units()[0]);
  const FlatLayout layout(parameters.pointers(), DType::f32, 4);
  REQUIRE(layout.views().size() == parameters.pointers().size());
  std::int64_t end = 0, numel = 0;
  for (std::size_t i = 0; i < layout.views().size(); ++i) {
    const FlatView& view = layout.views()[i];
    const Parameter& parameter = *parameters.pointers()[i];
    CHECK(view.name == parameter.name());
    CHECK(view.shape == parameter.shape());
    CHECK(view.numel == parameter.numel());
    CHECK(view.has_decay == parameter.has_decay());
    CHECK(view.init.normal_std == parameter.init().normal_std);
    CHECK(view.offset >= end);
    CHECK(view.offset - end < align_elems(DType::f32));  // never more padding than the alignment needs
    end = view.offset + view.numel;
    numel += view.numel;
  }
  CHECK(layout.numel() == numel);
  CHECK(layout.full_elems() >= end);
}

TEST_CASE("offsets of views do not depend on the number of ranks") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  for (const auto& shapes : units()) {
    const Parameters parameters(shapes);
    const FlatLayout alone(parameters.pointers(), dtype, 1);
    for (int ranks = 2; ranks <= 9; ++ranks) {
      const FlatLayout layout(parameters.pointers(), dtype, ranks);
      REQUIRE(layout.views().size() == alone.views().size());
      for (std::size_t i = 0; i < layout.views().size(); ++i)
        CHECK(layout.views()[i].offset == alone.views()[i].offset);
    }
  }
}

TEST_CASE("the segments of all ranks cover every element of every view exactly once, in the right place") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int ranks = GENERATE(range(1, 10));
  for (const auto& shapes : units()) {
    const Parameters parameters(shapes);
    const FlatLayout layout(parameters.pointers(), dtype, ranks);
    std::vector<std::vector<int>> covered;
    for (const FlatView& view : layout.views()) covered.emplace_back(static_cast<std::size_t>(view.numel), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t end = 0;
      for (const ShardSegment& segment : layout.segments(rank)) {
        CHECK(segment.count > 0);
        CHECK(segment.shard_offset >= end);
        end = segment.shard_offset + segment.count;
        CHECK(rank * layout.shard_elems() + segment.shard_offset ==
              layout.views()[segment.view].offset + segment.view_offset);
        for (std::int64_t i = 0; i < segment.count; ++i)
          ++covered[segment.view].at(static_cast<std::size_t>(segment.view_offset + i));
      }
      CHECK(end <= layout.shard_elems());
    }
    for (const auto& view : covered) CHECK(std::all_of(view.begin(), view.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("padding is exactly what no view covers") {
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int ranks = GENERATE(range(1, 10));
  for (const auto& shapes : units()) {
    const Parameters parameters(shapes);
    const FlatLayout layout(parameters.pointers(), dtype, ranks);
    std::vector<int> covered(static_cast<std::size_t>(layout.full_elems()), 0);
    const auto cover = [&](std::int64_t offset, std::int64_t count) {
      for (std::int64_t i = offset; i < offset + count; ++i) ++covered.at(static_cast<std::size_t>(i));
    };
    for (const FlatView& view : layout.views()) cover(view.offset, view.numel);
    std::int64_t end = -1;
    for (const auto& [offset, count] : layout.padding()) {
      CHECK(count > 0);
      CHECK(offset > end);
      end = offset;
      cover(offset, count);
    }
    CHECK(std::all_of(covered.begin(), covered.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("with more ranks than elements the ranks behind the end hold padding only") {
  const Parameters parameters(std::vector<Shape>{{3}});
  const FlatLayout layout(parameters.pointers(), DType::f32, 9);
  CHECK(layout.shard_elems() == 16);
  CHECK(layout.segments(0).size() == 1);
  for (int rank = 1; rank < 9; ++rank) CHECK(layout.segments(rank).empty());
  REQUIRE(layout.padding().size() == 1);
  CHECK(layout.padding().front() == std::pair<std::int64_t, std::int64_t>{3, 9 * 16 - 3});
}

TEST_CASE("an empty unit has an empty layout") {
  const FlatLayout layout({}, DType::bf16, 3);
  CHECK(layout.views().empty());
  CHECK(layout.numel() == 0);
  CHECK(layout.full_elems() == 0);
  CHECK(layout.padding().empty());
  for (int rank = 0; rank < 3; ++rank) CHECK(layout.segments(rank).empty());
}

TEST_CASE("a layout of no ranks and the segments of a rank that is not there are refused") {
  const Parameters parameters(std::vector<Shape>{{3}});
  CHECK_THROWS_AS(FlatLayout(parameters.pointers(), DType::f32, 0), Error);
  const FlatLayout layout(parameters.pointers(), DType::f32, 2);
  CHECK_THROWS_AS(layout.segments(2), Error);
  CHECK_THROWS_AS(layout.segments(-1), Error);
}

}  // namespace zs::test::flat_layout_test
