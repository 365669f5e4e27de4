#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "model/data/dataset.h"
#include "model/data/part_file.h"
#include "model/train/inference/evaluate.h"
#include "model/train/session/sample.h"
#include "model/train/session/token_window.h"
#include "tests/model/temp_dir.h"

namespace inference_test {

using namespace zs;
using namespace zs::test;

namespace {

Config tiny_config() {
  return parse_config(
      "[model]\nlayers = 1\nheads = 1\nwidth = 8\ncontext = 8\n[data]\ntrain = \"x\"\n[train]\nsteps = 1\nglobal_batch "
      "= 1\n",
      "window.toml");
}

}  // namespace

TEST_CASE("the micro-batches of an evaluation have every target once, in order") {
  for (const std::int64_t tokens : {2, 16, 17, 18, 33, 64, 65, 66, 80, 129, 200}) {
    for (const std::int64_t rows : {1, 3, 4}) {
      const EvaluationBatches batches(tokens, 16, rows);
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < batches.count(); ++i) {
        const auto batch = batches.at(i);
        REQUIRE(batch.first == next);
        REQUIRE((batch.rows >= 1 && batch.rows <= rows && batch.length >= 1 && batch.length <= 16));
        next += batch.targets();
      }
      REQUIRE(next == tokens - 1);
    }
  }
}

TEST_CASE("a file of parts appears whole, and takes no other's place") {
  const TempDir dir;
  const std::string path = dir / "parts.bin";
  {
    PartFile first = PartFile::create(path), second = PartFile::open(path, first.temporary());
    second.write(3, "def", 3);
    first.write(0, "abc", 3);
    second.finish();
    first.finish();
    CHECK(!std::filesystem::exists(path));
    first.publish();
  }
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  CHECK(text.str() == "abcdef");
  CHECK(dir.entries() == 1);
  CHECK_THROWS_AS(PartFile::create(path), Error);
  {
    PartFile late = PartFile::create(dir / "late.bin");
    dir.write("late.bin", "mine");
    late.finish();
    CHECK_THROWS_AS(late.publish(), Error);
  }
  CHECK(dir.entries() == 2);
}

TEST_CASE("tokens are drawn as often as their probabilities say, of those that may be") {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
  const auto counts = [&](const SampleOptions& options) {
    std::array<int, 4> count{};
    for (int i = 0; i < 1000; ++i) ++count.at(static_cast<std::size_t>(draw_token(logits, options, (i + 0.5) / 1000)));
    return count;
  };
  CHECK(counts({.temperature = 1}) == std::array{100, 400, 200, 300});
  CHECK(counts({.temperature = 0}) == std::array{0, 1000, 0, 0});
  CHECK(counts({.temperature = 0.5}) == std::array{33, 534, 133, 300});  // squares: 1, 16, 4, 9 of 30
  CHECK(counts({.temperature = 1, .top_k = 2}) == std::array{0, 571, 0, 429});
  CHECK(counts({.temperature = 1, .top_p = 0.69}) == std::array{0, 571, 0, 429});
  CHECK(counts({.temperature = 1, .top_p = 0.71}) == std::array{0, 444, 223, 333});
  CHECK(counts({.temperature = 1, .top_k = 2, .top_p = 0.5}) == std::array{0, 1000, 0, 0});
  CHECK(counts({.temperature = 1, .top_p = 0}) == std::array{0, 1000, 0, 0});
}

TEST_CASE("of tokens that are as likely the lower comes first") {
  const std::vector<float> logits = {0, 1, 1, 1};
  CHECK(draw_token(logits, {.temperature = 0}, 0.9) == 1);
  CHECK(draw_token(logits, {.temperature = 1, .top_k = 1}, 0.9) == 1);
  CHECK(draw_token(logits, {.temperature = 1, .top_k = 2}, 0.9) == 2);
  CHECK_THROWS_AS(draw_token({0, std::nanf("")}, {}, 0.5), Error);
}

