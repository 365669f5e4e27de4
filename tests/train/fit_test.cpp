// What fits: every row is a plan of its own, within every limit, and the largest of its kind.
#include "model/train/plan/fit.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "model/train/plan/fit_settings.h"
#include "tests/message_of.h"
#include "tests/train/config_text.h"

namespace fit_test {

using namespace zs;
using namespace zs::test;
using Catch::Contains;

namespace {

FitRequest request(Overrides overrides, std::int64_t bytes, int ranks = 2) {
  const Overrides sizes = {
      "model.layers=3",        "model.width=64",         "model.heads=2",      "model.context=128",
      "train.sequence=64",     "train.global_batch=16",  "device=cpu",         "run.sample_tokens=0",
      "run.validate_every=10", "run.validate_batches=8", "shard.zero_copy=off"};
  overrides.insert(overrides.begin(), sizes.begin(), sizes.end());
  const Config config = parse_config(kSmall, "small.toml", overrides);
  FitRequest asked{{config, {.ranks = ranks}, ranks}, {{bytes, false, "90 % of physical memory"}}, {}};
  add_offload_budgets(config, asked.budgets);
  asked.tokens = {10000, 1000};
  return asked;
}

/// As a dry run with the row's settings plans.
TrainPlan dry_run(const FitRow& row) {
  Config config = row.demand.config;
  const std::int64_t windows = 999 / config.train.sequence;
  limit_validation(config, windows);
  PlanOptions options = row.demand.plan;
  options.validation_windows = windows;
  return make_plan(config, options);
}

const FitRow* find(const std::vector<FitRow>& rows, const std::vector<std::string>& changes) {
  for (const FitRow& row : rows)
    if (row.changes == changes) return &row;
  return nullptr;
}

std::string read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("every row is planned as a dry run plans it, within the limits, the largest first and of its kind") {
  const FitRequest asked = request({"train.micro_batch=2"}, 16 << 20);
  const std::vector<FitRow> rows = find_fits(asked);
  REQUIRE(rows.size() > 4);
  std::int64_t tokens = std::numeric_limits<std::int64_t>::max();
  for (const FitRow& row : rows) {
    const Config::Train& train = row.demand.config.train;
    CAPTURE(row.changes);
    const TrainPlan plan = dry_run(row);
    CHECK(row.bytes.device == plan.rank_bytes().device);
    CHECK(row.bytes.host == plan.rank_bytes().host);
    CHECK(row.peak_bytes == plan.step_peak_bytes);
    CHECK(row.share == Approx(2.0 * static_cast<double>(row.bytes.device) / (16 << 20)));
    CHECK(row.share <= 1);
    CHECK(train.micro_batch * train.sequence <= tokens);
    tokens = train.micro_batch * train.sequence;
    if (train.micro_batch == 8) continue;  // all that a rank has
    FitRow larger = row;
    larger.demand.config.train.micro_batch *= 2;
    CHECK(2 * dry_run(larger).reserved_bytes > 16 << 20);
  }
  CHECK(rows.front().share > 0.5);
}

TEST_CASE("the configured setting is in the table, and the nearest changes no more than the micro-batch") {
  const std::vector<FitRow> rows = find_fits(request({"train.recompute=block", "shard.strategy=zero2"}, 1 << 30));
  const FitRow& chosen = rows[nearest(rows)];
  CHECK(chosen.changes == std::vector<std::string>{"train.micro_batch=8"});
  CHECK(chosen.demand.config.shard.strategy == "zero2");
  CHECK(
      find(rows, {"train.micro_batch=8", "train.sequence=128", "train.recompute=\"none\"", "shard.strategy=\"ddp\""}));
  CHECK(rows.front().demand.config.train.sequence == 128);
}

TEST_CASE("the host keeps more where the device's own memory is short, and sequences are as long as the data allows") {
  FitRequest asked = request({"precision.param=bf16", "offload.device_mib=2"}, 1 << 30);
  asked.tokens = {10000, 100};
  const std::vector<FitRow> rows = find_fits(asked);
  REQUIRE_FALSE(rows.empty());
  bool is_kept = false;
  for (const FitRow& row : rows) {
    is_kept |= row.demand.config.offload.uses_host();
    CHECK(row.bytes.device <= 2 << 20);
    CHECK(row.demand.config.offload.uses_host() == (row.bytes.host > 0));
    CHECK(row.demand.config.train.sequence <= 64);
  }
  CHECK(is_kept);
  asked.tokens.reset();
  for (const FitRow& row : find_fits(asked)) CHECK(row.demand.config.train.sequence == 64);
}

TEST_CASE("what accumulates goes to the host, too, where gradients are reduced once a step") {
  FitRequest asked =
      request({"shard.reduce_every_micro_batch=false", "offload.device_mib=100", "model.layers=12"}, 1 << 30);
  FitRow least{.demand = asked.demand, .bytes = {}};
  Config& config = least.demand.config;
  config.train.micro_batch = 4;
  config.train.recompute = {"block"};
  for (std::string* const place : {&config.offload.weights, &config.offload.gradients, &config.offload.accumulator,
                                   &config.offload.moments, &config.offload.activations})
    *place = "host";
  const std::int64_t bytes = dry_run(least).rank_bytes().device;
  asked.budgets = {{bytes, true, "offload.device_mib", MemoryBudget::Of::device, true}};
  bool is_kept = false;
  for (const FitRow& row : find_fits(asked)) {
    if (row.demand.config.offload.accumulator != "host") continue;
    is_kept = true;
    CAPTURE(row.changes);
    CHECK(row.bytes.device <= bytes);
    CHECK(dry_run(row).rank_bytes().device == row.bytes.device);
    CHECK(dry_run(row).rank_bytes().host == row.bytes.host);
  }
  CHECK(is_kept);
}

TEST_CASE("what moves elsewhere stays on the device for as many units as fit, and goes to a disk that is named") {
  const auto rows_of = [](const Overrides& more, int device_mib) {
    Overrides all = {"precision.param=bf16", "model.layers=6", "train.recompute=block"};
    all.insert(all.end(), more.begin(), more.end());
    all.push_back(fmt::format("offload.device_mib={}", device_mib));
    return find_fits(request(all, 1 << 30));
  };
  bool is_partly = false;
  for (const FitRow& row : rows_of({}, 3)) {
    const Config::Offload& offload = row.demand.config.offload;
    is_partly |= offload.resident_units.value > 0 && offload.has_any();
    CHECK_FALSE(offload.has_disk());
    if (!offload.has_any()) CHECK(offload.resident_units.value == 0);
    if (!offload.has_any()) continue;
    CAPTURE(row.changes);
    CHECK(dry_run(row).rank_bytes().device == row.bytes.device);
    FitRow more = row;
    ++more.demand.config.offload.resident_units.value;
    CHECK(dry_run(more).rank_bytes().device > 3 << 20);
  }
  CHECK(is_partly);
  const std::vector<FitRow> on_disk = rows_of({"offload.moments=disk:/nowhere", "offload.host_mib=1"}, 3);
  REQUIRE_FALSE(on_disk.empty());
  CHECK(std::any_of(on_disk.begin(), on_disk.end(),
                    [](const FitRow& row) { return row.demand.config.offload.moments == "disk:/nowhere"; }));
  for (const FitRow& row : on_disk) CHECK(row.bytes.host <= 1 << 20);
}

TEST_CASE("settings are those that a file with them could have") {
  const auto count = [](const Overrides& overrides, int ranks, const auto& is_counted) {
    const std::vector<FitSetting> settings = fit_settings(request(overrides, 1, ranks).demand);
    CHECK(std::count_if(settings.begin(), settings.end(), [](const auto& one) { return one.is_configured; }) == 1);
    return std::count_if(settings.begin(), settings.end(), is_counted);
  };
  const auto all = [](const FitSetting&) { return true; };
  const auto keeps_masters = [](const FitSetting& one) { return one.config.offload.weights == "host"; };
  CHECK(count({}, 1, all) == 3);
  CHECK(count({}, 2, all) == 3 * 4);
  CHECK(count({"shard.strategy=hsdp", "shard.group_size=1"}, 2, all) == 3);
  CHECK(count({"offload.device_mib=1"}, 1, all) == 4 * 4);  // nothing, moments, masters, gradients
  CHECK(count({"offload.device_mib=1"}, 1, keeps_masters) == 2 * 4);
  CHECK(count({"offload.device_mib=1", "precision.param=bf16"}, 1, keeps_masters) == 2 * 4);
  CHECK(count({"offload.device_mib=1", "train.optimizer=muon"}, 1, keeps_masters) == 2 * 4);
  CHECK(count({"offload.device_mib=1", "train.average=0.5"}, 1, all) == 4);
  const auto updates = [](const FitSetting& one) { return one.config.offload.update == "host"; };
  const Overrides updated = {"offload.device_mib=1", "offload.weights=host", "offload.gradients=host",
                             "offload.moments=host", "offload.update=host"};
  CHECK(count(updated, 1, all) == 4 * 4);
  CHECK(count(updated, 1, updates) == 4);
  CHECK(count(updated, 2, updates) == 4 * 4 + 4);  // zero1's, with what accumulates on the device or the host
  const auto accumulates = [](const FitSetting& one) { return one.config.offload.accumulator == "host"; };
  CHECK(count({"offload.device_mib=1"}, 1, accumulates) == 0);
  CHECK(count({"offload.device_mib=1"}, 2, accumulates) == 4);  // zero1
  CHECK(count({"offload.device_mib=1"}, 2, all) == 4 * 4 * 4 + 4);
  CHECK(count({"offload.device_mib=1", "train.deterministic=true"}, 2, accumulates) == 4);  // ddp
  CHECK(count({"offload.device_mib=1", "shard.reduce_every_micro_batch=false"}, 2, accumulates) == 2 * 4);
  const auto uses_disk = [](const FitSetting& one) { return one.config.offload.has_disk(); };
  CHECK(count({"offload.moments=disk:/x"}, 1, all) == 3 * 2);  // nothing, moments
  CHECK(count({"offload.moments=disk:/x", "precision.param=bf16"}, 1, uses_disk) == 3 * 2);
  CHECK(count({"offload.device_mib=1", "precision.param=bf16"}, 1, uses_disk) == 0);
}

TEST_CASE("where ranks do not divide the batch each has a micro-batch, and all have one size") {
  const std::vector<FitRow> rows = find_fits(request({}, 1 << 30, 3));  // of a batch of 16
  REQUIRE_FALSE(rows.empty());
  for (const FitRow& row : rows) CHECK(row.demand.config.train.micro_batch == 4);
}

TEST_CASE("where nothing fits there is no row") { CHECK(find_fits(request({}, 1 << 16)).empty()); }

TEST_CASE("the table marks the chosen row and says what it changes and takes") {
  const FitRequest asked = request({}, 16 << 20);
  const std::vector<FitRow> rows = find_fits(asked);
  const std::string text = describe(rows, nearest(rows), asked);
  for (const char* line :
       {"what fits, largest first", "\n* ", "90 % of physical memory", "chosen (*): set train.micro_batch="})
    CHECK_THAT(text, Contains(line));
  CHECK(std::count(text.begin(), text.end(), '*') == 2);
}

TEST_CASE("a file of a setting reads back as it is, and takes no place but its own") {
  const std::vector<FitRow> rows = find_fits(request({}, 16 << 20));
  const FitRow& row = rows.front();
  const std::string path = "fit_test.toml", text = to_toml(row.demand.config);
  std::filesystem::remove(path);
  write_fit(path, row, text);
  CHECK(load_config(path) == row.demand.config);
  CHECK_NOTHROW(write_fit(path, row, to_toml(rows.back().demand.config)));
  CHECK(load_config(path) == rows.back().demand.config);
  const std::string changed = read(path) + "# mine\n";
  std::ofstream(path) << changed;
  CHECK_THAT(message_of([&] { write_fit(path, row, text); }), Contains("not as the same option writes it"));
  std::ofstream(path) << "# a note\n";
  CHECK_THROWS_AS(check_fit_file(path, ""), Error);
  CHECK(read(path) == "# a note\n");
  std::filesystem::remove(path);
  std::filesystem::create_symlink("nowhere", path);
  CHECK_THROWS_AS(check_fit_file(path, ""), Error);
  std::filesystem::remove(path);
}

}  // namespace fit_test
