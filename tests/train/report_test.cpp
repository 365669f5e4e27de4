#include "model/train/report/report_page.h"

#include <sys/stat.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/train/report/run_record.h"
#include "runtime/base/random.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"

namespace report_test {

using namespace zs;
using nlohmann::json;

namespace {

/// The numbers in a page.
json data_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const auto at = page.find(begin) + begin.size();
  return json::parse(page.substr(at, page.find("</script>", at) - at));
}

}  // namespace

TEST_CASE("a series has every sample until it is full, and then points of as many samples each, with their extremes") {
  const CounterRng random(3);
  for (const std::int64_t count : {1, 7, 1200, 1201, 5000, 100000}) {
    Series series;
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = static_cast<double>(random.bits(static_cast<std::uint64_t>(i)) % 1000);
      sum += value;
      series.add(i + 1, value);
    }
    const auto& points = series.points();
    CHECK(points.size() <= Series::kMostPoints);
    CHECK((count <= 1200 ? std::ssize(points) == count : points.size() > Series::kMostPoints / 2));
    CHECK(points.back().step == count);
    std::int64_t samples = 0;
    double found = 0, most = 0;
    for (const Series::Point& point : points) {
      if (&point != &points.back()) CHECK(point.samples == series.samples_per_point());
      CHECK(point.min <= point.mean());
      CHECK(point.mean() <= point.max);
      samples += point.samples;
      found += point.sum;
      most = std::max(most, point.max);
      CHECK(point.step == samples);
    }
    CHECK(samples == count);
    CHECK(found == sum);  // of integers
    if (count > 10000) CHECK(most == 999);
  }
}

TEST_CASE("values that are not finite are no part of a point, and a point of nothing else is a gap") {
  Series series;
  series.add(1, 2);
  series.add(2, std::nan(""));
  for (std::int64_t step = 3; step <= 1201; ++step) series.add(step, std::numeric_limits<double>::infinity());
  REQUIRE(series.samples_per_point() == 2);
  CHECK(series.points()[0].count == 1);
  CHECK(series.points()[0].mean() == 2);
  CHECK(series.points()[1].count == 0);
}

TEST_CASE("lines that no log wrote are damaged, the others count, and a last line without its end is none yet") {
  test::TempDir dir;
  const std::string one = to_json({.step = 1, .loss = 3}) + "\n", two = to_json({.step = 2, .loss = 2}) + "\n",
                    three = to_json({.step = 3, .loss = 1, .val_loss = 1.5f}) + "\n";
  struct Case {
    std::string text;
    std::vector<std::int64_t> damaged;
    std::int64_t last;
  };
  const std::string four = to_json({.step = 4});
  for (const Case& c :
       std::vector<Case>{{one + two + three, {}, 3},
                         {"", {}, 0},
                         {one + "{\"step\": 2}\n" + three, {2}, 3},
                         {one + "\n" + three, {2}, 3},
                         {one + three + two, {3}, 3},
                         {one + one + two, {2}, 2},
                         {"[1, 2]\n\"step\"\n" + one, {1, 2}, 1},
                         {one + "{\"step\": \"2\", \"loss\": 1}\n" + two, {2}, 2},
                         {one + four.substr(0, 30) + "\n" + std::string(20, '\0') + "\n", {2, 3}, 1},
                         {one + two + four, {}, 2},
                         {one + std::string(100000, '\0') + "\n" + two, {2}, 2},
                         {one + "{\"step\": 1e300}\n{\"step\": 18446744073709551615}\n" + two, {2, 3}, 2},
                         {one + "{\"step\": 2, \"a\": 1e999}\n" + std::string(9000, '[') + "\n", {2, 3}, 1},
                         {one + four.substr(0, 9), {}, 1}}) {
    INFO(c.text);
    RunRecord record;
    read_metrics(dir.write("metrics.jsonl", c.text), record);
    CHECK(record.damaged_lines == c.damaged);
    CHECK((record.last ? record.last->step : 0) == c.last);
    if (c.last == 3) CHECK(record.best_validation == 1.5f);
  }
}

