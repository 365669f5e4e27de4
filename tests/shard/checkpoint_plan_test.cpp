#include "runtime/shard/checkpoint/checkpoint_plan.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "runtime/base/check.h"
#include "runtime/base/random.h"

namespace zs::test::checkpoint_plan_test {
namespace {

using Held = std::vector<std::vector<ElementRange>>;

const std::vector<std::int64_t> kNumels = {100, 7, 0, 1, 64};

/// The elements of kNumels, one tensor after the other, cut evenly over `ranks`: small tensors are on few of them, some
/// ranks hold nothing.
Held cut_evenly(int ranks) {
  std::int64_t total = 0;
  for (const std::int64_t numel : kNumels) total += numel;
  const std::int64_t share = (total + ranks - 1) / ranks;
  Held held(static_cast<std::size_t>(ranks));
  std::int64_t at = 0;
  for (std::size_t tensor = 0; tensor < kNumels.size(); ++tensor) {
    for (std::int64_t begin = 0; begin < kNumels[tensor];) {
      const std::int64_t rank = at / share, count = std::min(kNumels[tensor] - begin, (rank + 1) * share - at);
      held[static_cast<std::size_t>(rank)].push_back({static_cast<std::int64_t>(tensor), begin, count});
      begin += count;
      at += count;
    }
  }
  return held;
}

/// How often each element is in the plan; `held` must have what a rank writes.
std::vector<std::vector<int>> times_written(const Held& plan, const Held& held) {
  std::vector<std::vector<int>> times;
  for (const std::int64_t numel : kNumels) times.emplace_back(static_cast<std::size_t>(numel), 0);
  for (std::size_t rank = 0; rank < plan.size(); ++rank) {
    std::set<std::pair<std::int64_t, std::int64_t>> has;
    for (const auto& range : held[rank]) {
      for (std::int64_t i = 0; i < range.count; ++i) has.insert({range.tensor, range.begin + i});
    }
    for (const auto& range : plan[rank]) {
      for (std::int64_t i = range.begin; i < range.begin + range.count; ++i) {
        CHECK(has.contains({range.tensor, i}));
        ++times[static_cast<std::size_t>(range.tensor)].at(static_cast<std::size_t>(i));
      }
    }
  }
  return times;
}

bool all_once(const std::vector<std::vector<int>>& times) {
  return std::all_of(times.begin(), times.end(), [](const auto& tensor) {
    return std::all_of(tensor.begin(), tensor.end(), [](int n) { return n == 1; });
  });
}

std::int64_t load_of(const std::vector<ElementRange>& ranges) {
  std::int64_t sum = 0;
  for (const auto& range : ranges) sum += range.count;
  return sum;
}

}  // namespace

TEST_CASE("what no other rank holds is written by its holder as it is", "[checkpoint]") {
  const int ranks = GENERATE(1, 2, 3, 8, 200);
  const Held held = cut_evenly(ranks);
  CHECK(plan_writes(held, kNumels) == held);
}

TEST_CASE("of replicas exactly one writes each element, and they share the work", "[checkpoint]") {
  Held held = cut_evenly(4);
  const Held shards = held;
  held.insert(held.end(), shards.begin(), shards.end());  // two groups of four
  held.push_back({{0, 0, 100}, {1, 0, 7}});               // and one rank with some tensors whole
  const Held plan = plan_writes(held, kNumels);
  CHECK(all_once(times_written(plan, held)));
  CHECK(std::count_if(plan.begin(), plan.end(), [](const auto& ranges) { return load_of(ranges) > 0; }) >= 5);
}

TEST_CASE("ranges that overlap in any way are written once", "[checkpoint]") {
  const CounterRng rng(11);
  std::uint64_t draw = 0;
  for (int round = 0; round < 200; ++round) {
    Held held = cut_evenly(1 + static_cast<int>(rng.bits(draw++) % 5));
    for (int i = 0; i < 6; ++i) {
      const auto begin = static_cast<std::int64_t>(rng.bits(draw++) % 99), room = 100 - begin;
      held[rng.bits(draw) % held.size()].push_back(
          {0, begin, 1 + static_cast<std::int64_t>(rng.bits(draw + 1) % static_cast<std::uint64_t>(room))});
      draw += 2;
    }
    REQUIRE(all_once(times_written(plan_writes(held, kNumels), held)));
  }
}

TEST_CASE("an element that nobody holds is an error", "[checkpoint]") {
  Held held = cut_evenly(3);
  held[1].pop_back();
  CHECK_THROWS_AS(plan_writes(held, kNumels), Error);
  CHECK_THROWS_AS(plan_writes({{}}, {1}), Error);
  CHECK_THROWS_AS(plan_writes({{{0, 0, 2}}}, {1}), Error);
}

TEST_CASE("C6: whatever cut was written, any other finds every element of its own", "[checkpoint]") {
  const int writers = GENERATE(range(1, 9)), readers = GENERATE(range(1, 9));
  const std::vector<std::int64_t> bytes = {4, 8, 4, 2, 4};
  std::vector<std::vector<SavedSegment>> files;
  for (const auto& ranges : plan_writes(cut_evenly(writers), kNumels)) files.push_back(lay_out(ranges, bytes, 64));
  const SegmentIndex index(files, kNumels, bytes);
  for (std::int64_t tensor = 0; tensor < 5; ++tensor) CHECK(index.is_complete(tensor));
  for (const auto& ranges : cut_evenly(readers)) {
    for (const ElementRange& wanted : ranges) {
      std::int64_t at = 0;
      for (const ReadPart& part : index.find(wanted)) {
        REQUIRE(part.target == at);
        // The segment that has the first element of the part has all of it, at that place.
        const auto& segments = files[static_cast<std::size_t>(part.file)];
        CHECK(std::any_of(segments.begin(), segments.end(), [&](const SavedSegment& s) {
          const std::int64_t into = wanted.begin + part.target - s.begin;
          return s.tensor == wanted.tensor && into >= 0 && into + part.count <= s.count &&
                 part.offset == s.offset + into * bytes[static_cast<std::size_t>(s.tensor)];
        }));
        at += part.count;
      }
      CHECK(at == wanted.count);
    }
  }
}

TEST_CASE("of tensors cut on a later dim each element is written once, and any other cut finds it", "[checkpoint]") {
  const int writers = GENERATE(1, 2, 3, 8);
  constexpr std::int64_t kRuns = 5, kStride = 7, kNumel = kRuns * kStride, kMore = 3;  // a second tensor behind it
  Held held(static_cast<std::size_t>(2 * writers));                                    // and a replica of each
  for (int rank = 0; rank < writers; ++rank) {
    const std::int64_t each = (kStride + writers - 1) / writers, begin = rank * each,
                       count = std::min(each, kStride - begin);
    if (count <= 0) continue;
    for (const int replica : {rank, rank + writers})
      held[static_cast<std::size_t>(replica)].push_back({0, begin, count, kRuns, kStride});
  }
  held[0].push_back({1, 0, kMore});
  std::vector<std::vector<SavedSegment>> files;
  std::vector<std::vector<std::int64_t>> contents;  // of each file, the element that lies at each place of 4 bytes
  for (const auto& ranges : plan_writes(held, {kNumel, kMore})) {
    files.push_back(lay_out(ranges, {4, 4}, 64));
    contents.emplace_back(static_cast<std::size_t>(data_end(files.back(), {4, 4}, 64) / 4), -1);
    for (const SavedSegment& segment : files.back()) {
      for (std::int64_t i = 0; i < segment.elems(); ++i) {
        std::int64_t& place = contents.back().at(static_cast<std::size_t>(segment.offset / 4 + i));
        REQUIRE(place == -1);
        place = 1000 * segment.tensor + segment.begin + i / segment.count * segment.stride + i % segment.count;
      }
    }
  }
  const SegmentIndex index(files, {kNumel, kMore}, {4, 4});
  CHECK(index.is_complete(0));
  CHECK(index.is_complete(1));
  for (std::int64_t begin = 0; begin < kNumel; ++begin) {
    for (std::int64_t count = 1; begin + count <= kNumel; ++count) {
      std::int64_t at = 0;
      for (const ReadPart& part : index.find({0, begin, count})) {
        REQUIRE(part.target == at);
        for (std::int64_t i = 0; i < part.count; ++i, ++at)
          REQUIRE(contents.at(static_cast<std::size_t>(part.file)).at(static_cast<std::size_t>(part.offset / 4 + i)) ==
                  begin + at);
      }
      REQUIRE(at == count);
    }
  }
}

TEST_CASE("a tensor that ranks cut on different dims is an error, and not complete", "[checkpoint]") {
  CHECK_THROWS_AS(plan_writes({{{0, 0, 2, 5, 3}}, {{0, 2, 13}}}, {15}), Error);
  CHECK_THROWS_AS(plan_writes({{{0, 0, 2, 5, 3}}, {{0, 0, 1, 3, 5}}}, {15}), Error);
  CHECK_THROWS_AS(plan_writes({{{0, 0, 3, 4, 3}}}, {15}), Error);
  CHECK_THROWS_AS(plan_writes({{{0, 0, 2, 5, 3}}}, {15}), Error);
  CHECK(SegmentIndex({{{0, 0, 2, 64, 5, 3}}, {{0, 2, 1, 64, 5, 3}}}, {15}, {4}).is_complete(0));
  CHECK_FALSE(SegmentIndex({{{0, 0, 2, 64, 5, 3}}, {{0, 2, 1, 64, 3, 5}}}, {15}, {4}).is_complete(0));
  CHECK_FALSE(SegmentIndex({{{0, 0, 2, 64, 5, 3}}, {{0, 2, 13, 64}}}, {15}, {4}).is_complete(0));
  CHECK_FALSE(SegmentIndex({{{0, 0, 2, 64, 5, 3}}}, {15}, {4}).is_complete(0));
}

TEST_CASE("segments are aligned, do not touch, and end before the table", "[checkpoint]") {
  const std::vector<std::int64_t> bytes = {4, 8, 4, 2, 4};
  const auto segments = lay_out(cut_evenly(1)[0], bytes, 64);
  std::int64_t end = 64;
  for (const SavedSegment& segment : segments) {
    CHECK(segment.offset % kSegmentAlign == 0);
    CHECK(segment.offset >= end);
    CHECK(segment.offset < end + kSegmentAlign);
    end = segment.offset + segment.count * bytes[static_cast<std::size_t>(segment.tensor)];
  }
  CHECK(data_end(segments, bytes, 64) >= end);
  CHECK(data_end({}, bytes, 64) == 64);
}

TEST_CASE("a tensor with a hole or an overlap is not complete", "[checkpoint]") {
  CHECK(SegmentIndex({{{0, 0, 5, 64}}, {{0, 5, 5, 64}}}, {10}, {4}).is_complete(0));
  CHECK_FALSE(SegmentIndex({{{0, 0, 5, 64}}, {{0, 6, 4, 64}}}, {10}, {4}).is_complete(0));
  CHECK_FALSE(SegmentIndex({{{0, 0, 5, 64}}, {{0, 4, 6, 64}}}, {10}, {4}).is_complete(0));
  CHECK_FALSE(SegmentIndex({{{0, 0, 9, 64}}}, {10}, {4}).is_complete(0));
}

}  // namespace zs::test::checkpoint_plan_test
