// What a use does, step by step, with the events before its steps.
#include <cmath>
#include <limits>
#include <stdexcept>

#include "tests/fuzz/random_use.h"

namespace zs::test {
namespace {

float evaluate(UseTrainer& trainer, int step) {
  const bool has_average = trainer.optimizer->has_average();
  if (has_average) trainer.optimizer->swap_average();
  float value = 0;
  {
    const auto evaluation = trainer.model->evaluation();
    value = item(trainer.loss(step, 0));
  }
  if (has_average) trainer.optimizer->swap_average();
  return value;
}

std::unique_ptr<UseTrainer> reloaded(std::unique_ptr<UseTrainer> trainer) {
  Job& job = trainer->job;
  const Use use = trainer->use;
  const std::string saved = save(trainer->state(), trainer->fresh_folder("reloaded"), {.step = 1});
  trainer.reset();
  trainer = std::make_unique<UseTrainer>(job, use);
  load(trainer->state(), saved);
  return trainer;
}

void edit(UseTrainer& trainer) {
  Piece& piece = trainer.net->pieces[trainer.use.target];
  if (parameter_count(piece) == 0) return;
  const UnshardScope scope(trainer.model->runtime(), piece);
  for_each_parameter(piece, [&](Parameter& parameter) {
    const Buffer value = scope.value(parameter);
    trainer.job.context.launch({"edit", {value}, {value}}, [value](ExecContext&) {
      for (std::int64_t i = 0; i < value.elems; ++i) value.as<float>()[i] *= 0.5f;
    });
  });
}

void fail(UseTrainer& trainer) {
  try {
    auto micro_batch = trainer.model->micro_batch({.last = false});
    const Tensor loss = trainer.loss(0, trainer.job.rank());
    throw std::runtime_error("an exception of every rank");
  } catch (const std::runtime_error&) {
  }
  trainer.model->runtime().abandon_step();
}

void skip(UseTrainer& trainer, int step) {
  trainer.accumulate(step, std::numeric_limits<float>::quiet_NaN());
  trainer.optimizer->step(0.02f);
}

void pass_by_name(UseTrainer& trainer) {
  const bool is_plain = trainer.optimizer->has_plain_state();  // else weights alone
  const StateByName state = state_by_name(trainer.state(), {.whole = true, .with_optimizer = is_plain});
  if (is_plain) load_by_name(trainer.state(), state);
}

}  // namespace

Outcome run_use(Job& job, const Use& use) {
  auto trainer = std::make_unique<UseTrainer>(job, use);
  Outcome outcome;
  for (int step = 1; step <= use.steps; ++step) {
    const Event event = step == 1 ? Event::none : use.events[static_cast<std::size_t>(step) - 2];
    Piece& piece = trainer->net->pieces[use.target];
    switch (event) {
      case Event::none: break;
      case Event::evaluation: outcome.evaluations.push_back(evaluate(*trainer, step)); break;
      case Event::freeze: set_trainable(piece, false); break;
      case Event::thaw: set_trainable(piece, true); break;
      case Event::reload: trainer = reloaded(std::move(trainer)); break;
      case Event::edit: edit(*trainer); break;
      case Event::failed: fail(*trainer); break;
      case Event::skipped:
        if (!use.is_in_backward) skip(*trainer, step);
        break;
      case Event::by_hand:
        trainer->model->runtime().unshard(0).wait();
        trainer->model->runtime().reshard(0);
        break;
      case Event::by_name: pass_by_name(*trainer); break;
    }
    trainer->step(step);
  }
  outcome.evaluations.push_back(evaluate(*trainer, 0));
  outcome.weights = trainer->weights();
  return outcome;
}

}  // namespace zs::test
