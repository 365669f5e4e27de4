#include "model/train/run_dir/metrics.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/base/units.h"
#include "tests/code_in_child.h"
#include "tests/model/temp_dir.h"

namespace metrics_test {

using namespace zs;
using nlohmann::json;

TEST_CASE("a line is one JSON object with every column") {
  StepMetrics m{7, 2.5f, 1.25f, 6e-4, 4096, 1234.5, 3.25, 1 << 20, 2, {}};
  CHECK(
      to_json(m) ==
      R"({"step": 7, "loss": 2.5, "grad_norm": 1.25, "lr": 0.0006, "tokens": 4096, "tokens_per_s": 1234.5, "step_ms": 3.25, "peak_bytes": 1048576, "allocations": 2})");
  m.val_loss = 2.75f;
  CHECK(json::parse(to_json(m)).at("val_loss") == 2.75);
  CHECK_FALSE(json::parse(to_json(m)).contains("data_wait_ms"));
  m.data_wait_ms = 1.5;
  CHECK(json::parse(to_json(m)).at("data_wait_ms") == 1.5);
  m.host_bytes = 4096;
  CHECK(json::parse(to_json(m)).at("host_bytes") == 4096);
  m.lost_updates = {{"*.\"bias\"", 64, 0.25, 0.5}, {"others", 1e6, 0, {}}};
  const json lost = json::parse(to_json(m)).at("lost_updates");
  CHECK(lost == json{{"*.\"bias\"", {{"elements", 64}, {"f32", 0.25}, {"bf16", 0.5}}},
                     {"others", {{"elements", 1e6}, {"f32", 0}}}});
  m.mixtures = {{.layer = 1, .most = 1.5f, .least = 0, .entropy = 0.75f}, {.layer = 3, .most = 1, .least = 1}};
  CHECK(json::parse(to_json(m)).at("experts") ==
        json{{"layers", {1, 3}}, {"load_max", {1.5, 1}}, {"load_min", {0, 1}}, {"load_entropy", {0.75, 1}}});
  m.mixtures[0].balance_loss = 1.25f, m.mixtures[1].balance_loss = 1.0f;
  CHECK(json::parse(to_json(m)).at("experts").at("balance_loss") == json{1.25, 1});
}

TEST_CASE("a line has as many groups of lost updates as a log takes, and room for a validation") {
  test::TempDir dir;
  StepMetrics m{.step = 1};
  for (int i = 0; i < 1000; ++i) m.lost_updates.push_back({fmt::format("blocks.{}.attention.weight", i), 1, 0.5, 0.5});
  for (int i = 0; i < 1000; ++i)
    m.mixtures.push_back({.layer = i, .most = 1.23456789f, .entropy = 0.123456789f, .balance_loss = 1.23456789f});
  MetricsLog log(dir / "metrics.jsonl");
  log.append(m);
  log.add_validation({.step = 1, .val_loss = 1.0f / 3});
  log.check_own();
  const json line = json::parse(test::read_file(dir / "metrics.jsonl"));
  CHECK(line.at("lost_updates").size() > 100);
  CHECK(line.at("lost_updates").size() < 1000);
  CHECK(line.contains("val_loss"));
}

TEST_CASE("figures of tasks are numbers of a line, and one that was cut short has room for them") {
  StepMetrics m{.step = 1, .val_loss = 2.5f, .tasks = {{"a/\"val_loss\": 9", "acc", 0.25}, {"b", "exact_match", 1}}};
  const json line = json::parse(to_json(m));
  CHECK(line.at("task/a/\"val_loss\": 9/acc") == 0.25);
  CHECK(line.at("task/b/exact_match") == 1);
  CHECK(tasks_line({.step = 3, .tasks = {{"a", "acc", 0.25}, {"a", "acc_norm", 0.5}, {"b", "exact_match", 1}}}, 9) ==
        "step 3/9  a acc 0.2500, acc_norm 0.5000; b exact_match 1.0000");
  test::TempDir dir;
  MetricsLog log(dir / "metrics.jsonl");
  StepMetrics cut{.step = 1};
  for (int i = 0; i < 1000; ++i)
    cut.lost_updates.push_back({fmt::format("blocks.{}.attention.weight", i), 1, 0.5, 0.5});
  StepMetrics later{.step = 1};
  for (int i = 0; i < 50; ++i) later.tasks.push_back({fmt::format("{:0100}", i), "acc", 1.0 / 3});
  cut.bytes_to_come = json_bytes(later.tasks);
  log.append(cut);
  CHECK(log.lacks_validation(1));
  log.add_validation(later);
  CHECK_FALSE(log.lacks_validation(1));
  log.check_own();
  CHECK(json::parse(test::read_file(dir / "metrics.jsonl")).at(fmt::format("task/{:0100}/acc", 49)) == 1.0 / 3);
  log.append({.step = 2, .tasks = m.tasks});
  log.append({.step = 3, .val_loss = 1.5f, .tasks = m.tasks});
  const auto found = log.validations(9);  // of losses alone
  REQUIRE(found.size() == 1);
  CHECK(found[0].loss == 1.5f);
}

TEST_CASE("floating-point values read back exactly") {
  const CounterRng random(1);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    StepMetrics m;
    m.loss = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits(3 * i)));
    m.lr = std::bit_cast<double>(random.bits(3 * i + 1));
    if (!std::isfinite(m.loss) || !std::isfinite(m.lr)) continue;
    const json line = json::parse(to_json(m));
    CHECK(static_cast<float>(line.at("loss").get<double>()) == m.loss);
    CHECK(line.at("lr").get<double>() == m.lr);
  }
}

