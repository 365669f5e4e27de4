// Training with masters and the optimizer's state on a disk; with what Muon and moments of 8 bits need, in the host's
// memory too.
#include <algorithm>

#include "runtime/shard/checkpoint/checkpoint.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/residence_run.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/spoiled_file.h"
#include "tests/skip.h"

namespace zs::test::disk_residence_test {
namespace {

struct Kept {
  std::string host, disk;
};

/// In every scheme, of one after the other.
void check_schemes(const std::string& optimizer, int ranks, const std::vector<Kept>& all) {
  const TempDir dir;
  for_each_scheme(trained_by(tiny_config(), optimizer), ranks, 1, [&](Config config, std::size_t number) {
    if (is_thinned_out()) return;
    const auto& [host, disk] = all[(number - 1) % all.size()];
    const bool is_narrow = host == "weights" || disk.starts_with("weights") || number % 2 == 0;
    config.precision.param = is_narrow ? "bf16" : "f32";
    Config kept = with_disk(with_host(config, host), disk, dir / "state");
    kept.offload.resident_units = {.value = static_cast<std::int64_t>(number % 2)};
    config.train.deterministic = kept.train.deterministic = true;  // else squares are added up in the order of units
    check_alike(config, kept, {.ranks = ranks, .steps = 3});
    CHECK(dir.entries() <= 1);  // the folder, in which no file has a name
  });
}

/// The most bytes of a kind that are live at once.
std::int64_t most_live(const TrainPlan& plan, const std::string& label) {
  std::vector<PlannedBuffer> buffers;
  std::copy_if(plan.buffers.begin(), plan.buffers.end(), std::back_inserter(buffers),
               [&](const PlannedBuffer& buffer) { return buffer.label == label; });
  return live_bytes_at(buffers, peak_moment(buffers));
}

std::int64_t bytes_at_peak(const TrainPlan& plan, const std::string& kind) {
  const auto found = plan.at_peak.find(kind);
  return found == plan.at_peak.end() ? 0 : found->second;
}

}  // namespace

TEST_CASE("what a disk keeps changes no bit, in every scheme and layout, in the memory of the plan",
          "[disk_residence]") {
  check_schemes("adamw", GENERATE(1, 2, 4),
                {{"gradients", "weights and moments"},
                 {"", "moments"},
                 {"weights", "moments"},
                 {"", "weights and moments"},
                 {"moments", "weights"}});
}

TEST_CASE(
    "3-26: what the host or a disk keeps of Muon's and of 8-bit AdamW's changes no bit, in every scheme and layout, in "
    "the memory of the plan",
    "[disk_residence]") {
  const std::string optimizer = GENERATE(as<std::string>{}, "muon", "adamw8bit");
  check_schemes(optimizer, GENERATE(1, 2, 3, 4),
                {{"moments", ""},
                 {"weights, gradients and moments", ""},
                 {"", "moments"},
                 {"gradients", ""},
                 {"gradients", "weights and moments"},
                 {"weights and moments", ""},
                 {"weights", ""}});
}

TEST_CASE("3-26: of the state that the host keeps an update has two units' on the device, and one unit's matrices") {
  const std::string optimizer = GENERATE(as<std::string>{}, "muon", "adamw8bit");
  const int ranks = GENERATE(1, 2);
  CAPTURE(optimizer, ranks);
  Config config = trained_by(tiny_config(), optimizer);
  config.model.layers = 12;
  config.precision.param = "bf16";
  const TrainPlan usual = make_plan(config, 0, ranks),
                  plan = make_plan(with_host(config, "weights and moments"), 0, ranks);
  config.model.layers = 3;
  const TrainPlan shallow = make_plan(with_host(config, "weights and moments"), 0, ranks);
  const std::int64_t masters = bytes_at_peak(usual, "master"), moments = bytes_at_peak(usual, "moments");
  CHECK(plan.host_by_kind == std::map<std::string, std::int64_t>{{"master", masters}, {"moments", moments}});
  CHECK(bytes_at_peak(plan, "master") + bytes_at_peak(plan, "moments") == 0);
  std::map<std::string, std::int64_t> windows;
  for (const PlannedBuffer& buffer : plan.buffers) {
    if (buffer.label == "host_window") windows[buffer.owner] += buffer.bytes;
    if (buffer.label == "matrix") CHECK(buffer.owner.starts_with("blocks."));
  }
  REQUIRE(windows.size() == plan.units.size());
  std::int64_t largest = 0, all = 0;
  for (const auto& [unit, bytes] : windows) largest = std::max(largest, bytes), all += bytes;
  CHECK(all == masters + moments);
  CHECK(most_live(plan, "host_window") == 2 * largest);  // of two blocks
  CHECK(6 * 2 * largest < all + 2 * largest);
  for (const char* const kind : {"host_window", "matrix", "scales"})
    CHECK(most_live(plan, kind) == most_live(shallow, kind));
  // Of 4 matrices of a block, and what the products of its largest take.
  constexpr std::int64_t kWidth = 32, kMatrices = 12 * kWidth * kWidth, kLargest = 4 * kWidth * kWidth;
  const std::int64_t matrices = most_live(plan, "matrix"), scales = most_live(plan, "scales");
  if (optimizer == "muon" && ranks == 1) CHECK(matrices == 4 * (kMatrices + kLargest + 2 * kWidth * kWidth) + 64);
  CHECK((optimizer == "muon" ? 6 * matrices < most_live(usual, "matrix") : matrices == 0));
  CHECK((optimizer == "muon" ? scales == 0 : 6 * scales < most_live(usual, "scales")));
}

TEST_CASE("a disk has what was planned, and the host's memory two units' windows", "[disk_residence]") {
  Config config = tiny_config();
  config.precision.param = "bf16";
  const TrainPlan usual = make_plan(config, 0, 2);
  const TrainPlan plan = make_plan(with_disk(config, "weights and moments", "/nowhere"), 0, 2);
  std::int64_t masters = 0, largest = 0, extents = 0;
  for (const TrainPlan::Unit& unit : usual.units) {
    const std::int64_t bytes = unit.layout->held_elems() * size_of(DType::f32);
    masters += bytes;
    largest = std::max(largest, bytes);
    extents += 3;
  }
  const std::int64_t on_disk = plan.disk_bytes.at("/nowhere");
  CHECK(on_disk >= 3 * masters);
  CHECK(on_disk < 3 * masters + extents * 4096);
  CHECK(usual.persistent_bytes - plan.persistent_bytes == 3 * masters - kMarks);
  CHECK(plan.host_bytes == 0);
  CHECK(plan.pinned_bytes >= 3 * largest);
  CHECK(plan.pinned_bytes <= 7 * largest);  // two windows, and the gaps that smaller units leave between them
  CHECK(usual.disk_bytes.empty());
  config.offload.weights = "disk:/a";
  config.offload.moments = "disk:/b";
  const TrainPlan two = make_plan(config, 0, 2);
  CHECK(two.disk_bytes.size() == 2);
  CHECK(two.disk_bytes.at("/b") > two.disk_bytes.at("/a"));
}

TEST_CASE("a disk that loses what was written ends the run, in one line, and a checkpoint goes on",
          "[disk_residence]") {
  const std::string fault = GENERATE(as<std::string>{}, "shortened", "changed");
  const TempDir dir, checkpoints;
  Config config = tiny_config();
  config.precision.param = "bf16";
  const TinyResult usual = train_tiny(config, {.steps = 3});
  const Config kept = with_disk(config, "weights and moments", dir / "state");
  const auto world = make_single_world({.timeout_s = 60});
  const auto device = make_plan(kept, {}).create_device({.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  std::string saved, message;
  {
    Session session(*device, *world, kept);
    const TrainingState state{*world, session.runtime().executor(), session.optimizer()};
    const auto step = [&](std::int64_t number) {
      session.enqueue_step(number, 1e-2f, tiny_samples(kept), false);
      session.finish_step();
      device->synchronize();
    };
    step(1);
    saved = save(state, checkpoints.path(), {.step = 1});
    spoil_file_of(dir / "state", fault);
    message = message_of([&] {
      for (const std::int64_t number : {2, 3}) step(number);  // an update may be left for the next forward
    });
    CHECK_THROWS_AS(save(state, checkpoints.path(), {.step = 2}), Error);
  }
  CHECK_THAT(message, Catch::Contains("reading the state that the disk keeps failed at byte ") &&
                          Catch::Contains(fault == "changed" ? "it is not what was written" : "has become shorter") &&
                          Catch::Contains(dir / "state") && Catch::Contains("go on from the last checkpoint"));
  CHECK(train_tiny(kept, {.steps = 3, .resume = saved}).weights == usual.weights);
}

}  // namespace zs::test::disk_residence_test
