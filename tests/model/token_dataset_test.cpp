// Samples of text and of token ids, and their order.
#include "model/datasets/token_dataset.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>

#include "model/data/dataset.h"
#include "model/datasets/sampler.h"
#include "runtime/base/usage_error.h"
#include "runtime/tensor/reduction.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/model/token_files.h"

namespace zs::test::token_dataset_test {
namespace {

using Catch::Contains;
using Ids = std::vector<std::int32_t>;

Ids integers(const Tensor& tensor) {
  tensor.context().device().synchronize();
  const auto* const data = tensor.buffer().as<std::int32_t>();
  return {data, data + tensor.numel()};
}

std::string text_of(const Tensor& ids) {
  std::string text;
  for (const std::int32_t id : integers(ids))
    text += id == kIgnoredTarget ? '.' : id == 0 ? '_' : static_cast<char>(id);
  return text;
}

struct Host {
  std::unique_ptr<Device> device = Device::create(DeviceKind::cpu, {});
  Context context{*device};
};

}  // namespace

TEST_CASE("windows of text are bytes, and each target is the byte behind") {
  const TempDir folder;
  Host host;
  const TokenDataset data({folder.write("a.txt", "abcdefg"), folder.write("b.txt", "hijk")}, {.sequence = 5});
  CHECK(data.size() == 2);
  CHECK(data.tokens() == 11);
  CHECK(data.vocab() == 256);
  const TokenBatch batch = data.read(host.context, 0, 2);
  CHECK(batch.inputs.shape() == Shape({2, 5}));
  CHECK(text_of(batch.inputs) == "abcdefghij");
  CHECK(text_of(batch.targets) == "bcdefghijk");
  CHECK(batch.documents.are_whole_sequences());
}

TEST_CASE("ids are read as they are, in the order of the trainer") {
  const TempDir folder;
  Host host;
  std::vector<std::uint16_t> all(101);
  std::iota(all.begin(), all.end(), std::uint16_t{300});
  const std::string path = folder.write("ids.bin", raw(all));
  const TokenDataset data({path}, {.sequence = 10, .seed = 7, .kind = DataKind::tokens, .vocab = 401});
  CHECK(data.size() == 10);
  const SampleSource source = open_dataset({.kind = DataKind::tokens,
                                            .train = {path},
                                            .validation_fraction = 0,
                                            .sequence = 10,
                                            .vocab = 401,
                                            .seed = 7})
                                  .train;
  const auto [inputs, targets, lengths] = source.read(0, 30);
  const TokenBatch batch = data.read(host.context, 0, 30);
  CHECK(integers(batch.inputs) == inputs);
  CHECK(integers(batch.targets) == targets);
  CHECK(!std::is_sorted(inputs.begin(), inputs.begin() + 100));
}

TEST_CASE("documents are packed whole, and see themselves alone") {
  const TempDir folder;
  Host host;
  const std::string path = folder.write("a.txt", "abcde\nxyz\nhi\n");
  const TokenDataset data({path}, {.sequence = 8, .documents = {.format = DocumentFormat::lines}});
  CHECK(data.size() == 2);
  const TokenBatch batch = data.read(host.context, 0, 2);
  CHECK(text_of(batch.inputs) == "abcdexyzhi______");
  CHECK(text_of(batch.targets) == "bcde.yz.i.......");
  const auto runs = batch.documents.runs("test", 2, 8);
  REQUIRE(runs.size() >= 3);
  CHECK((runs[0].length == 5 && runs[1].first == 5 && runs[1].length == 3));
}

TEST_CASE("a tokenizer makes the ids, and says how many there are") {
  const TempDir folder;
  Host host;
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(ZSHARD_SOURCE_ROOT "/tests/data/tokenizers/gpt2");
  const std::string text = "the quick brown fox jumps over the lazy dog";
  const TokenDataset data({folder.write("a.txt", text)}, {.sequence = 4, .tokenizer = tokenizer});
  CHECK(data.vocab() == tokenizer->vocab_size());
  const Ids ids = tokenizer->encode(text);
  REQUIRE(data.tokens() == std::ssize(ids));
  CHECK(integers(data.read(host.context, 0, 1).inputs) == Ids(ids.begin(), ids.begin() + 4));
  CHECK(integers(data.read(host.context, 0, 1).targets) == Ids(ids.begin() + 1, ids.begin() + 5));
}

TEST_CASE("the ranks' parts of a step are those of one rank") {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>('a' + i % 26);
  const std::string path = folder.write("a.txt", text);
  const auto of_ranks = [&](int ranks) {
    std::vector<Ids> parts(static_cast<std::size_t>(ranks));
    run_local_world(ranks, {.timeout_s = 60}, [&](World& world) {
      Host host;
      const TokenDataset data({path}, {.sequence = 6, .seed = 3});
      parts[static_cast<std::size_t>(world.rank())] = integers(data.batch(host.context, world, 5, 8).inputs);
      CHECK(Sampler(100, 3).batch(world, 1, 8).size() == static_cast<std::size_t>(8 / ranks));
    });
    Ids whole;
    for (const Ids& part : parts) whole.insert(whole.end(), part.begin(), part.end());
    return whole;
  };
  CHECK(of_ranks(1).size() == 48);
  CHECK(of_ranks(2) == of_ranks(1));
  CHECK(of_ranks(4) == of_ranks(1));
}

TEST_CASE("a sampler draws each item once an epoch") {
  const Sampler sampler(10, 1), plain(3);
  std::vector<std::int64_t> first, second, numbered;
  for (std::int64_t sample = 0; sample < 10; ++sample) {
    first.push_back(sampler.item(sample)), second.push_back(sampler.item(10 + sample));
    numbered.push_back(plain.item(sample));
  }
  CHECK(first != second);
  CHECK(numbered == std::vector<std::int64_t>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0});
  std::sort(first.begin(), first.end());
  std::vector<std::int64_t> all(10);
  std::iota(all.begin(), all.end(), 0);
  CHECK(first == all);
  CHECK_THAT(message_of([] { Sampler(0); }), Contains("a Sampler of 0 items"));
  CHECK_THAT(message_of([&] { plain.item(-1); }), Contains("sample -1"));
}

