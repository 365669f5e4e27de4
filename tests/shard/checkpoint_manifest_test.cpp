#include "runtime/shard/checkpoint/checkpoint_manifest.h"

#include <functional>

#include <xxhash.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "runtime/base/check.h"

namespace zs::test::checkpoint_manifest_test {
namespace {

using nlohmann::json;

CheckpointManifest example() {
  CheckpointManifest manifest;
  manifest.step = 12;
  manifest.attributes = {{"config.train.seed", "7"}, {"a \"name\"\n", "\xc3\xa9"}};
  manifest.tensors = {{"wte.weight", "master", DType::f32, {4, 3}},
                      {"ln.bias", "adamw.m", DType::f32, {5}},
                      {"none", "master", DType::f32, {2, 0}}};
  manifest.files = {{1000, 0xfedcba9876543210u, {{0, 0, 7, 64}, {1, 0, 5, 128}}}, {500, 1, {{0, 7, 5, 64}}}};
  return manifest;
}

/// The same, its first tensor cut on the second dim.
CheckpointManifest example_of_runs() {
  CheckpointManifest manifest = example();
  manifest.files[0].segments[0] = {0, 0, 2, 64, 4, 3};
  manifest.files[1].segments[0] = {0, 2, 1, 64, 4, 3};
  return manifest;
}

/// The same, its first tensor one of two parts.
CheckpointManifest example_of_parts() {
  CheckpointManifest manifest = example();
  manifest.tensors[0] = {"wte.weight", "master", DType::f32, {8, 3}, {0, 0, 2}};
  manifest.tensors.push_back({"wte.weight", "master", DType::f32, {8, 3}, {0, 1, 2}});
  manifest.files[1].segments.push_back({3, 0, 12, 128});
  return manifest;
}

/// The example's document with `change` made to it and the checksum made right again: what an attacker would send.
std::string forged(const std::function<void(json&)>& change, const CheckpointManifest& manifest = example()) {
  json root = json::parse(to_text(manifest))["manifest"];
  change(root);
  const std::string body = root.dump();
  return fmt::format("{{\"checksum\": \"{:016x}\", \"manifest\": {}}}\n", XXH3_64bits(body.data(), body.size()), body);
}

/// What the refusal says; empty without one.
std::string refusal(const std::string& text) {
  try {
    parse_manifest(text, "place");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::checkpoint);
    CHECK(error.where() == "place");
    return error.what_happened();
  }
  return "";
}

}  // namespace

TEST_CASE("a manifest reads back as it was written, to the byte", "[checkpoint]") {
  const std::string text = to_text(example());
  const CheckpointManifest back = parse_manifest(text, "place");
  CHECK(back.step == 12);
  CHECK(back.attributes == example().attributes);
  REQUIRE(back.tensors.size() == 3);
  CHECK(back.tensors[1].parameter == "ln.bias");
  CHECK(back.tensors[1].kind == "adamw.m");
  CHECK(back.tensors[0].shape == Shape{4, 3});
  REQUIRE(back.files.size() == 2);
  CHECK(back.files[0].digest == 0xfedcba9876543210u);
  CHECK(back.files[0].segments == example().files[0].segments);
  CHECK(to_text(back) == text);
  CHECK(json::accept(text));
}

TEST_CASE("a manifest of tensors that are cut on a later dim reads back as it was written, to the byte",
          "[checkpoint]") {
  const std::string text = to_text(example_of_runs());
  const CheckpointManifest back = parse_manifest(text, "place");
  for (std::size_t file = 0; file < 2; ++file)
    CHECK(back.files[file].segments == example_of_runs().files[file].segments);
  CHECK(to_text(back) == text);
}

