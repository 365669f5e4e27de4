#include "model/nn/block_runs.h"

#include <catch2/catch.hpp>

namespace zs::block_runs_test {
namespace {

using Bytes = std::vector<std::int64_t>;
using Counts = std::vector<std::size_t>;

}  // namespace

TEST_CASE("as many units as can reach the size, the largest of them as small as it can be") {
  CHECK(merge_blocks(Bytes(12, 100), 474) == Counts{6, 6});  // not 5 and 7
  CHECK(merge_blocks(Bytes(13, 30), 64) == Counts{4, 3, 3, 3});
  CHECK(merge_blocks(Bytes(3, 100), 100) == Counts{1, 1, 1});
  CHECK(merge_blocks(Bytes(3, 100), 101) == Counts{3});
  CHECK(merge_blocks({{10, 1000, 10}}, 10) == Counts{1, 1, 1});
  CHECK(merge_blocks({{10, 10, 10, 100, 5}}, 25) == Counts{3, 2});
  CHECK(merge_blocks({{100, 10, 10, 100}}, 105) == Counts{2, 2});
}

TEST_CASE("blocks that do not reach the size together are one unit") {
  CHECK(merge_blocks(Bytes(4, 100), 401) == Counts{4});
  CHECK(merge_blocks(Bytes(1, 1), std::int64_t{1} << 60) == Counts{1});
  CHECK(merge_blocks(Bytes(2, 0), 1) == Counts{2});
}

TEST_CASE("without a size each block is a unit") { CHECK(merge_blocks({{0, 5, 0}}, 0) == Counts{1, 1, 1}); }

TEST_CASE("a unit is named by its first and its last block") {
  CHECK(name_of_blocks("blocks.0", "blocks.3") == "blocks.0-3");
  CHECK(name_of_blocks("blocks.9", "blocks.12") == "blocks.9-12");
  CHECK(name_of_blocks("blocks.4", "blocks.4") == "blocks.4");
  CHECK(name_of_blocks("layer0", "layer2") == "layer0-2");
  CHECK(name_of_blocks("encoder.0", "decoder.3") == "encoder.0-decoder.3");
  CHECK(name_of_blocks("first", "last") == "first-last");
}

}  // namespace zs::block_runs_test