TEST_CASE("text through a tokenizer has its ids, and a vocabulary must hold them") {
  const TempDir dir;
  DatasetOptions options;
  options.tokenizer = open_tokenizer(fmt::format("{}/tests/data/tokenizers/gpt2", ZSHARD_SOURCE_ROOT));
  options.train = {dir.write("texts/a.txt", "In the beginning God created the heaven and the earth."),
                   dir.write("texts/b.txt", "And")};
  options.folders = {""};
  options.sequence = 4;
  options.vocab = options.tokenizer->vocab_size();
  options.validation_fraction = 0;
  std::vector<std::int32_t> wanted =
      options.tokenizer->encode("In the beginning God created the heaven and the earth.");
  wanted.push_back(options.tokenizer->end_of_text().value());
  const std::vector<std::int32_t> last = options.tokenizer->encode("And");
  wanted.insert(wanted.end(), last.begin(), last.end());
  for (const int threads : {1, 3}) {
    options.threads = threads;
    const Dataset data = open_dataset(options);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(data.train.tokens()));
    data.train.corpus().read(0, data.train.tokens(), ids.data());
    CHECK(ids == wanted);
  }
  --options.vocab;
  CHECK_THROWS_AS(open_dataset(options), Error);
}

TEST_CASE("a token window has the logits of the tokens that it sees, of which it forgets the older half") {
  const int ranks = GENERATE(1, 2);
  const std::string family = GENERATE(as<std::string>{}, "gpt2", "llama");
  constexpr std::int64_t kMost = 9;
  const Config config =
      parse_config(fmt::format("[model]\nfamily = \"{}\"\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 16\n"
                               "[data]\ntrain = \"x\"\n[train]\nsteps = 1\nglobal_batch = 2\nsequence = {}\n",
                               family, kMost),
                   "window.toml");
  std::vector<double> off(static_cast<std::size_t>(ranks), 0);
  run_local_world(ranks, {.timeout_s = 60}, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {});
    Session session(*device, world, config, Session::Use::inference);
    TokenWindow window(session);
    std::vector<std::int32_t> seen;
    const auto go_on = [&](const std::vector<std::int32_t>& tokens, std::int64_t kept) {
      seen.insert(seen.end(), tokens.begin(), tokens.end());
      seen.erase(seen.begin(), seen.end() - kept);
      const auto found = window.next_logits(tokens), wanted = session.next_token_logits(seen);
      double& most = off[static_cast<std::size_t>(world.rank())];
      for (std::size_t i = 0; i < wanted.size(); ++i)
        most = std::max(most, static_cast<double>(std::abs(found[i] - wanted[i])));
    };
    go_on({7, 3, 200, 4}, 4);
    go_on({5, 6}, 6);
    std::int64_t kept = 6;
    for (std::int32_t token = 20; token < 40; ++token) {
      kept = kept == kMost ? (kMost + 1) / 2 : kept + 1;
      go_on({token}, kept);
    }
  });
  for (const double most : off) CHECK(most < 2e-6);  // logits of order 0.1, whose sums are in another order
}

TEST_CASE("of a prompt that is longer than a token window the last tokens count") {
  const Config config = tiny_config();
  const auto device = Device::create(DeviceKind::cpu, {});
  const auto world = make_single_world({});
  Session session(*device, *world, config, Session::Use::inference);
  std::vector<std::int32_t> tokens(30);
  std::iota(tokens.begin(), tokens.end(), 0);
  CHECK(TokenWindow(session).next_logits(tokens) == session.next_token_logits({22, 23, 24, 25, 26, 27, 28, 29}));
}

TEST_CASE("parameters that will be loaded are not drawn, and the others have the values that they have without") {
  const Config config = tiny_config();
  const auto device = Device::create(DeviceKind::cpu, {});
  const auto world = make_single_world({});
  const auto is_loaded = [](const std::string& parameter) { return parameter.ends_with("weight"); };
  Session drawn(*device, *world, config), loaded(*device, *world, config, Session::Use::training, is_loaded);
  device->synchronize();
  int differing = 0;
  for (std::size_t u = 0; u < loaded.runtime().executor().units().size(); ++u) {
    const FlatParameter& unit = loaded.runtime().executor().units()[u];
    const auto* const values = static_cast<const float*>(unit.master_buffer().data);
    const auto* const wanted = static_cast<const float*>(drawn.runtime().executor().units()[u].master_buffer().data);
    for (const ShardSegment& segment : unit.held_segments()) {
      const bool is_zero = is_loaded(unit.layout->views()[segment.view].name);
      for (std::int64_t i = segment.shard_offset; i < segment.shard_offset + segment.count; ++i) {
        REQUIRE(values[i] == (is_zero ? 0 : wanted[i]));
        differing += values[i] != wanted[i] ? 1 : 0;
      }
    }
  }
  CHECK(differing > 100);
}

}  // namespace inference_test
