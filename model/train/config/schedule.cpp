#include "model/train/config/schedule.h"

#include "runtime/shard/optimizers/lr_schedule.h"

namespace zs {
namespace {

LrSchedule schedule_of(const Config::Train& train) {
  return {.shape = lr_shape_of(train.schedule),
          .lr = train.lr,
          .steps = train.steps,
          .warmup = train.warmup,
          .min_lr_ratio = train.min_lr_ratio,
          .decay = train.decay};
}

}  // namespace

std::int64_t wsd_decay_steps(const Config::Train& train) { return schedule_of(train).decay_steps(); }

double learning_rate(const Config::Train& train, std::int64_t step) { return schedule_of(train).at(step); }

}  // namespace zs
