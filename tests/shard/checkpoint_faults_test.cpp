#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>

#include "model/train/session/session.h"
#include "runtime/base/random.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "tests/file_limit.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/file_watches.h"
#include "tests/shard/tiny_training.h"

namespace zs::test::checkpoint_faults_test {
namespace {

namespace fs = std::filesystem;

Config small_config() {
  Config config = tiny_config();
  config.model.layers = 1;
  return config;
}

/// One rank's share of a model in training, without steps: weights are fresh, moments zero.
class Model {
 public:
  explicit Model(World& world, const Config& config = small_config())
      : device_(Device::create(DeviceKind::cpu, {})),
        session_(*device_, world, config),
        state_{world, session_.runtime().executor(), session_.optimizer()} {}
  const TrainingState& state() const { return state_; }
  Session& session() { return session_; }

 private:
  std::unique_ptr<Device> device_;
  Session session_;
  TrainingState state_;
};

void on_ranks(int ranks, const std::function<void(World&)>& body) { run_local_world(ranks, {.timeout_s = 60}, body); }

/// Saves fresh weights as the given steps; the folder of the last.
std::string saved(const TempDir& root, int ranks, std::initializer_list<std::int64_t> steps = {1},
                  Config config = small_config()) {
  on_ranks(ranks, [&](World& world) {
    const Model model(world, config);
    for (const std::int64_t step : steps) save(model.state(), root.path(), {.step = step, .attributes = {}});
  });
  return step_folder(root.path(), *(steps.end() - 1));
}

/// The refusal of one process that reads all of a checkpoint; nothing when it is good.
std::optional<Error> refusal(const std::string& folder) {
  try {
    CheckpointReader(folder).verify();
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::checkpoint);
    return error;
  }
  return std::nullopt;
}

/// The error with which a collective ends, alike on all ranks.
Error agreed_error(int ranks, const std::function<void(World&)>& body) {
  std::mutex mutex;
  std::vector<Error> errors;
  on_ranks(ranks, [&](World& world) {
    try {
      body(world);
    } catch (const AgreedError& error) {
      const std::lock_guard lock(mutex);
      errors.push_back(error);
    }
  });
  REQUIRE(errors.size() == static_cast<std::size_t>(ranks));
  for (const Error& error : errors) CHECK(std::string(error.what()) == errors[0].what());
  return errors[0];
}

void corrupt(const std::string& path, const std::function<void(std::string&)>& change) {
  std::string bytes = read_file(path);
  change(bytes);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

TEST_CASE("P2, C2: a job killed at any point of a save leaves the old checkpoint or the new one, whole",
          "[checkpoint]") {
  int points = 0, committed = 0;
  for (bool goes_on = true; goes_on; ++points) {
    const TempDir root;
    saved(root, 2);
    Killed killed(points);
    on_ranks(2, [&](World& world) {
      const Model model(world);
      try {
        save(model.state(), root.path(), {.step = 2, .attributes = {}}, &killed);
      } catch (const AgreedError&) {
      }
    });
    goes_on = killed.was_reached();
    const auto steps = list_checkpoints(root.path());
    REQUIRE_FALSE(steps.empty());
    for (const std::int64_t step : steps) CHECK_FALSE(refusal(step_folder(root.path(), step)));
    committed += steps.back() == 2 ? 1 : 0;
    // The next start saves again, over what is left.
    if (steps.back() == 1) {
      saved(root, 2, {2});
      CHECK(list_checkpoints(root.path()).back() == 2);
    }
    prune_checkpoints(Folder::open(root.path()), 0);
    CHECK(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()) == 2);
  }
  CHECK(points > 15);
  CHECK(committed == 2);  // killed before the folder above is synced, and not at all
}

TEST_CASE("C1, C2: a disk that fails once voids that save on all ranks alike, and the next one succeeds",
          "[checkpoint]") {
  int points = 0;
  for (bool goes_on = true; goes_on; ++points) {
    const TempDir root;
    Failing failing(points);
    std::array<std::optional<Error>, 3> errors;
    std::vector<std::int64_t> after_failure;
    bool is_clean = false;
    on_ranks(3, [&](World& world) {
      const Model model(world);
      save(model.state(), root.path(), {.step = 1, .attributes = {}});
      try {
        save(model.state(), root.path(), {.step = 2, .attributes = {}}, &failing);
      } catch (const AgreedError& error) {
        errors[static_cast<std::size_t>(world.rank())] = error;
      }
      world.agree(0, "");
      if (world.rank() == 0) {
        after_failure = list_checkpoints(root.path());
        is_clean = !fs::exists(step_folder(root.path(), 2) + kWritingSuffix);
      }
      save(model.state(), root.path(), {.step = 3, .attributes = {}});
    });
    for (const auto& error : errors) {
      if (!error) continue;
      CHECK(error->code() == ExitCode::io);
      CHECK(error->what_to_do() == "injected");
    }
    CHECK(after_failure.front() == 1);
    CHECK(is_clean);
    goes_on = failing.was_reached();
    for (const std::int64_t step : list_checkpoints(root.path())) CHECK_FALSE(refusal(step_folder(root.path(), step)));
    CHECK(list_checkpoints(root.path()).back() == 3);
  }
  CHECK(points > 20);
}

TEST_CASE("C1: a file that may not grow further ends the save with the disk's own words", "[checkpoint]") {
  const TempDir root;
  saved(root, 2);
  const Error error = [&] {
    const FileLimit limit(20000);
    return agreed_error(2, [&](World& world) {
      const Model model(world);
      save(model.state(), root.path(), {.step = 2, .attributes = {}});
    });
  }();
  CHECK(error.code() == ExitCode::io);
  CHECK(error.what_happened().find("File too large") != std::string::npos);
  CHECK(error.where().ends_with("step-2.tmp/rank-0.bin"));
  CHECK(list_checkpoints(root.path()) == std::vector<std::int64_t>{1});
  CHECK(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("C10: nothing gets its final name before everything in it is on the disk", "[checkpoint]") {
  const TempDir root;
  Recording recording;
  on_ranks(3,
           [&](World& world) { save(Model(world).state(), root / "all", {.step = 7, .attributes = {}}, &recording); });
  const auto renamed = recording.find(FileOp::rename, "step-7.tmp"),
             manifest = recording.find(FileOp::create, "manifest.json");
  for (const char* file : {"rank-0.bin", "rank-1.bin", "rank-2.bin"}) {
    CHECK(recording.find(FileOp::create, file) < recording.find(FileOp::sync, file));
    CHECK(recording.find(FileOp::sync, file) < recording.find(FileOp::close, file));
    CHECK(recording.find(FileOp::close, file) < manifest);
  }
  CHECK(manifest < recording.find(FileOp::sync, "manifest.json"));
  CHECK(recording.find(FileOp::close, "manifest.json") < recording.find(FileOp::sync_folder, "step-7.tmp"));
  CHECK(recording.find(FileOp::sync_folder, "step-7.tmp") < renamed);
  CHECK(renamed < recording.find(FileOp::sync_folder, "/all"));
  CHECK(recording.find(FileOp::sync_folder, root.path()) < renamed);
  for (std::size_t i = 0; i < recording.ops.size(); ++i) {  // no write follows a file's sync
    if (recording.ops[i].first == FileOp::write)
      CHECK(static_cast<std::ptrdiff_t>(i) < recording.find(FileOp::sync, recording.ops[i].second));
  }
}

TEST_CASE("C3: a data file of any other length is refused", "[checkpoint]") {
  const TempDir root;
  const std::string folder = saved(root, 2), path = folder + "/rank-1.bin", whole = read_file(path);
  std::vector<std::size_t> sizes{0, 1, whole.size() - 1};
  for (std::size_t boundary = 512; boundary < whole.size(); boundary += 512)
    sizes.insert(sizes.end(), {boundary - 1, boundary, boundary + 1});
  for (const std::size_t size : sizes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    const auto error = refusal(folder);
    REQUIRE(error);
    REQUIRE(error->where() == path);
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << whole << '\0';
  CHECK(refusal(folder));
  std::ofstream(path, std::ios::binary | std::ios::trunc) << whole;
  CHECK_FALSE(refusal(folder));
}

TEST_CASE("C4: any flipped bit of a data file is found, and its place named", "[checkpoint]") {
  const TempDir root;
  const std::string folder = saved(root, 2), path = folder + "/rank-0.bin", whole = read_file(path);
  const CounterRng rng(3);
  std::string bytes = whole;
  std::vector<std::size_t> bits;
  for (std::size_t bit = 0; bit < 64 * 8; ++bit) bits.push_back(bit);                                // the header
  for (std::size_t bit = bytes.size() * 8 - 64; bit < bytes.size() * 8; ++bit) bits.push_back(bit);  // the table's end
  for (std::uint64_t i = 0; i < 3000; ++i) bits.push_back(rng.bits(i) % (bytes.size() * 8));
  for (const std::size_t bit : bits) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(bit / 8)).put(static_cast<char>(whole[bit / 8] ^ (1 << bit % 8)));
    file.close();
    const auto error = refusal(folder);
    REQUIRE(error);
    REQUIRE(error->where().starts_with(path + "@"));
    file.open(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(bit / 8)).put(whole[bit / 8]);
  }
  CHECK_FALSE(refusal(folder));
}

TEST_CASE("C4, C5: files of another rank, step or run, missing, extra or of another kind are refused", "[checkpoint]") {
  const TempDir root, other;
  const std::string folder = saved(root, 2, {1, 2});
  const std::string a = folder + "/rank-0.bin", b = folder + "/rank-1.bin", manifest = folder + "/manifest.json";
  const auto swap_in = [](const std::string& to, const std::string& from) {
    fs::remove_all(to);
    fs::copy_file(from, to);
  };
  Config config = small_config();
  config.train.seed = 99;
  const std::string foreign = saved(other, 2, {2}, config);
  const std::vector<std::function<void()>> faults = {
      [&] { fs::rename(a, a + "x"), fs::rename(b, a), fs::rename(a + "x", b); },
      [&] { swap_in(b, step_folder(root.path(), 1) + "/rank-1.bin"); },
      [&] { swap_in(b, foreign + "/rank-1.bin"); },
      [&] { swap_in(manifest, foreign + "/manifest.json"); },
      [&] { fs::remove(b); },
      [&] { fs::remove(manifest); },
      [&] { std::ofstream(manifest, std::ios::trunc); },
      [&] { std::ofstream(manifest, std::ios::trunc) << "latest"; },
      [&] { std::ofstream(folder + "/notes.txt") << "x"; },
      [&] { fs::remove(b), fs::create_directory(b); },
      [&] { fs::rename(b, root / "b"), fs::create_symlink(root / "b", b); },
      [&] { fs::remove(b), fs::create_symlink(root / "nowhere", b); },
      [&] { fs::remove(b), ::mkfifo(b.c_str(), 0644); },
  };
  const fs::path copy = root / "copy";
  fs::copy(folder, copy);
  for (std::size_t i = 0; i < faults.size(); ++i) {
    CAPTURE(i);
    faults[i]();
    CHECK(refusal(folder));
    fs::remove_all(folder);
    fs::copy(copy, folder);
  }
  CHECK_FALSE(refusal(folder));
  CHECK(refusal(root / "step-9"));
  CHECK(refusal(manifest));
}

TEST_CASE("C4: a damaged shard stops every rank of a load alike", "[checkpoint]") {
  const TempDir root;
  const std::string folder = saved(root, 4);
  corrupt(folder + "/rank-2.bin",
          [](std::string& bytes) { bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4); });
  const Error error = agreed_error(2, [&](World& world) { load(Model(world).state(), folder); });
  CHECK(error.code() == ExitCode::checkpoint);
  CHECK(error.what_happened().find("damaged") != std::string::npos);
  CHECK(error.where().starts_with(folder + "/rank-2.bin@"));
}

TEST_CASE("C7: parameters that are missing, new or of another shape are listed", "[checkpoint]") {
  const TempDir root;
  const std::string folder = saved(root, 2);
  Config more = small_config(), wider = small_config(), fewer = small_config();
  more.model.layers = 2;
  wider.model.width = 64;
  const Error missing = agreed_error(2, [&](World& world) { load(Model(world, more).state(), folder); });
  CHECK(missing.code() == ExitCode::checkpoint);
  CHECK(missing.what_happened().find("36 tensors differ") !=
        std::string::npos);  // 12 parameters of a block, three tensors each
  CHECK(missing.what_happened().find("is not saved") != std::string::npos);
  const Error shapes = agreed_error(2, [&](World& world) { load(Model(world, wider).state(), folder); });
  CHECK_THAT(shapes.what_happened(), Catch::Contains("(128, 32) there and (128, 64) here"));
  const TempDir two;
  const std::string larger = saved(two, 1, {1}, more);
  const Error extra = agreed_error(2, [&](World& world) { load(Model(world, fewer).state(), larger); });
  CHECK(extra.what_happened().find("is not in the model") != std::string::npos);
}

TEST_CASE("C12: pruning keeps the newest, and killed anywhere it leaves whole checkpoints only", "[checkpoint]") {
  const TempDir root;
  saved(root, 1, {1, 2, 3, 10});
  fs::create_directory(root / "step-11.tmp");
  fs::create_directory(root / "step-0x1");
  prune_checkpoints(Folder::open(root.path()), 0);
  CHECK(list_checkpoints(root.path()) == std::vector<std::int64_t>{1, 2, 3, 10});
  CHECK_FALSE(fs::exists(root / "step-11.tmp"));
  for (int at = 0, goes_on = 1; goes_on != 0; ++at) {
    Killed killed(at);
    try {
      prune_checkpoints(Folder::open(root.path()), 2, &killed);
    } catch (const std::runtime_error&) {
    }
    goes_on = killed.was_reached() ? 1 : 0;
    const auto steps = list_checkpoints(root.path());
    CHECK(steps.size() >= 2);
    for (const std::int64_t step : steps) CHECK_FALSE(refusal(step_folder(root.path(), step)));
  }
  CHECK(list_checkpoints(root.path()) == std::vector<std::int64_t>{3, 10});
  CHECK_FALSE(fs::exists(root / "step-1.del"));

  std::ofstream(root / "step-10/manifest.json", std::ios::app) << "x";
  CHECK_THROWS_AS(prune_checkpoints(Folder::open(root.path()), 1), Error);
  CHECK(list_checkpoints(root.path()) == std::vector<std::int64_t>{3, 10});
}

TEST_CASE("What a link leads to is not pruned: it may be another run's", "[checkpoint]") {
  const TempDir root, elsewhere;
  saved(elsewhere, 1, {1, 2});
  const std::string link = root / "checkpoints";
  fs::create_directory_symlink(elsewhere.path(), link);
  const auto code_of = [](auto remove) {
    try {
      remove();
    } catch (const Error& error) {
      return error.code();
    }
    return ExitCode::ok;
  };
  CHECK(code_of([&] { prune_checkpoints(Folder::open(link), 1); }) == ExitCode::cannot_create);
  CHECK(code_of([&] { remove_later_checkpoints(Folder::open(link), 1); }) == ExitCode::cannot_create);
  CHECK(list_checkpoints(elsewhere.path()) == std::vector<std::int64_t>{1, 2});
  prune_checkpoints(Folder::open(root / "nowhere"), 1);
}

TEST_CASE("C5: folders that are being written or removed are no checkpoints", "[checkpoint]") {
  const TempDir root;
  for (const char* name :
       {"step-3.tmp", "step-4.del", "step-", "step--1", "step-07", "step-5x", "latest", "step-99999999999999999999"})
    fs::create_directory(root / name);
  fs::create_directory(root / "step-2");
  CHECK(list_checkpoints(root.path()) == std::vector<std::int64_t>{2});
  CHECK(list_checkpoints(root / "nowhere").empty());
}

TEST_CASE("W1: a place that cannot be written ends the save alike on all ranks", "[checkpoint]") {
  const TempDir root;
  root.write("file", "x");
  for (const std::string& place : {root / "file", root / "none/below", std::string("/proc/zshard")}) {
    const Error error =
        agreed_error(2, [&](World& world) { save(Model(world).state(), place, {.step = 1, .attributes = {}}); });
    CAPTURE(place);
    CHECK(error.code() == ExitCode::cannot_create);
    CHECK(error.where() == place);
  }
  saved(root, 2);
  const Error error =
      agreed_error(2, [&](World& world) { save(Model(world).state(), root.path(), {.step = 1, .attributes = {}}); });
  CHECK(error.code() == ExitCode::cannot_create);
  CHECK_FALSE(refusal(step_folder(root.path(), 1)));
}

TEST_CASE("N1: values that are not finite are never saved", "[checkpoint]") {
  const TempDir root;
  const int ranks = 2;
  const Error error = agreed_error(ranks, [&](World& world) {
    Model model(world);
    model.state().executor.context().device().synchronize();
    if (world.rank() == 1)
      model.state().executor.units()[0].master_buffer().as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    save(model.state(), root.path(), {.step = 1, .attributes = {}});
  });
  CHECK(error.code() == ExitCode::non_finite);
  CHECK(root.entries() == 0);
}

}  // namespace zs::test::checkpoint_faults_test
