#include "model/train/rank/startup.h"

#include <catch2/catch.hpp>

namespace startup_test {

using namespace zs;

namespace {

const char* const kFirst = "name = \"a\"\n\n[train]\nsteps = 3\nlr = 0.001\n\n[shard]\nprefetch = 1\n";

}  // namespace

TEST_CASE("the first key that differs is named with both values") {
  CHECK(config_difference("name = \"a\"\n\n[train]\nsteps = 3\nlr = 0.01\n\n[shard]\nprefetch = 2\n", kFirst) ==
        "train.lr = 0.01, rank 0 has 0.001");
  CHECK(config_difference("name = \"b\"\n\n[train]\nsteps = 3\nlr = 0.001\n\n[shard]\nprefetch = 1\n", kFirst) ==
        "name = \"b\", rank 0 has \"a\"");
}

TEST_CASE("programs, instruction sets and floating-point behaviour must be the same, hosts need not") {
  const StartupFacts first{"12ab", "avx512", "little endian", kFirst, "4 ranks on 8 CPUs", 20};
  StartupFacts own = first;
  CHECK(difference(own, first) == std::nullopt);
  own.host = "2 ranks on 2 CPUs";
  own.free_gib = 1;
  CHECK(difference(own, first) == std::nullopt);
  own.floats = "big endian";
  CHECK(difference(own, first) == "big endian, rank 0 has little endian");
  own.isa = "avx2";
  CHECK(difference(own, first) == "kernels for avx2, rank 0 has avx512 (ZSHARD_ISA chooses)");
  own.build = "34cd";
  CHECK(difference(own, first) == "program build 34cd, rank 0 has 12ab");
}

TEST_CASE(
    "hosts that differ in shape, or by more than half in free memory, whichever has less, are worth a line that says "
    "all of it") {
  const StartupFacts first{"", "", "", "", "4 ranks on 8 CPUs", 20};
  const auto note = [&](const std::string& host, double free_gib) {
    return uneven_hosts(3, {"", "", "", "", host, free_gib}, first);
  };
  CHECK(note(first.host, 20).empty());
  CHECK(note(first.host, 11).empty());
  CHECK(note(first.host, 39).empty());
  CHECK(note(first.host, 0).empty());  // not known
  CHECK(note(first.host, 9) == "rank 3's host has 9.0 GiB of memory free, rank 0's 20.0");
  CHECK(note(first.host, 41) == "rank 3's host has 41.0 GiB of memory free, rank 0's 20.0");
  CHECK(note("4 ranks on 2 CPUs", 11) ==
        "the hosts are not alike: rank 3 has 4 ranks on 2 CPUs, rank 0 4 ranks on 8 CPUs");
  CHECK(note("4 ranks on 2 CPUs", 41) ==
        "the hosts are not alike: rank 3 has 4 ranks on 2 CPUs, rank 0 4 ranks on 8 CPUs; rank 3's host has 41.0 GiB "
        "of memory free, rank "
        "0's 20.0");
}

TEST_CASE("what this process is, it finds out: a build id among others") {
  const Config config = parse_config(
      "[data]\ntrain = \"x\"\n[model]\npreset = \"tiny\"\n[train]\nsteps = 1\nglobal_batch = 2\n", "c.toml");
  const auto world = make_single_world({});
  const StartupFacts facts = startup_facts(*world, config);
  CHECK(facts.build.size() == 40);
  CHECK(facts.build.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK_THAT(facts.floats, Catch::Contains("little endian, rounding mode 0, denormal numbers kept"));
  CHECK(facts.free_gib > 0);
}

TEST_CASE("attention on a GPU is cuDNN's where the configuration lets it be, and there is one") {
  Config config;
  config.device = "cuda";
  config.precision.param = "bf16";
  const auto chosen = [](const Config& of, const char* attention) {
    Config with = of;
    with.cuda.attention = attention;
    return gpu_attention(with);
  };
  CHECK(chosen(config, "own").text.empty());
  CHECK_FALSE(chosen(config, "own").is_by_cudnn);
  std::string reason;
  try {
    const std::string text = chosen(config, "cudnn").text;
    CHECK_THAT(text, Catch::StartsWith("attention by cuDNN 9."));
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::config);
    CHECK_THAT(error.what_to_do(), Catch::EndsWith("or use cuda.attention = \"own\""));
    reason = error.what_happened();
  }
  const GpuAttention found = chosen(config, "auto");
  CHECK(found.is_by_cudnn == reason.empty());
  if (!reason.empty()) CHECK(found.text == "attention by own kernels: " + reason);
  CHECK(gpu_options(config, 0).cudnn_attention == found.is_by_cudnn);
  for (const char* change : {"f32", "deterministic", "cpu"}) {
    Config other = config;
    if (change == std::string("f32")) other.precision.param = "f32";
    if (change == std::string("deterministic")) other.train.deterministic = true;
    if (change == std::string("cpu")) other.device = "cpu";
    CAPTURE(change);
    CHECK(chosen(other, "auto").text.empty());
    CHECK_FALSE(chosen(other, "auto").is_by_cudnn);
  }
}

TEST_CASE("what products on a GPU may do is what the configuration says") {
  Config config;
  config.device = "cuda";
  const DeviceOptions plain = gpu_options(config, 1);
  CHECK(plain.gpu == 1);
  CHECK_FALSE(plain.tf32);
  CHECK(plain.fuses_gelu);
  CHECK_FALSE(plain.times_products);
  config.cuda.tf32 = true;
  config.cuda.fused_gelu = false;
  config.cuda.tune_products = true;
  config.cuda.libraries = "/opt/cuda:/opt/nccl";
  CHECK(gpu_options(config, 0).libraries == "/opt/cuda:/opt/nccl");
  CHECK(gpu_options(config, 0).tf32);
  CHECK_FALSE(gpu_options(config, 0).fuses_gelu);
  CHECK(gpu_options(config, 0).times_products);
}

TEST_CASE(
    "a device that is left open is a GPU where every rank can use one, and the CPU on all ranks where one cannot") {
  const auto chosen = [](const std::string& wanted, const std::vector<GpuLook>& looks, std::int64_t experts = 0) {
    std::vector<std::string> devices(looks.size());
    run_local_world(static_cast<int>(looks.size()), {}, [&](World& world) {
      Config config;
      config.device = wanted;
      config.model.experts = experts;
      const auto rank = static_cast<std::size_t>(world.rank());
      const int code = choose_device(world, config, [&] { return looks[rank]; });
      devices[rank] = code == 0 ? config.device : fmt::format("{}, code {}", config.device, code);
    });
    return devices;
  };
  using Devices = std::vector<std::string>;
  const GpuLook good{.sees_gpu = true, .lacks = ""}, old{.sees_gpu = true, .lacks = "a made-up reason"},
      none{.lacks = "no driver"};
  CHECK(chosen("auto", {good}) == Devices{"cuda"});
  CHECK(chosen("auto", {good, good, good}) == Devices{"cuda", "cuda", "cuda"});
  CHECK(chosen("auto", {good, good, old}) == Devices{"cpu", "cpu", "cpu"});
  CHECK(chosen("auto", {good, good}, 4) == Devices{"cpu", "cpu"});
  CHECK(chosen("auto", {none, good}) == Devices{"cpu", "cpu"});
  CHECK(chosen("auto", {none}) == Devices{"cpu"});
  CHECK(chosen("cpu", {good, good}) == Devices{"cpu", "cpu"});
  const GpuLook without_library{.sees_gpu = true, .lacks = "a made-up library is not here", .lacks_library = true};
  CHECK(chosen("auto", {without_library}) == Devices{"auto, code 78"});
  CHECK(chosen("auto", {good, none, without_library}) == Devices{"auto, code 78", "auto, code 78", "auto, code 78"});
  CHECK(chosen("cpu", {without_library}) == Devices{"cpu"});
  CHECK(chosen("cuda", {none}) == Devices{"cuda"});
}

TEST_CASE("who can use a GPU has seen one") {
  const GpuLook look = look_for_gpu({});
  CHECK((look.sees_gpu || !look.lacks.empty()));
}

}  // namespace startup_test
