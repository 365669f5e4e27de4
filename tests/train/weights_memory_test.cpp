// What reading and writing weights takes beside the shards, counted: this program's operator new counts for all of it.

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "model/data/text_documents.h"
#include "model/json/strict_json.h"
#include "model/weights/weight_export.h"
#include "model/weights/weight_import.h"
#include "model/weights/weight_index.h"
#include "tests/model/temp_dir.h"
#include "tests/train/hostile_weights.h"

using namespace zs;
using test::TempDir;

namespace {

std::atomic<std::int64_t> live{0}, most{0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): all of new's

void note(std::int64_t bytes) {
  const std::int64_t now = live += bytes;
  std::int64_t seen = most;
  while (now > seen && !most.compare_exchange_weak(seen, now)) {
  }
}

std::int64_t bytes_at(void* memory) { return static_cast<std::int64_t>(::malloc_usable_size(memory)); }

/// The most bytes that there are during `work` beside those that were there before it.
std::int64_t peak_of(const std::function<void()>& work) {
  const std::int64_t before = live;
  most = before;
  work();
  return most - before;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(std::max<std::size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  note(bytes_at(memory));
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory != nullptr) note(-bytes_at(memory));
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }

namespace {

constexpr std::int64_t kRows = 2048, kColumns = 1024, kElems = kRows * kColumns, kTensors = 6, kMiB = 1 << 20;

/// Every second parameter is turned in files, and the first is made of two tensors.
TensorMap some_map() {
  TensorMap map;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    const std::string name = fmt::format("p{}", i);
    TensorRule rule{.parameter = name, .parts = {{name + ".weight"}}, .is_transposed = i % 2 == 1};
    if (i == 0) rule.parts = {{"q.weight", kRows / 4}, {"k.weight", 3 * kRows / 4}};
    map.rules.push_back(rule);
  }
  return map;
}

std::vector<ParameterShape> some_parameters() {
  std::vector<ParameterShape> parameters;
  for (std::int64_t i = 0; i < kTensors; ++i) parameters.push_back({fmt::format("p{}", i), {kRows, kColumns}});
  return parameters;
}

/// A file of them without a byte of data on the disk: all are 0.
std::string sparse_file(const TempDir& dir, const char* dtype, std::int64_t elem_bytes) {
  std::string header = "{";
  std::int64_t end = 0;
  for (const ExportedTensor& tensor : exported_tensors(some_map(), some_parameters())) {
    const std::int64_t begin = end;
    end += tensor.elems() * elem_bytes;
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{},{}],"data_offsets":[{},{}]}})", begin == 0 ? "" : ",",
                          tensor.name, dtype, tensor.shape[0], tensor.shape[1], begin, end);
  }
  const std::string start = test::safetensors(header + "}", 0), path = dir.write("model.safetensors", start);
  std::filesystem::resize_file(path, start.size() + static_cast<std::size_t>(end));
  return path;
}

class Zeros final : public ParameterSource {
 public:
  const std::vector<ParameterShape>& parameters() const override { return parameters_; }
  void read(const std::string&, std::int64_t, std::int64_t count, float* out) override { std::fill_n(out, count, 0); }

 private:
  std::vector<ParameterShape> parameters_ = some_parameters();
};

}  // namespace

