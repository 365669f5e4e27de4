#include "model/data/dataset.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <set>

#include "model/data/data_digest.h"
#include "model/data/data_files.h"
#include "model/data/permutation.h"
#include "tests/model/temp_dir.h"
#include "tests/model/token_files.h"

namespace data_test {

using namespace zs;
using namespace zs::test;
namespace fs = std::filesystem;

namespace {

/// Tokens 0, 1, 2 ... so that a token says where it is.
std::string counting(std::size_t count) {
  std::vector<std::uint16_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), std::uint16_t{0});
  return raw(tokens);
}

DatasetOptions counting_options(const TempDir& dir, std::size_t count, std::int64_t sequence) {
  DatasetOptions options;
  options.kind = DataKind::tokens;
  options.train = {dir.write("train.bin", counting(count))};
  options.sequence = sequence;
  options.vocab = 65536;
  options.seed = 7;
  return options;
}

}  // namespace

TEST_CASE("a permutation is a bijection of every small size") {
  for (std::uint64_t size = 1; size <= 300; ++size) {
    const Permutation permutation(size, size * 31);
    std::vector<bool> seen(size, false);
    for (std::uint64_t i = 0; i < size; ++i) {
      REQUIRE(permutation(i) < size);
      seen[permutation(i)] = true;
    }
    REQUIRE(std::count(seen.begin(), seen.end(), true) == static_cast<std::ptrdiff_t>(size));
  }
}

TEST_CASE("a large permutation repeats nothing and answers at once") {
  const Permutation permutation(std::uint64_t{1} << 40, 5);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 20000; ++i) seen.insert(permutation(i));
  CHECK(seen.size() == 20000);
}

TEST_CASE("permutations depend on their key and look shuffled") {
  constexpr std::uint64_t kSize = 1000;
  const Permutation a(kSize, 1), b(kSize, 2);
  int same = 0, fixed = 0, rising = 0;
  for (std::uint64_t i = 0; i < kSize; ++i) {
    same += a(i) == b(i);
    fixed += a(i) == i;
    rising += i > 0 && a(i) > a(i - 1);
  }
  // Expected 1, 1 and 500 with deviations of about 1, 1 and 9.
  CHECK(same < 10);
  CHECK(fixed < 10);
  CHECK(std::abs(rising - 500) < 60);
}

TEST_CASE("every window is equally likely to come first") {
  constexpr int kSize = 10, kEpochs = 10000;
  std::vector<int> first(kSize, 0);
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++first[Permutation(kSize, static_cast<std::uint64_t>(epoch))(0)];
  for (const int count : first) CHECK(std::abs(count - 1000) < 150);  // five deviations of 30
}

TEST_CASE("text is the bytes of all files in sorted order") {
  TempDir dir;
  const auto b = dir.write("b", "\xff!"), a = dir.write("a", "xy"), empty = dir.write("ab", "");
  const Corpus corpus(kText, find_data_files({b, a, empty, a}, {}, ""));
  CHECK(all_of(corpus) == std::vector<std::int32_t>{'x', 'y', 255, '!'});
  std::int32_t middle[2];
  corpus.read(1, 2, middle);
  CHECK(middle[0] == 'y');
  CHECK(middle[1] == 255);
}

TEST_CASE("token files with and without header are told apart and concatenated") {
  TempDir dir;
  const auto plain = dir.write("1.bin", raw<std::uint16_t>({5, 65535, 0}));
  const auto headed = dir.write("2.bin", header(20240520, 1, 2) + raw<std::uint16_t>({7, 8}));
  const auto one = dir.write("3.bin", raw<std::uint16_t>({9}));
  CHECK(all_of(Corpus(tokens_below(65536), {plain, headed, one})) == std::vector<std::int32_t>{5, 65535, 0, 7, 8, 9});
}

TEST_CASE("more files than stay open read alike") {
  TempDir dir;
  std::vector<std::string> files;
  for (int i = 0; i < 40; ++i)
    files.push_back(dir.write(std::to_string(100 + i), std::string(3, static_cast<char>(i))));
  const Corpus corpus(kText, files);
  const auto tokens = all_of(corpus);
  REQUIRE(tokens.size() == 120);
  for (std::size_t i = 0; i < tokens.size(); ++i) CHECK(tokens[i] == static_cast<std::int32_t>(i / 3));
}

TEST_CASE("a token outside the vocabulary is named with file and index") {
  TempDir dir;
  const std::size_t at = GENERATE(as<std::size_t>(), 0, 299999, 262143, 262144, 123456);
  std::vector<std::uint16_t> tokens(300000, 49);
  tokens[at] = 50;
  const bool is_headed = GENERATE(false, true);
  const auto path = dir.write("t.bin", (is_headed ? header(20240520, 1, 300000) : std::string()) + raw(tokens));
  const Error error = refusal(tokens_below(50), {dir.write("good.bin", counting(10)), path});
  CHECK(error.what_happened() == "token 50 is outside the vocabulary of 50");
  CHECK(error.where() == path + "@" + std::to_string(at));
  CHECK_NOTHROW(all_of(Corpus(tokens_below(51), {path})));
}