TEST_CASE("values that are not finite are null") {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  const json line = json::parse(to_json({1, nan, inf, 0.1, 1, -std::numeric_limits<double>::infinity(), 1, 1, 0, nan}));
  for (const char* key : {"loss", "grad_norm", "tokens_per_s", "val_loss"}) CHECK(line.at(key).is_null());
  CHECK(line.at("lr") == 0.1);
}

TEST_CASE("the log appends whole lines that are in the file at once") {
  test::TempDir dir;
  MetricsLog(dir / "metrics.jsonl").append({.step = 1});
  const std::string first = test::read_file(dir / "metrics.jsonl");
  CHECK(first == to_json({.step = 1}) + "\n");
  MetricsLog(dir / "metrics.jsonl").append({.step = 2});
  CHECK(test::read_file(dir / "metrics.jsonl") == first + to_json({.step = 2}) + "\n");
}

TEST_CASE("lines after a step are cut off, a torn one included, and the log goes on behind the rest") {
  test::TempDir dir;
  const std::string path = dir / "metrics.jsonl";
  {
    MetricsLog log(path);
    for (const std::int64_t step : {1, 2, 3, 4}) log.append({.step = step});
    CHECK(log.cut_after(9) == 4);
    CHECK(log.cut_after(2) == 2);
    log.append({.step = 3});
  }
  const std::string three = to_json({.step = 1}) + "\n" + to_json({.step = 2}) + "\n" + to_json({.step = 3}) + "\n";
  CHECK(test::read_file(path) == three);
  for (const std::string& torn : {std::string("{\"step\": 4, \"lo"), to_json({.step = 4}),
                                  std::string("{\"step\": 4\n{\"step\": 5}\n"), std::string(9, '\0')}) {
    dir.write("metrics.jsonl", three + torn);
    MetricsLog log(path);
    CHECK(log.cut_after(5) == 3);
    CHECK(test::read_file(path) == three);
    CHECK(log.cut_after(0) == 0);
    CHECK(test::read_file(path).empty());
  }
}

TEST_CASE("P12: of two logs of one file the second is refused while the first lives") {
  test::TempDir dir;
  const std::string path = dir / "metrics.jsonl";
  CHECK_FALSE(is_in_use(path));
  {
    MetricsLog log(path);
    CHECK(is_in_use(path));
    CHECK_THROWS_AS(MetricsLog(path), Error);
  }
  CHECK_FALSE(is_in_use(path));
}

TEST_CASE("a full disk while logging is an I/O error") {
  test::TempDir dir;
  const int code = test::code_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(99);
    try {
      MetricsLog(dir / "metrics.jsonl").append({});
    } catch (const Error& error) {
      if (error.where() != dir / "metrics.jsonl") ::_exit(98);
      throw;
    }
  });
  CHECK(code == static_cast<int>(ExitCode::io));
}

TEST_CASE(
    "F06: a log is a regular file of its own: links, pipes, devices and folders are refused, and nothing is cut") {
  test::TempDir dir;
  const std::string path = dir / "metrics.jsonl", victim = dir.write("victim", "precious\n");
  SECTION("a link") { std::filesystem::create_symlink("victim", path); }
  SECTION("a link to nothing") { std::filesystem::create_symlink("nowhere", path); }
  SECTION("a link to a device") { std::filesystem::create_symlink("/dev/full", path); }
  SECTION("a pipe") { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); }
  SECTION("a folder") { std::filesystem::create_directory(path); }
  CHECK_FALSE(is_in_use(path));
  CHECK_FALSE(begins_as_metrics(path));
  try {
    MetricsLog log(path);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::cannot_create);
    CHECK(error.where() == path);
  }
  CHECK(test::read_file(victim) == "precious\n");
}

