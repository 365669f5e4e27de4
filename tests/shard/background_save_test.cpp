#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <limits>
#include <map>
#include <stdexcept>
#include <thread>

#include "model/train/plan/plan.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"
#include "runtime/shard/checkpoint/checkpoint_save.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/file_watches.h"
#include "tests/shard/scheme_cases.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::background_save_test {
namespace {

namespace fs = std::filesystem;

Config small_config() {
  Config config = tiny_config();
  config.model.layers = 1;
  config.train.global_batch = 12;
  config.checkpoint.every = 1;
  config.checkpoint.background = true;
  return config;
}

/// One rank of a training whose saves go on in the background.
class Model {
 public:
  Model(World& world, const Config& config)
      : config_(config),
        plan_(make_plan(config_, {.rank = world.rank(), .ranks = world.size()})),
        device_(plan_.create_device({.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        session_(*device_, world, config_),
        state_{world, session_.runtime().executor(), session_.optimizer()} {
    plan_.apply_order(session_.runtime());
  }
  StepResult step(std::int64_t number) {
    session_.enqueue_step(number, 1e-2f, tiny_samples(config_), 0);
    return session_.finish_step();
  }
  std::unique_ptr<BackgroundSave> save_in_background(const std::string& root, std::int64_t step,
                                                     FileWatch* watch = nullptr) {
    return std::make_unique<BackgroundSave>(state_, root, CheckpointInfo{.step = step, .attributes = {{"a", "b"}}},
                                            watch, session_.save_memory());
  }
  const TrainingState& state() const { return state_; }
  const TrainPlan& plan() const { return plan_; }

 private:
  Config config_;
  TrainPlan plan_;
  std::unique_ptr<Device> device_;
  Session session_;
  TrainingState state_;
};

void on_ranks(int ranks, const std::function<void(World&)>& body) { run_local_world(ranks, {.timeout_s = 60}, body); }

/// As CHECK, on any rank's thread.
void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(fmt::format("not so: {}", what));
}

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files[fs::relative(entry.path(), folder)] = read_file(entry.path());
  return files;
}

std::vector<std::string> names(const TempDir& root) {
  std::vector<std::string> found = names_in(root.path());
  std::sort(found.begin(), found.end());
  return found;
}

/// Holds every write until it is let go; one that waits for too long fails.
class Held final : public FileWatch {
 public:
  void before(FileOp op, const std::string&) override {
    if (op != FileOp::write) return;
    if (go_.wait_for(std::chrono::seconds(30)) != std::future_status::ready) throw std::runtime_error("never let go");
  }
  void let_go() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> go_ = promise_.get_future().share();
};

}  // namespace

TEST_CASE("a save in the background writes the files of one that blocks", "[background]") {
  const int ranks = GENERATE(1, 3, 4);
  Config config = small_config();
  choose_scheme(config, scheme_of(ranks == 4 ? "hsdp" : "zero3", ranks));
  choose_layout(config, ranks == 3 ? "small whole" : "flat");
  if (ranks == 1) config.precision.param = "bf16", config.offload.weights = config.offload.moments = "host";
  const TempDir blocking, background;
  on_ranks(ranks, [&](World& world) {
    Model model(world, config);
    model.step(1);
    save(model.state(), blocking.path(), {.step = 1, .attributes = {{"a", "b"}}});
    model.save_in_background(background.path(), 1)->finish();
  });
  CHECK(files_in(blocking.path()) == files_in(background.path()));
  CHECK(files_in(blocking.path()).size() == static_cast<std::size_t>(ranks) + 1);
}

TEST_CASE("I2: steps go on while a thread writes what was there before them", "[background]") {
  const Config config = small_config();
  const TempDir root;
  Held held;
  on_ranks(2, [&](World& world) {
    Model model(world, config);
    model.step(1);
    const auto save = model.save_in_background(root.path(), 1, &held);
    model.step(2);  // with a save that blocks it would never begin
    expect(save->is_writing(), "it is still written");
    model.step(3);
    world.agree(0, "");
    if (world.rank() == 0) {
      expect(names(root) == std::vector<std::string>{"step-1.tmp"}, "nothing is committed");
      held.let_go();
    }
    expect(save->finish() == step_folder(root.path(), 1), "it is there");
    expect(!save->is_writing(), "nobody writes");
  });
  CHECK(names(root) == std::vector<std::string>{"step-1"});
  const TinyResult usual = train_tiny(config, {.ranks = 2});
  CHECK(train_tiny(config, {.ranks = 2, .resume = step_folder(root.path(), 1)}).weights == usual.weights);
}

TEST_CASE("the copy is in the plan, and is counted", "[background]") {
  Config config = small_config();
  const TrainPlan plan = make_plan(config, 0, 2);
  std::int64_t elems = 0;
  for (const TrainPlan::Unit& unit : plan.units) elems += unit.layout->held_elems();
  CHECK(plan.host_by_kind == std::map<std::string, std::int64_t>{{"checkpoint", Pool::rounded(3 * 4 * elems)}});
  on_ranks(2, [&](World& world) {
    Model model(world, config);
    expect(model.step(1).host_bytes == plan.host_bytes, "the counted bytes are those of the plan");
  });
  config.checkpoint.background = false;
  CHECK(make_plan(config, 0, 2).host_bytes == 0);
}

TEST_CASE("a disk that fails a save in the background fails it on every rank, and leaves the one before",
          "[background]") {
  for (int at = 0;; ++at) {
    const TempDir root;
    Failing failing(at);
    on_ranks(2, [&](World& world) {
      Model model(world, small_config());
      save(model.state(), root.path(), {.step = 1, .attributes = {}});
      try {
        model.save_in_background(root.path(), 2, &failing)->finish();
      } catch (const AgreedError& error) {
        expect(error.what_to_do() == "injected", "it is the disk's error");
      }
      model.step(1);  // the group is in good order
    });
    const bool has_failed = failing.was_reached();
    CAPTURE(at);
    if (names(root) != std::vector<std::string>{"step-1", "step-2"})
      CHECK(names(root) == std::vector<std::string>{"step-1"});
    if (!has_failed) {
      CHECK(at > 10);
      CHECK(names(root).size() == 2);
      break;
    }
  }
}

TEST_CASE("a job that dies anywhere in a save in the background leaves the checkpoint before", "[background]") {
  for (int at = 0;; ++at) {
    const TempDir root;
    Killed killed(at);
    on_ranks(2, [&](World& world) {
      Model model(world, small_config());
      save(model.state(), root.path(), {.step = 1, .attributes = {}});
      try {
        model.save_in_background(root.path(), 2, &killed)->finish();
      } catch (const AgreedError&) {
      }
      expect(load(model.state(), step_folder(root.path(), 1)).step == 1, "step 1 is whole");
    });
    CAPTURE(at);
    const std::vector<std::string> left = names(root);
    CHECK(left.front() == "step-1");
    if (std::find(left.begin(), left.end(), "step-2") != left.end())
      on_ranks(1, [&](World& world) { CHECK(load(Model(world, small_config()).state(), root / "step-2").step == 2); });
    if (!killed.was_reached()) break;
    REQUIRE(at < 100);
  }
}

TEST_CASE("a save in the background that nobody finishes is none, and the next one removes what it left",
          "[background]") {
  const TempDir root;
  Held held;
  on_ranks(1, [&](World& world) {
    Model model(world, small_config());
    auto dropped = model.save_in_background(root.path(), 1, &held);
    std::thread later([&] { held.let_go(); });
    dropped.reset();
    later.join();
    CHECK(names(root) == std::vector<std::string>{"step-1.tmp"});
    model.save_in_background(root.path(), 1)->finish();
    CHECK(names(root) == std::vector<std::string>{"step-1"});
  });
}

TEST_CASE("what is not finite is refused before anything goes on", "[background]") {
  const TempDir root;
  on_ranks(2, [&](World& world) {
    Model model(world, small_config());
    model.state().executor.context().device().synchronize();
    if (world.rank() == 1)
      model.state().executor.units()[0].master_buffer().as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    try {
      model.save_in_background(root.path(), 1);
      expect(false, "it is refused");
    } catch (const AgreedError& error) {
      expect(error.what_happened().ends_with("is not finite and will not be saved"), "it says why");
    }
  });
  CHECK(names(root).empty());
}

}  // namespace zs::test::background_save_test