TEST_CASE("a manifest of parts reads back as it was written; parts that do not make up a tensor are refused",
          "[checkpoint]") {
  const CheckpointManifest back = parse_manifest(to_text(example_of_parts()), "place");
  CHECK(back.tensors[3].part == ParameterPart{0, 1, 2});
  CHECK(back.numels() == std::vector<std::int64_t>{12, 5, 0, 12});
  CHECK(to_text(back) == to_text(example_of_parts()));
  for (const json& part : {json{0, 0, 2}, json{0, 2, 2}, json{0, 1, 4}, json{1, 1, 2}, json{2, 1, 2}, json{0, 0, 1},
                           json{0, 1, 0}, json{0, 1}, json{0, 1, 2, 0}, json{0, 1, 2, 4, 4}, json{0, 1, 2, 4},
                           json{0, 1, 2, 12}, json{0, 1, 2, 3, 5}, json{0, 1, 5000000000}, json{0, -1, 2}, json("1")}) {
    CAPTURE(part.dump());
    CHECK(refusal(forged([&](json& j) { j["tensors"][3]["part"] = part; }, example_of_parts())) != "");
  }
  CHECK(refusal(forged(
            [](json& j) {
              j["tensors"][3]["shape"] = {4, 6};
            },
            example_of_parts())) == "the parts of wte.weight are not those of one tensor");
  const std::string of_blocks = forged(
      [](json& j) {
        j["tensors"][0]["part"] = {0, 0, 2, 4, 4};
        j["tensors"][3]["part"] = {0, 1, 2, 4, 4};
      },
      example_of_parts());
  CHECK(parse_manifest(of_blocks, "place").tensors[3].part == ParameterPart{0, 1, 2, {4, 4}});
  CHECK(parse_manifest(to_text(parse_manifest(of_blocks, "place")), "place").tensors[0].part ==
        ParameterPart{0, 0, 2, {4, 4}});
  CHECK(refusal(forged([](json& j) { std::swap(j["tensors"][0]["part"], j["tensors"][3]["part"]); },
                       example_of_parts())) == "wte.weight lacks a part");
  CheckpointManifest one = example_of_parts();
  one.tensors.pop_back();
  one.files[1].segments.pop_back();
  CHECK(refusal(to_text(one)) == "the parts of wte.weight are not those of one tensor");
}

TEST_CASE("C3: a manifest cut anywhere, or longer by a byte, is refused", "[checkpoint]") {
  const std::string text = to_text(example());
  for (std::size_t size = 0; size < text.size(); ++size) REQUIRE(refusal(text.substr(0, size)) != "");
  CHECK(refusal(text + "\n") != "");
}

TEST_CASE("C4: every bit of a manifest counts", "[checkpoint]") {
  const std::string text = to_text(example());
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    REQUIRE(refusal(flipped) != "");
  }
}

