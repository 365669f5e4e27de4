#include "model/train/config/schedule.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace schedule_test {

using namespace zs;

namespace {

Config::Train make(const std::string& schedule) {
  Config::Train train;
  train.steps = 100;
  train.warmup = 20;
  train.lr = 2.0;
  train.min_lr_ratio = 0.1;
  train.decay = 0.2;
  train.schedule = schedule;
  return train;
}

}  // namespace

TEST_CASE("every schedule warms up linearly to the peak") {
  const auto schedule = GENERATE(as<std::string>(), "cosine", "linear", "constant", "wsd");
  const Config::Train train = make(schedule);
  CHECK(learning_rate(train, 0) == Approx(0.1));
  CHECK(learning_rate(train, 9) == Approx(1.0));
  CHECK(learning_rate(train, 19) == 2.0);
  CHECK(learning_rate(train, 20) == 2.0);
}

TEST_CASE("cosine passes its hand-computed points") {
  const Config::Train train = make("cosine");
  CHECK(learning_rate(train, 40) == Approx(2.0 * (0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5)))));  // x = 1/4
  CHECK(learning_rate(train, 60) == Approx(1.1));                                             // x = 1/2
  CHECK(learning_rate(train, 80) == Approx(2.0 * (0.1 + 0.9 * 0.5 * (1 - std::sqrt(0.5)))));  // x = 3/4
  CHECK(learning_rate(train, 99) == Approx(0.2 + 0.0006938).epsilon(1e-4));  // 0.9 (1 + cos(79/80 pi)) = 0.00069388
}

TEST_CASE("linear falls evenly towards the minimum") {
  const Config::Train train = make("linear");
  CHECK(learning_rate(train, 40) == Approx(1.55));
  CHECK(learning_rate(train, 60) == Approx(1.1));
  CHECK(learning_rate(train, 99) == Approx(0.2 + 1.8 / 80));
}

TEST_CASE("constant stays at the peak") { CHECK(learning_rate(make("constant"), 99) == 2.0); }

TEST_CASE("wsd stays at the peak until its decay and falls with the square root") {
  const Config::Train train = make("wsd");
  CHECK(learning_rate(train, 79) == 2.0);
  CHECK(learning_rate(train, 80) == Approx(2.0 * (0.1 + 0.9 * (1 - std::sqrt(0.05)))));
  CHECK(learning_rate(train, 84) == Approx(1.1));  // sqrt(5/20) = 1/2
  CHECK(learning_rate(train, 98) == Approx(2.0 * (0.1 + 0.9 * (1 - std::sqrt(0.95)))));
  CHECK(learning_rate(train, 99) == Approx(0.2));
}

TEST_CASE("wsd decays for as many steps as its part of all steps is, however that is written in binary") {
  Config::Train train = make("wsd");
  train.warmup = 0;
  const auto [decay, steps, wanted] = GENERATE(table<double, std::int64_t, std::int64_t>({{0.29, 100, 29},
                                                                                          {0.57, 100, 57},
                                                                                          {0.1, 1'000'000, 100'000},
                                                                                          {0.7, 10, 7},
                                                                                          {0.2, 7, 1},
                                                                                          {1.0, 10, 10},
                                                                                          {0.001, 10, 1}}));
  train.decay = decay, train.steps = steps;
  CAPTURE(decay, steps);
  CHECK(wsd_decay_steps(train) == wanted);
  if (wanted < steps) CHECK(learning_rate(train, steps - wanted - 1) == train.lr);
  CHECK(learning_rate(train, steps - wanted) < train.lr);
  CHECK(learning_rate(train, steps - 1) == Approx(train.lr * train.min_lr_ratio));
}

TEST_CASE("extreme settings stay finite") {
  for (const char* schedule : {"cosine", "linear", "constant", "wsd"}) {
    Config::Train train = make(schedule);
    train.warmup = 0;
    CHECK(learning_rate(train, 0) == 2.0);
    train.warmup = train.steps;  // nothing but warm-up
    CHECK(learning_rate(train, 99) == 2.0);
    CHECK(learning_rate(train, 100) == 2.0);
    train.warmup = 400;  // the run ends within its warm-up
    CHECK(learning_rate(train, 99) == Approx(0.5));
    train.steps = 1, train.warmup = 0, train.decay = 1;
    CHECK(learning_rate(train, 0) == Approx(train.schedule == "wsd" ? 0.2 : 2.0));
    train.decay = 1e-9;
    CHECK(std::isfinite(learning_rate(train, 5)));
  }
}

}  // namespace schedule_test
