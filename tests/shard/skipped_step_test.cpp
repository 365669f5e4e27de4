// Steps that update nothing, and weights that are not those which are trained.
#include <catch2/catch.hpp>

#include <limits>

#include "runtime/base/usage_error.h"
#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/optimizers/adamw.h"
#include "runtime/shard/optimizers/adamw8bit.h"
#include "runtime/shard/optimizers/lion.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/optimizers/schedule_free.h"
#include "runtime/shard/optimizers/sgd.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/optimizer_run.h"
#include "tests/stderr_of.h"

namespace zs::test::skipped_step_test {
namespace {

using Catch::Contains;

enum class Bad { nothing, nan, failure };

/// A step that leaves the weights alone.
void bad_step(Run& run, Bad bad) {
  run.runtime.begin_micro_batch(Mode::train, true);
  backward(run.model.loss(chain_input(run.context, 99), chain_targets(run.context)),
           bad == Bad::nan ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
  run.runtime.end_micro_batch();
  if (bad == Bad::failure)
    run.context.launch({"fails", {}, {}}, [](ExecContext&) { throw Error(ExitCode::io, "no disk"); });
  run.optimizer->step(static_cast<float>(kLr), 1);
  if (bad == Bad::failure && message_of([&] { run.device->synchronize(); }).empty()) throw std::logic_error("no error");
  if (bad == Bad::failure) run.runtime.abandon_step();
}

struct Outcome {
  Arrays weights, average;
  std::vector<std::int64_t> updates;
  bool operator==(const Outcome&) const = default;
};

/// Five steps, and behind the first `before` of them a bad one.
Outcome outcome_of(World& world, const Make& make, Bad bad, int before) {
  Run run(world, scheme_of("zero3", world.size()), make);
  run.model.layers[0]->bias.set_trainable(false);  // from the third step on
  for (int step = 1; step <= 5; ++step) {
    if (bad != Bad::nothing && step == before + 1) bad_step(run, bad);
    if (step == 3) run.model.layers[0]->bias.set_trainable(true);
    run.step(step);
  }
  Outcome outcome{.weights = run.weights(), .average = {}, .updates = {}};
  for (const auto& unit : run.optimizer->counts().read())
    for (const UpdateCount& count : unit) outcome.updates.push_back(static_cast<std::int64_t>(count.updates));
  if (run.optimizer->has_average()) run.optimizer->swap_average();
  outcome.average = run.weights();
  return outcome;
}

const std::vector<std::pair<const char*, Make>> kMakes = {
    {"adamw", maker_of<AdamW>(AdamWConfig{.groups = {{"*.bias", 2}}, .average = 0.5f})},
    {"adamw8bit", maker_of<AdamW8bit>(AdamWConfig{.average = 0.5f})},
    {"lion", maker_of<Lion>(LionConfig{.average = 0.5f})},
    {"muon", maker_of<Muon>(MuonConfig{.average = 0.5f})},
    {"schedule-free", maker_of<ScheduleFreeAdamW>(ScheduleFreeConfig{})},
    {"sgd", maker_of<Sgd>(SgdConfig{.momentum = 0.9f, .average = 0.75f})}};

}  // namespace

TEST_CASE("a step that is skipped, or fails, is no update: the bits are those of a run without it") {
  const int ranks = GENERATE(1, 2);
  for (const auto& [name, make] : kMakes) {
    const auto run = [&, &maker = make](Bad bad, int before) {
      std::vector<Outcome> outcomes;
      stderr_of(
          [&] { outcomes = on_ranks(ranks, [&](World& world) { return outcome_of(world, maker, bad, before); }); });
      return outcomes;
    };
    const std::vector<Outcome> expected = run(Bad::nothing, 0);
    CHECK(std::count(expected[0].updates.begin(), expected[0].updates.end(), 3) == 1);
    for (const Bad bad : {Bad::nan, Bad::failure}) {
      for (const int before : {0, 1, 3}) {
        CAPTURE(name, ranks, static_cast<int>(bad), before);
        const std::vector<Outcome> found = run(bad, before);
        CHECK(found[0].updates == expected[0].updates);
        CHECK((found == expected));
      }
    }
  }
}

TEST_CASE("what trains, saves or loads weights is refused while an average is in their place, and works behind it") {
  const TempDir folder;
  const Make make =
      GENERATE(maker_of<Sgd>(SgdConfig{.average = 0.5f}), maker_of<ScheduleFreeAdamW>(ScheduleFreeConfig{}));
  const auto said = on_ranks(2, [&](World& world) {
    Run run(world, {}, make);
    const TrainingState state{world, run.runtime.executor(), *run.optimizer};
    run.step(1);
    const std::string saved = save(state, folder.path() + "/first", {.step = 1});
    run.optimizer->swap_average();
    std::vector<std::string> messages = {
        message_of([&] { run.runtime.begin_micro_batch(Mode::train, true); }),
        message_of([&] { run.optimizer->set_scalars(0.1f, 2); }),
        message_of([&] { save(state, folder.path(), {.step = 1}); }),
        message_of([&] { load(state, saved); }),
        message_of([&] { load_weights(world, run.runtime.executor(), saved); }),
        message_of([&] { state_by_name(state, {.with_optimizer = false}); }),
        message_of([&] { load_by_name(state, {}, {.strict = false, .with_optimizer = false}); })};
    run.runtime.begin_micro_batch(Mode::eval, true);
    run.model.loss(chain_input(run.context, 1), chain_targets(run.context));
    run.runtime.end_micro_batch();
    run.optimizer->swap_average();
    load(state, saved);
    run.step(2);
    return messages;
  });
  for (const auto& messages : said)
    for (const std::string& message : messages)
      CHECK_THAT(message, Contains("while the average of ") && Contains("is in the place of the weights") &&
                              Contains("swap_average()"));
}

}  // namespace zs::test::skipped_step_test