TEST_CASE("what was validated before the first step is a validation and nothing else") {
  test::TempDir dir;
  const float nan = std::nanf("");
  const std::string zero = to_json({.step = 0, .loss = nan, .grad_norm = nan, .val_loss = 2.f}) + "\n";
  RunRecord record;
  read_metrics(dir.write("metrics.jsonl", zero + to_json({.step = 1, .loss = 3, .val_loss = 2.5f}) + "\n"), record);
  CHECK(record.damaged_lines.empty());
  CHECK(record.best_step == 0);
  CHECK(record.last->step == 1);
  const json data = data_of(report_page(record, 0)), curves = data.at("curves");
  CHECK(curves.at("validation").at("step") == json{0, 1});
  CHECK(curves.at("validation").at("mean") == json{2, 2.5});
  CHECK(data.at("validation") == json{{"last", 2.5}, {"best", 2}, {"step", 0}});
  for (const char* curve : {"loss", "lr", "grad_norm", "tokens_per_s", "peak_bytes"})
    CHECK(curves.at(curve).at("step") == json{1});
  RunRecord before;
  read_metrics(dir.write("metrics.jsonl", zero), before);
  CHECK(data_of(report_page(before, 0)).at("validation").at("best") == 2);
  RunRecord twice;
  read_metrics(dir.write("metrics.jsonl", zero + zero), twice);
  CHECK(twice.damaged_lines == std::vector<std::int64_t>{2});
}

TEST_CASE("a report reads files of the run alone, and only as much as a run writes") {
  namespace fs = std::filesystem;
  test::TempDir dir;
  dir.write("zshard-run.txt", "zshard run 1\n");
  const std::string metrics = to_json({.step = 1, .loss = 3}) + "\n";
  const auto said = [&] { return test::coded_message_of([&] { read_run(dir.path()); }); };
  for (const std::string name : {"config.toml", "metrics.jsonl"}) {
    const std::string path = dir / name;
    const auto made = [&](const auto& make) {
      dir.write("config.toml", "name = \"n\"\n");
      dir.write("metrics.jsonl", metrics);
      CHECK(said().empty());
      fs::remove(path);
      make();
      const std::string line = said();
      INFO(line);
      CHECK(line.starts_with("65: a run's file cannot be read: "));
      CHECK(line.find(path) != line.npos);
      fs::remove(path);
    };
    made([&] { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); });
    made([&] { fs::create_symlink("/dev/zero", path); });
    made([&] { fs::create_symlink("/etc/passwd", path); });
    made([&] { fs::create_directory(path); });
    made([&] { fs::resize_file(dir.write(name, ""), std::uintmax_t{60} << 30); });
  }
  fs::create_symlink("a", dir / "b");
  fs::create_symlink("b", dir / "a");
  dir.write("metrics.jsonl", metrics);
  fs::create_symlink("a", dir / "model.safetensors");
  CHECK(said().empty());  // without a configuration, as of an older program
}

TEST_CASE("a record has what its lines say") {
  RunRecord record;
  record.add({.step = 1, .loss = 3, .grad_norm = 2, .step_ms = 500, .val_loss = 2.f, .peak_by_kind = {{"master", 64}}});
  record.add({.step = 2, .loss = std::nanf(""), .grad_norm = 7, .step_ms = 250, .val_loss = 1.f});
  record.add({.step = 3, .loss = 1, .grad_norm = 7, .step_ms = 250, .val_loss = 3.f});
  CHECK(data_of(report_page(record, 12))["norm"] == json{{"largest", 7}, {"step", 2}});
  CHECK(record.train_s == 1);
  CHECK(record.best_step == 2);
  CHECK(record.last_validation == 3);
  CHECK(record.kinds.at("master") == 64);
  const json data = data_of(report_page(record, 12));
  CHECK(data["curves"]["loss"]["mean"] == json::array({3, nullptr, 1}));
  CHECK(data["validation"]["best"] == 1);
  CHECK(data["written"] == 12);
  record.add({.step = 4, .grad_norm = std::nanf("")});
  record.add({.step = 5, .grad_norm = 9});
  CHECK(data_of(report_page(record, 12))["norm"] == json{{"largest", nullptr}, {"step", 4}});
}