TEST_CASE("what is not a readable file is refused and nothing waits") {
  TempDir dir;
  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  for (const std::string& path : {dir / "fifo", dir.path(), dir / "none", std::string("/dev/null")})
    CHECK(refusal(kText, {path}).where() == path);
}

TEST_CASE("a file that shrinks or is replaced under a run is an error, not a crash") {
  TempDir dir;
  std::vector<std::string> files;
  for (std::size_t i = 0; i <= Corpus::kOpenFiles; ++i)
    files.push_back(dir.write("f" + std::to_string(100 + i), std::string(100, 'a')));
  const Corpus corpus(kText, files);
  std::int32_t token;
  fs::resize_file(files[0], 50);
  CHECK_NOTHROW(corpus.read(49, 1, &token));
  CHECK_THROWS_WITH(corpus.read(50, 1, &token), Catch::Contains("became shorter"));
  dir.write("other", std::string(100, 'b'));
  fs::rename(dir / "other", files.back());
  CHECK_THROWS_WITH(corpus.read(corpus.tokens() - 1, 1, &token), Catch::Contains("was replaced"));
}

TEST_CASE("an epoch draws every window once, each as inputs and targets one token later") {
  TempDir dir;
  const Dataset data = open_dataset(counting_options(dir, 1000, 8));
  const SampleSource& train = data.train;
  REQUIRE(train.tokens() == 900);
  REQUIRE(train.windows() == 112);  // floor(899 / 8)
  std::set<std::int32_t> starts;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    const auto [inputs, targets, lengths] = train.read(epoch * 112, 112);
    REQUIRE(inputs.size() == 112 * 8);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      REQUIRE(targets[i] == inputs[i] + 1);
      REQUIRE(inputs[i] == inputs[i / 8 * 8] + static_cast<std::int32_t>(i % 8));
      REQUIRE(targets[i] < 900);
    }
    starts.clear();
    for (std::size_t i = 0; i < inputs.size(); i += 8) starts.insert(inputs[i]);
    CHECK(starts.size() == 112);
    CHECK(*starts.begin() == 0);
    CHECK(*starts.rbegin() == 111 * 8);
  }
}

TEST_CASE("the order is a function of seed and epoch and the same in any cut") {
  TempDir dir;
  DatasetOptions options = counting_options(dir, 1000, 8);
  const SampleSource whole = open_dataset(options).train;
  const std::vector<std::int32_t> all = whole.read(100, 24).inputs;  // over the epoch's end
  for (int i = 0; i < 24; ++i) {
    const std::vector<std::int32_t> part = whole.read(100 + i, 1).inputs;
    REQUIRE(part.size() == 8);
    CHECK(std::equal(part.begin(), part.end(), all.begin() + i * 8));
  }
  options.seed = 8;
  const SampleSource other = open_dataset(options).train;
  int same_epoch = 0, same_seed = 0;
  for (std::int64_t i = 0; i < 112; ++i) {
    same_epoch += whole.window_of(i) == whole.window_of(112 + i);
    same_seed += whole.window_of(i) == other.window_of(i);
  }
  CHECK(same_epoch < 10);
  CHECK(same_seed < 10);
}