TEST_CASE("what makes no samples of tokens is one clear error, in words of the library") {
  const TempDir folder;
  Host host;
  const std::string text = folder.write("a.txt", "abcdefg hijklmnop");
  const auto refusal = [&](const std::vector<std::string>& files, const TokenDatasetOptions& options) {
    const std::string message = message_of([&] { TokenDataset(files, options).read(host.context, 0, 1); });
    for (const char* key : {"data.", "model.", "train."}) CHECK(message.find(key) == std::string::npos);
    return message;
  };
  CHECK_THAT(refusal({text}, {}), Contains("samples of 0 tokens: set TokenDatasetOptions::sequence"));
  CHECK_THAT(refusal({}, {.sequence = 4}), Contains("of no files"));
  CHECK_THAT(refusal({text}, {.sequence = 17}),
             Contains("there are 17 tokens, and one sample needs 18 (" + text + ")"));
  CHECK_THAT(refusal({folder / "none.txt"}, {.sequence = 4}), Contains("none.txt"));
  CHECK_THAT(refusal({text}, {.sequence = 4, .kind = DataKind::tokens}), Contains("whose vocab is 0"));
  CHECK_THAT(refusal({text}, {.sequence = 4, .vocab = 100}), Contains("set TokenDatasetOptions::vocab from 256 to"));
  CHECK_THAT(refusal({text}, {.sequence = 4, .kind = DataKind::tokens, .vocab = 100}),
             Contains("is text, not token ids") && Contains("set kind = \"text\""));
  const std::string ids = folder.write("ids.bin", raw(std::vector<std::uint16_t>(600, 7)));
  CHECK_THAT(refusal({ids}, {.sequence = 4, .kind = DataKind::tokens, .vocab = 7}), Contains("set vocab to 8 or more"));
  CHECK_THAT(refusal({text}, {.sequence = 4, .documents = {.format = DocumentFormat::lines}}),
             Contains("set overlong = \"split\""));
}

}  // namespace zs::test::token_dataset_test
