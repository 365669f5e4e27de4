// Samples that are rows of tensors in a file.
#include "model/datasets/tensor_dataset.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>
#include <set>

#include "model/weights/safetensors.h"
#include "runtime/base/usage_error.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"

namespace zs::test::tensor_dataset_test {
namespace {

using Catch::Contains;

constexpr std::int64_t kRows = 10;

/// Row r of "x" (10, 2, 2) f32 is r + 0, 0.25, 0.5, 0.75, of "half" (10, 1) f16 r, of "kind" (10) i64 100 r.
std::string written(const TempDir& folder, std::int64_t factor = 100) {
  const std::string path = folder / "samples.safetensors";
  SafetensorsWriter writer(path, {{"x", FileDType::f32, {kRows, 2, 2}},
                                  {"half", FileDType::f16, {kRows, 1}},
                                  {"kind", FileDType::i64, {kRows}},
                                  {"few", FileDType::i32, {3}},
                                  {"odd", FileDType::u8, {kRows}}});
  std::vector<float> x, rows;
  std::vector<std::int64_t> kinds;
  for (std::int64_t i = 0; i < 4 * kRows; ++i) x.push_back(static_cast<float>(i) / 4);
  for (std::int64_t row = 0; row < kRows; ++row) rows.push_back(static_cast<float>(row)), kinds.push_back(factor * row);
  std::vector<std::uint16_t> halves(kRows);
  from_f32(FileDType::f16, rows.data(), halves.data(), kRows);
  writer.append(x.data(), 4 * kRows * 4);
  writer.append(halves.data(), kRows * 2);
  writer.append(kinds.data(), kRows * 8);
  const std::vector<std::int32_t> few(3);
  writer.append(few.data(), 12);
  writer.append(std::string(kRows, 'a').data(), kRows);
  writer.finish();
  return path;
}

std::vector<std::int32_t> integers(const Tensor& tensor) {
  tensor.context().device().synchronize();
  const auto* const data = tensor.buffer().as<std::int32_t>();
  return {data, data + tensor.numel()};
}

struct Host {
  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {});
  Context context{*device};
};

}  // namespace

TEST_CASE("a sample has its row of every tensor") {
  const TempDir folder;
  Host host;
  TensorDataset data(written(folder), {"x", "kind", "half"}, 3);
  CHECK(data.size() == kRows);
  const std::vector<Tensor> read = data.read(host.context, 4, 3);
  REQUIRE(read.size() == 3);
  CHECK(read[0].shape() == Shape({3, 2, 2}));
  CHECK(read[1].shape() == Shape({3}));
  CHECK(read[1].dtype() == DType::i32);
  CHECK(read[2].shape() == Shape({3, 1}));
  const auto x = read[0].to_host(), half = read[2].to_host();
  const auto kinds = integers(read[1]);
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::int64_t row = data.row_of(4 + i);
    CHECK(x[4 * i + 3] == static_cast<float>(row) + 0.75f);
    CHECK(half[i] == static_cast<float>(row));
    CHECK(kinds[i] == 100 * row);
  }
}

TEST_CASE("an epoch has every row once, in an order of its own; without a seed in the file's") {
  const TempDir folder;
  const std::string path = written(folder);
  const TensorDataset data(path, {"x"}, 3), again(path, {"kind"}, 3), other(path, {"x"}, 4), plain(path, {"x"});
  std::vector<std::int64_t> orders[4];
  for (std::int64_t sample = 0; sample < kRows; ++sample) {
    orders[0].push_back(data.row_of(sample));
    orders[1].push_back(data.row_of(kRows + sample));
    orders[2].push_back(other.row_of(sample));
    orders[3].push_back(plain.row_of(kRows + sample));
    CHECK(again.row_of(sample) == data.row_of(sample));
  }
  std::vector<std::int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  CHECK(orders[3] == all);
  for (auto& order : orders) {
    CHECK(std::is_permutation(order.begin(), order.end(), all.begin()));
  }
  CHECK(std::set({orders[0], orders[1], orders[2], orders[3]}).size() == 4);
}

TEST_CASE("a step's samples are the same at any number of ranks") {
  const TempDir folder;
  const std::string path = written(folder);
  const auto of_ranks = [&](int ranks) {
    std::vector<std::vector<std::int32_t>> parts(static_cast<std::size_t>(ranks));
    run_local_world(ranks, {.timeout_s = 60}, [&](World& world) {
      Host host;
      TensorDataset data(path, {"kind"}, 7);
      for (std::int64_t step = 0; step < 3; ++step) {
        const auto own = integers(data.batch(host.context, world, step, 4).front());
        if (step == 2) parts[static_cast<std::size_t>(world.rank())] = own;
      }
    });
    std::vector<std::int32_t> whole;
    for (const auto& part : parts) whole.insert(whole.end(), part.begin(), part.end());
    return whole;
  };
  CHECK(of_ranks(1).size() == 4);
  CHECK(of_ranks(2) == of_ranks(1));
  CHECK(of_ranks(4) == of_ranks(1));
}

TEST_CASE("what makes no samples is one clear error") {
  const TempDir folder;
  const std::string path = written(folder);
  Host host;
  const auto refusal = [&](const std::vector<std::string>& names) {
    return message_of([&] { TensorDataset(path, names); });
  };
  CHECK_THAT(refusal({}), Contains("a TensorDataset of no tensors: name those that make a sample"));
  CHECK_THAT(refusal({"y"}), Contains("there is no tensor \"y\" (" + path + ")"));
  CHECK_THAT(refusal({"odd"}), Contains("tensor \"odd\" is U8") && Contains("store samples as F32"));
  CHECK_THAT(refusal({"x", "few"}), Contains("tensor \"few\" has 3 rows, \"x\" has 10"));
  TensorDataset data(path, {"x"});
  CHECK_THAT(message_of([&] { data.read(host.context, -1, 2); }), Contains("2 samples from -1 on"));
  const auto world = make_single_world({});
  CHECK_THAT(message_of([&] { data.batch(host.context, *world, 0, 0); }), Contains("step 0 of 0 samples over 1 ranks"));
  TensorDataset large(written(folder, std::int64_t{1} << 40), {"kind"});
  CHECK_THAT(message_of([&] { large.read(host.context, 0, 2); }),
             Contains("row 1 of tensor \"kind\" has 1099511627776, which i32 has no room for"));
}

}  // namespace zs::test::tensor_dataset_test