TEST_CASE("a rank that reads its shards takes 2 MiB beside them, whatever the division and the dtype") {
  TempDir dir;
  const auto [dtype, elem_bytes] = GENERATE(table<const char*, std::int64_t>({{"F32", 4}, {"F16", 2}, {"BF16", 2}}));
  const std::string path = sparse_file(dir, dtype, elem_bytes);
  constexpr std::int64_t kRanks = 3;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    const std::int64_t first = kElems * rank / kRanks, count = kElems * (rank + 1) / kRanks - first,
                       column = kColumns * rank / kRanks, columns = kColumns * (rank + 1) / kRanks - column;
    std::vector<float> flat(static_cast<std::size_t>(count), 1), by_columns(static_cast<std::size_t>(kRows * columns));
    const std::int64_t peak = peak_of([&] {
      WeightImport weights(path, some_map(), some_parameters());
      for (const ParameterShape& parameter : some_parameters()) {
        float* out = flat.data();
        for (const Block& block : blocks_of(first, count, count, count, kColumns)) {
          weights.read(parameter.name, block, out);
          out += block.rows * block.columns;
        }
        weights.read(parameter.name, {0, kRows, column, columns}, by_columns.data());
      }
    });
    INFO(dtype << ", rank " << rank << ": " << peak);
    CHECK(peak <= 2 * kMiB);
    CHECK(flat == std::vector<float>(flat.size(), 0));
  }
}

TEST_CASE("what is written takes at most one tensor and some pieces of it") {
  TempDir dir;
  Zeros source;
  constexpr std::int64_t kTensor = kElems * std::int64_t{sizeof(float)};
  std::int64_t peak = peak_of([&] { export_safetensors(source, some_map(), dir.path(), {FileDType::bf16, 9 * kMiB}); });
  INFO("safetensors: " << peak);
  CHECK(peak <= kTensor + 8 * kMiB);
  CHECK(dir.entries() == kTensors / 2 + 1);
  peak = peak_of([&] {
    TensorMap map;
    for (std::int64_t i = 0; i < kTensors; ++i)
      map.rules.push_back({fmt::format("p{}", i), {{fmt::format("p{}.weight", i)}}});
    export_file(source, map, dir / "plain.safetensors");
  });
  INFO("without a turned tensor: " << peak);
  CHECK(peak <= 8 * kMiB);
}

TEST_CASE("JSON that nobody reads takes no memory, and what is read takes a bounded amount") {
  constexpr std::size_t kBytes = 16 << 20;
  std::string lists = "[";
  while (lists.size() < kBytes) lists += "[1],";
  lists += "0]";
  const std::string whole = R"({"weight_map": {"a": "b"}, "text": "c", "more": )" + lists + "}";
  WeightIndex index;
  CHECK(peak_of([&] { index = parse_weight_index(whole, "index.json"); }) <= kMiB);
  CHECK(index.file_of.size() == 1);
  TempDir dir;
  const std::string path = dir.write("a.jsonl", whole + "\n");
  std::vector<TextDocument> documents;
  const DocumentOptions jsonl{.format = DocumentFormat::jsonl, .field = "text"};
  CHECK(peak_of([&] { documents = read_documents({path}, jsonl); }) <= std::ssize(whole) + kMiB);
  CHECK(documents.front().text == "c");
  const std::int64_t tree = peak_of([&] {
    CHECK_THROWS_WITH(parse_document(whole, "config.json"), Catch::Contains("has more values than are read"));
  });
  INFO("tree: " << tree);
  CHECK(tree <= ReaderLimits::kJsonTreeBytes + kMiB);

  std::string map, metadata;
  for (std::size_t i = 0; i <= ReaderLimits::kTensors; ++i) map += fmt::format(R"({}"{:x}":"f")", i == 0 ? "" : ",", i);
  for (std::size_t i = 0; i <= ReaderLimits::kMetadataEntries; ++i)
    metadata += fmt::format(R"({}"{:x}":"")", i == 0 ? "" : ",", i);
  const std::int64_t most = peak_of([&] {
    CHECK_THROWS_WITH(parse_weight_index("{\"weight_map\":{" + map + "}}", "index.json"),
                      Catch::Contains("weight_map has more than 1048576 tensors"));
  });
  INFO("index: " << most);
  CHECK(most <= 160 * kMiB);
  CHECK_THROWS_WITH(parse_safetensors_header("{\"__metadata__\":{" + metadata + "}}", 0, "m"),
                    Catch::Contains("__metadata__ has more than 65536 entries"));
}