TEST_CASE("figures of tasks, and loads of experts, are curves") {
  test::TempDir dir;
  StepMetrics one{.step = 1, .loss = 3, .tasks = {{"a/b", "acc", 0.25}, {"a/b", "acc_norm", 0.5}}};
  one.mixtures = {{.layer = 0, .most = 1.5f, .least = 0.5f, .entropy = 0.75f, .balance_loss = 1.25f},
                  {.layer = 1, .most = 1.25f, .least = 0.25f, .entropy = 0.875f, .balance_loss = 1.0f}};
  StepMetrics two{.step = 2, .loss = 2, .tasks = {{"a/b", "acc", 0.75}, {"c", "exact_match", 1}}};
  const std::string cut = R"({"layers": [0], "load_max": [], "load_min": [1], "load_entropy": [1]})";
  std::string bad = to_json({.step = 3, .loss = 1});
  bad.insert(bad.size() - 1, R"(, "experts": )" + cut);
  RunRecord record;
  read_metrics(dir.write("metrics.jsonl", to_json(one) + "\n" + to_json(two) + "\n" + bad + "\n"), record);
  CHECK(record.damaged_lines == std::vector<std::int64_t>{3});
  const json data = data_of(report_page(record, 0)), curves = data.at("curves");
  CHECK(data.at("tasks") == json{{"a/b", {"acc", "acc_norm"}}, {"c", {"exact_match"}}});
  CHECK(curves.at("task/a/b/acc").at("mean") == json{0.25, 0.75});
  CHECK(curves.at("task/c/exact_match").at("step") == json::array({2}));
  const std::pair<const char*, double> worst[] = {
      {"load_max", 1.5}, {"load_min", 0.25}, {"load_entropy", 0.75}, {"balance_loss", 1.125}};
  for (const auto& [curve, value] : worst) CHECK(curves.at(curve).at("mean") == json::array({value}));
}

TEST_CASE("no text of a run ends the script that it is in, or is taken for HTML") {
  RunRecord record;
  record.name = "a</title><b>&amp;";
  record.config_toml = "name = \"</script><script>alert(1)</script>\"\n# \xff\n<!--";
  const std::string page = report_page(record, 0);
  CHECK(data_of(page)["name"] == record.name);
  CHECK(data_of(page)["config"] == "name = \"</script><script>alert(1)</script>\"\n# \xef\xbf\xbd\n<!--");
  CHECK(page.find("alert(1)</script>") == page.npos);
  CHECK(page.find("</title><b>") == page.npos);
}

TEST_CASE("a page names no other place") {
  const std::string page = report_page(RunRecord{.name = "x"}, 0);
  for (const char* text : {"https:", "//cdn", "@import", "url(", "fetch(", "<img", "rel=\"style", " src="})
    CHECK(page.find(text) == page.npos);
  CHECK(page.find("http:") == page.rfind("http:"));  // the name of SVG, which nobody asks for
  CHECK(page.find("default-src 'none'") != page.npos);
}

TEST_CASE(
    "a report has the host's memory, what steps waited for data, and lost updates of groups and of all together") {
  test::TempDir dir;
  StepMetrics one{.step = 1, .host_bytes = 4096}, two{.step = 2, .data_wait_ms = 1500, .host_bytes = 8192};
  one.lost_updates = {{"*.bias", 10, 0.5, 1}, {"others", 30, 0.1, {}}};
  RunRecord record;
  read_metrics(dir.write("metrics.jsonl", to_json(one) + "\n" + to_json(two) + "\n"), record);
  const json data = data_of(report_page(record, 0));
  CHECK(data.at("curves").at("host_bytes").at("mean") == json{4096, 8192});
  CHECK(data.at("curves").at("data_wait_ms").at("mean") == json{0, 1500});
  CHECK(data.at("waits") == json{{"steps", 1}, {"seconds", 1.5}});
  CHECK(data.at("curves").at("lost_masters").at("step") == json{1});
  CHECK(data.at("curves").at("lost_masters").at("mean") == json{0.2});
  CHECK(data.at("curves").at("lost_copies").at("mean") == json{0.325});
  CHECK(data.at("lost_updates").at(0) == json{{"group", "*.bias"}, {"elements", 10}, {"f32", 0.5}, {"bf16", 1}});
}

}  // namespace report_test