TEST_CASE("a digest tells data of one length apart, wherever and in however many files it lies") {
  TempDir dir;
  std::vector<std::uint16_t> all = ids<std::uint16_t>(5'000'000, 50000);
  const auto digest = [&](const std::vector<std::string>& files, std::int64_t bytes = 2) {
    const Corpus corpus(tokens_below(65536, bytes), files);
    return digest_of(corpus, 0, corpus.tokens());
  };
  const std::string whole = digest({dir.write("a.bin", raw(all))});
  CHECK(digest({dir.write("b/other.bin", header(20240520, 1, 5'000'000) + raw(all))}) == whole);
  const std::vector<std::uint32_t> wide(all.begin(), all.end());
  CHECK(digest({dir.write("w.bin", raw(wide))}, 4) == whole);
  CHECK(digest({dir.write("c.bin", raw(all).substr(0, 2'000'000)), dir.write("d.bin", raw(all).substr(2'000'000))}) ==
        whole);
  for (const std::size_t at :
       {std::size_t{0}, all.size() - 1, std::size_t{78'328 + 10}}) {  // the first block, the last, the second
    std::vector<std::uint16_t> other = all;
    other[at] ^= 1;
    CHECK(digest({dir.write("e.bin", raw(other))}) != whole);
  }
  all.resize(3'000'000);  // short enough to be read whole
  const std::string shorter = digest({dir.write("f.bin", raw(all))});
  for (const std::size_t at : {std::size_t{0}, std::size_t{65'536}, std::size_t{1'234'567}, all.size() - 1}) {
    std::vector<std::uint16_t> other = all;
    other[at] ^= 1;
    CHECK(digest({dir.write("g.bin", raw(other))}) != shorter);
  }
}

TEST_CASE("facts tell training from validation data, and name files") {
  TempDir dir;
  DatasetOptions options = counting_options(dir, 1000, 8);
  const DataFacts facts = facts_of(open_dataset(options));
  CHECK(facts.train_tokens == 900);
  CHECK(facts.train_files == "train.bin");
  options.train = {dir.write("b.bin", counting(500)), dir.write("a.bin", counting(500))};
  options.validation = {dir.write("v.bin", counting(100))};
  const DataFacts other = facts_of(open_dataset(options));
  CHECK(other.train_files.starts_with("a.bin to b.bin (2 files, names "));
  CHECK(other.train_digest != facts.train_digest);
  CHECK(other.validation_digest != facts.validation_digest);
  options.validation.clear();
  options.validation_fraction = 0;
  CHECK(facts_of(open_dataset(options)).validation_digest == "none");
}

TEST_CASE("an id outside the vocabulary is found by whoever reads it, and by a verification of all ranks together") {
  TempDir dir;
  DatasetOptions options = counting_options(dir, 3'000'000, 8);
  std::vector<std::uint16_t> all(3'000'000, 1);
  const std::size_t at = GENERATE(as<std::size_t>(), 0, 1'048'576, 2'345'678, 2'999'999);
  all[at] = 400;
  options.train = {dir.write("train.bin", raw(all))};
  options.vocab = 256;
  const Dataset data = open_dataset(options);
  CHECK_NOTHROW(facts_of(data));
  int found = 0;
  constexpr int kRanks = 2;
  for (int rank = 0; rank < kRanks; ++rank) {
    double last = -1;
    try {
      verify(data, rank, kRanks, [&](double part) {
        CHECK(part > last);
        CHECK(part <= 1);
        last = part;
      });
    } catch (const Error& error) {
      ++found;
      CHECK(error.code() == ExitCode::dataset);
      CHECK(error.where() == fmt::format("{}@{}", dir / "train.bin", at));
    }
  }
  CHECK(found == 1);
  if (at == all.size() - 1) return;  // behind the last whole window
  const SampleSource& source = at < 2'700'000 ? data.train : *data.validation;
  const std::int64_t window = (static_cast<std::int64_t>(at) - (at < 2'700'000 ? 0 : 2'700'000)) / 8;
  std::int64_t sample = 0;
  while (source.window_of(sample) != window) ++sample;
  CHECK_THROWS_AS(source.check(sample, 1), Error);
}

TEST_CASE("the last tenth is for validation, in file order") {
  TempDir dir;
  const Dataset data = open_dataset(counting_options(dir, 1000, 8));
  REQUIRE(data.validation);
  CHECK(data.validation->tokens() == 100);
  CHECK(data.validation->windows() == 12);
  const std::vector<std::int32_t> inputs = data.validation->read(0, 13).inputs;
  for (std::size_t i = 0; i < 12 * 8; ++i) CHECK(inputs[i] == 900 + static_cast<std::int32_t>(i));
  CHECK(inputs[12 * 8] == 900);  // starts over
}

TEST_CASE("validation comes from its own files when they are named, or not at all") {
  TempDir dir;
  DatasetOptions options = counting_options(dir, 1000, 8);
  options.validation_fraction = 0;
  CHECK_FALSE(open_dataset(options).validation);
  options.validation_fraction = 0.5;
  options.validation = {dir.write("val.bin", counting(20))};
  const Dataset data = open_dataset(options);
  CHECK(data.train.tokens() == 1000);
  CHECK(data.validation->windows() == 2);
  CHECK(data.files.size() == 2);
}

TEST_CASE("a corpus too short for one sample is refused") {
  TempDir dir;
  const auto message = [&](std::size_t tokens, double fraction) {
    DatasetOptions options = counting_options(dir, tokens, 8);
    options.validation_fraction = fraction;
    try {
      open_dataset(options);
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::dataset);
      CHECK(error.where() == dir / "train.bin");
      return error.what_happened();
    }
    return std::string();
  };
  CHECK(message(0, 0.1) == "the training data has 0 tokens, one sample needs 9");
  CHECK(message(8, 0) == "the training data has 8 tokens, one sample needs 9");
  CHECK(message(9, 0).empty());
  CHECK(message(89, 0.1) == "the validation data has 8 tokens, one sample needs 9");
  CHECK(message(90, 0.1).empty());
}

}  // namespace data_test