TEST_CASE("F06: a log that holds a line of somebody else is not cut, however long the line is") {
  test::TempDir dir;
  const std::string line = to_json({.step = 1}) + "\n";
  for (const std::string& content :
       {std::string("precious\n"), line + "precious\n" + line, line + "{\"loss\": 1}\n", std::string("{\n"),
        line + std::string(20000, '{'), "{\"step\": 2" + std::string(200000, ' ')}) {
    const std::string path = dir.write("metrics.jsonl", content);
    MetricsLog log(path);
    for (const auto& use :
         {std::function<void()>([&] { log.check_own(); }), std::function<void()>([&] { log.cut_after(0); })}) {
      CHECK_THROWS_AS(use(), Error);
      CHECK(test::read_file(path) == content);
    }
  }
  // Longer than what is read at once, sparse: 4 TiB are neither read nor kept.
  const std::string path = dir.write("metrics.jsonl", line);
  std::error_code failed;
  std::filesystem::resize_file(path, std::uintmax_t{1} << 42, failed);
  if (!failed) CHECK_THROWS_AS(MetricsLog(path).cut_after(1), Error);
  std::string many;
  for (std::int64_t step = 1; step <= 3000; ++step) many += to_json({.step = step}) + "\n";
  dir.write("metrics.jsonl", many);
  MetricsLog log(path);
  log.check_own();
  CHECK(log.cut_after(2999) == 2999);
  CHECK(test::read_file(path) == many.substr(0, many.size() - to_json({.step = 3000}).size() - 1));
}

TEST_CASE("a log that cannot be opened is refused") {
  try {
    MetricsLog log("/dev/null/metrics.jsonl");
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::cannot_create);
  }
}

TEST_CASE("the terminal line shows what is known") {
  Progress progress{{20, 2.431f, 1, 1e-3, 1, 9840, 1, 117440512, 0, {}}, 500, -1, {}};
  CHECK(progress_line(progress) == "step 20/500  loss 2.4310  9.8k tok/s  peak 112 MiB");
  progress.metrics.val_loss = 2.5f;
  progress.seconds_left = 185;
  progress.ceiling_percent = 31.4;
  CHECK(progress_line(progress) ==
        "step 20/500  loss 2.4310  val 2.5000  9.8k tok/s  31% of ceiling  peak 112 MiB  3:05 left");
}

TEST_CASE("the live line replaces the last one and fits the terminal") {
  const Progress progress{{20, 2.431f, 1, 1e-3, 1, 9840, 1, 117440512, 0, {}}, 500, 60, {}};
  CHECK(live_line(progress, 200) == "\r" + progress_line(progress) + "\x1b[K");
  CHECK(live_line(progress, 12) == "\rstep 20/500\x1b[K");
  CHECK(live_line(progress, 0) == "\r\x1b[K");
}

TEST_CASE("quantities are short") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes((1ll << 30) - 1) == "1.0 GiB");
  CHECK(format_bytes(std::numeric_limits<std::int64_t>::max()) == "8.0 EiB");
  CHECK(format_count(12) == "12");
  CHECK(format_count(12345) == "12.3k");
  CHECK(format_count(999600) == "1.0M");
  CHECK(format_count(std::nan("")) == "?");
  CHECK(format_duration(59.6) == "1:00");
  CHECK(format_duration(3723) == "1:02:03");
  CHECK(format_duration(std::nan("")) == "?");
  CHECK(format_duration(1e300) == "?");
}

TEST_CASE("a validation that was cut short is added to its step's line later") {
  test::TempDir dir;
  MetricsLog log(dir / "metrics.jsonl");
  CHECK_FALSE(log.lacks_validation(1));
  log.append({.step = 1, .loss = 2.5f});
  CHECK(log.lacks_validation(1));
  CHECK_FALSE(log.lacks_validation(2));
  const std::string first = test::read_file(dir / "metrics.jsonl");
  log.append({.step = 2, .loss = 1.5f});
  log.add_validation({.step = 2, .val_loss = 2.75f});
  CHECK_FALSE(log.lacks_validation(2));
  CHECK(test::read_file(dir / "metrics.jsonl") == first + to_json({.step = 2, .loss = 1.5f, .val_loss = 2.75f}) + "\n");
  log.append({.step = 3});
  CHECK(log.lacks_validation(3));
}

TEST_CASE("the validations of a log are read up to a step, one before the first step too") {
  test::TempDir dir;
  MetricsLog log(dir / "metrics.jsonl");
  CHECK(log.validations(9).empty());
  log.append({.step = 0, .loss = std::nanf(""), .grad_norm = std::nanf(""), .val_loss = 5.5f});
  log.append({.step = 1, .loss = 5});
  log.append({.step = 2, .loss = 4, .val_loss = 4.25f});
  log.append({.step = 3, .loss = 4, .val_loss = std::nanf("")});
  log.append({.step = 4, .loss = 4, .val_loss = 3.0f});
  const auto found = log.validations(3);
  REQUIRE(found.size() == 3);
  CHECK(found[0].step == 0);
  CHECK(found[0].loss == 5.5f);
  CHECK(found[1].step == 2);
  CHECK(found[1].loss == 4.25f);
  CHECK(std::isnan(found[2].loss));
  CHECK(log.cut_after(0) == 0);
  CHECK(log.validations(9).size() == 1);
}

}  // namespace metrics_test