TEST_CASE("C13: a manifest with a good checksum that says what cannot be is refused", "[checkpoint]") {
  CHECK(refusal(forged([](json&) {})) == "");
  const std::vector<std::function<void(json&)>> changes = {
      [](json& j) { j = json::array(); },
      [](json& j) { j.erase("step"); },
      [](json& j) { j["step"] = -1; },
      [](json& j) { j["step"] = 1.5; },
      [](json& j) { j["step"] = "1"; },
      [](json& j) { j["step"] = 18446744073709551615u; },
      [](json& j) { j["format"] = "other"; },
      [](json& j) { j["attributes"]["x"] = 1; },
      [](json& j) { j["attributes"] = json::array(); },
      [](json& j) {
        j["tensors"][0]["shape"] = {9223372036854775807, 4};
      },
      [](json& j) { j["tensors"][0]["shape"] = {1, 1, 1, 1, 1, 1, 12}; },
      [](json& j) { j["tensors"][0]["shape"][0] = -4; },
      [](json& j) { j["tensors"][0]["shape"][0] = 5; },
      [](json& j) { j["tensors"][0]["dtype"] = "f64"; },
      [](json& j) { j["tensors"][0].erase("kind"); },
      [](json& j) { j["tensors"][1] = j["tensors"][0]; },
      [](json& j) { j["tensors"] = nullptr; },
      [](json& j) { j["files"][0]["bytes"] = 140; },
      [](json& j) { j["files"][0]["bytes"] = -140; },
      [](json& j) { j["files"][0]["digest"] = "12"; },
      [](json& j) { j["files"][0]["digest"] = "+edcba9876543210"; },
      [](json& j) {
        j["files"][0]["segments"][0] = {0, 0, 7};
      },
      [](json& j) {
        j["files"][0]["segments"][0] = {3, 0, 7, 64};
      },
      [](json& j) {
        j["files"][0]["segments"][0] = {0, 0, 9223372036854775807, 64};
      },
      [](json& j) {
        j["files"][0]["segments"][0] = {0, 9223372036854775807, 7, 64};
      },
      [](json& j) {
        j["files"][0]["segments"][0] = {0, 0, 7, 9223372036854775807};
      },
      [](json& j) {
        j["files"][0]["segments"][0] = {0, 0, 0, 64};
      },
      [](json& j) {
        j["files"][0]["segments"][0] = {0, 0, 6, 64};
      },
      [](json& j) {
        j["files"][1]["segments"][0] = {0, 6, 6, 64};
      },
      [](json& j) { j["files"].erase(1); },
      // Into the header, over the segment before, beside its place, far behind the one before, and in another order.
      [](json& j) { j["files"][0]["segments"][0][3] = 0; },
      [](json& j) { j["files"][0]["segments"][1][3] = 64; },
      [](json& j) { j["files"][0]["segments"][1][3] = 100; },
      [](json& j) { j["files"][0]["segments"][1][3] = 192; },
      [](json& j) { std::swap(j["files"][0]["segments"][0], j["files"][0]["segments"][1]); },
      [](json& j) {
        j["files"][0]["bytes"] = 9223372036854775807;
        j["files"][0]["segments"][0] = {0, 0, 2305843009213693951, 64};
      },
      [](json& j) { j["more"] = 1; },
      [](json& j) { j["tensors"][0]["more"] = json::array(); },
      [](json& j) { j["attributes"]["x"] = json::object(); },
      [](json& j) { j["files"][0]["segments"][0][0] = json::array({0}); },
      [](json& j) { j["step"] = nullptr; },
      [](json& j) { j["step"] = true; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    CHECK(refusal(forged(changes[i])) != "");
  }
  CHECK(refusal(std::string(1000000, '[')) != "");
}

TEST_CASE("C13: runs that do not make up their tensor, or not all alike, are refused", "[checkpoint]") {
  CHECK(refusal(forged([](json&) {}, example_of_runs())) == "");
  const json rows[] = {{0, 0, 2, 64, 4, 2},
                       {0, 0, 2, 64, 3, 4},
                       {0, 0, 2, 64, 1, 3},
                       {0, 0, 2, 64, 0, 3},
                       {0, 0, 2, 64, 4, 0},
                       {0, 0, 4, 64, 4, 3},
                       {0, 2, 2, 64, 4, 3},
                       {0, 0, 2, 980, 4, 3},
                       {0, 0, 2, 64, 4},
                       {0, 0, 2, 64, 4, 3, 1},
                       {0, 0, 1, 64, 4, 3},
                       {0, 0, 8, 64},
                       {0, 0, 2, 64, 2, 6},
                       {0, 0, 2, 64, 4, 9223372036854775807},
                       {0, 0, 2, 64, 9223372036854775807, 3}};
  for (const json& row : rows) {
    CAPTURE(row.dump());
    CHECK(refusal(forged([&](json& j) { j["files"][0]["segments"][0] = row; }, example_of_runs())) != "");
  }
}

/// The body with a checksum that is right.
std::string framed(const std::string& body) {
  return fmt::format("{{\"checksum\": \"{:016x}\", \"manifest\": {}}}\n", XXH3_64bits(body.data(), body.size()), body);
}

TEST_CASE("C13: a manifest with a good checksum that is nested deeply, or says a thing twice, is refused",
          "[checkpoint]") {
  const std::string good =
      R"({"attributes":{},"files":[],"format":"zshard checkpoint","step":5,"tensors":[],"version":1})";
  CHECK(refusal(framed(good)) == "");
  constexpr std::size_t kDeep = 3'000'000;
  const auto deep = [&](char open, const std::string& key) { return std::string(kDeep, open) + key; };
  for (const std::string& bad :
       {deep('[', ""), deep('[', "") + std::string(kDeep, ']'), R"({"attributes":)" + deep('[', ""),
        R"({"version":1,"format":"zshard checkpoint","attributes":)" + deep('[', "") + std::string(kDeep, ']') + "}"})
    CHECK(refusal(framed(bad)) != "");
  for (
      const char* twice :
      {R"({"attributes":{},"files":[],"files":[],"format":"zshard checkpoint","step":5,"tensors":[],"version":1})",
       R"({"attributes":{},"files":[],"format":"zshard checkpoint","step":5,"step":6,"tensors":[],"version":1})",
       R"({"attributes":{"a":"1","a":"2"},"files":[],"format":"zshard checkpoint","step":5,"tensors":[],"version":1})"})
    CHECK(refusal(framed(twice)) != "");
}

TEST_CASE("C14: another version is refused with both versions named, whatever else it holds", "[checkpoint]") {
  CHECK(refusal(framed(R"({"format":"zshard checkpoint","shards":[[[{"a":[1,2,{"version":9}]}]]],"version":7})"))
            .find("version 7") != std::string::npos);
  const std::string what = refusal(forged([](json& j) { j["version"] = 2; }));
  CHECK(what.find("version 2") != std::string::npos);
  CHECK(what.find("reads 1") != std::string::npos);
}

TEST_CASE("C14: a manifest of version 1 stays readable", "[checkpoint]") {
  const std::string text =
      R"({"checksum": "c4ee7bc504201e81", "manifest": {"attributes":{},"files":[{"bytes":136,"digest":"00000000000000ff","segments":[[0,0,3,64]]}],"format":"zshard checkpoint","step":5,"tensors":[{"dtype":"f32","kind":"master","parameter":"w","shape":[3]}],"version":1}})"
      "\n";
  CHECK(parse_manifest(text, "place").step == 5);
}

}  // namespace zs::test::checkpoint_manifest_test
