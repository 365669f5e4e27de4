// Experts that are dealt over ranks, against one rank that has all of them.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/message_of.h"
#include "tests/model/dealt_run.h"

namespace zs::test::dealt_experts_test {

using namespace dealt;
namespace {

struct Found {
  std::vector<double> seen;
  std::vector<float> records;
  Weights weights;
  double distance = 0;
};

std::vector<Found> run(const Job& job, const Weights* whole = nullptr, int steps = 5) {
  return on_ranks(job.ranks, [&](World& world) {
    Run own(world, job);
    Found found{.seen = own.train(steps), .records = own.records(), .weights = {}, .distance = 0};
    whole != nullptr ? found.distance = own.distance(*whole) : (found.weights = own.whole_weights(), 0.0);
    return found;
  });
}

/// `job` over ranks does what it does on `ranks` of them, which have all experts, but for the order of sums in f32.
void check_alike(const Job& job, int ranks, int steps = 5) {
  Job all = job;
  all.ranks = ranks;
  all.axes = {.efsdp = ranks};
  const Found alone = run(all, nullptr, steps).front();
  CAPTURE(job.ranks, job.axes.ep, job.axes.efsdp, job.axes.edp, job.dispatcher, job.load, alone.seen);
  for (const Found& found : run(job, &alone.weights, steps)) {
    CAPTURE(found.seen);
    CHECK(found.distance < 1e-5);
    REQUIRE(found.seen.size() == alone.seen.size());
    for (std::size_t i = 0; i < alone.seen.size(); ++i) CHECK(found.seen[i] == Approx(alone.seen[i]).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("3-2, 3-15, 3-42: dealt experts train as those of one rank, sharded and in replicas") {
  for (const Dispatcher dispatcher : kBoth)
    for (const Axes& axes : {Axes{1, 4, 1}, Axes{2, 2, 1}, Axes{4, 1, 1}, Axes{2, 1, 2}, Axes{1, 1, 4}})
      if (axes.ep > 1 || dispatcher == kBoth[0])
        check_alike({.ranks = kRanks, .axes = axes, .dispatcher = dispatcher}, 1);
}

TEST_CASE("3-15: dealt experts are sharded on their second dim, also where its size does not divide") {
  for (const Axes& axes : {Axes{1, 4, 1}, Axes{2, 2, 1}})
    check_alike({.ranks = kRanks, .axes = axes, .has_bias = true, .is_cut_on_second_dim = true}, 1, 2);
}

TEST_CASE("a mean gradient of dealt experts is divided by all ranks, whose tokens they have seen") {
  for (const Axes& axes : {Axes{2, 2, 1}, Axes{4, 1, 1}, Axes{2, 1, 2}})
    check_alike({.ranks = kRanks, .axes = axes, .has_mean = true}, 1, 2);
}

TEST_CASE("experts with biases, and with a gate that is clamped, are dealt as well") {
  for (const Dispatcher dispatcher : kBoth)
    check_alike({.ranks = 2,
                 .axes = {.ep = 2},
                 .dispatcher = dispatcher,
                 .has_bias = true,
                 .activation = Activation::clamped_swiglu},
                1);
}

TEST_CASE("a rank that gets all tokens, one that gets none, and an expert without any train as one rank's") {
  for (const Dispatcher dispatcher : kBoth)
    for (const Load load : {Load::first_alone, Load::first_two})
      check_alike({.ranks = kRanks, .axes = {.ep = 4}, .dispatcher = dispatcher, .load = load}, 1);
}

TEST_CASE(
    "the balance loss of dealt experts is of all ranks' tokens, and a block that is computed again takes it once") {
  for (const Dispatcher dispatcher : kBoth) {
    Job job{.ranks = kRanks, .axes = {.ep = 2, .efsdp = 2}, .dispatcher = dispatcher, .balance_loss = 0.3f};
    check_alike(job, kRanks);
    const std::vector<Found> kept = run(job);
    job.recompute = Recompute::block;
    const std::vector<Found> again = run(job);
    for (std::size_t rank = 0; rank < kept.size(); ++rank) {
      CHECK(again[rank].seen == kept[rank].seen);
      CHECK(again[rank].weights == kept[rank].weights);
      CHECK(again[rank].records == kept[rank].records);
    }
  }
}

TEST_CASE("3-25, 3-43: the norm has every dealt expert once, whichever its power, also where all are frozen") {
  for (const float power : {1.0f, std::numeric_limits<float>::infinity()})
    check_alike({.ranks = kRanks, .axes = {.ep = 2, .edp = 2}, .power = power}, 1, 2);
  check_alike({.ranks = kRanks, .axes = {.ep = 2, .efsdp = 2}, .is_frozen = true}, 1);
}

TEST_CASE("replicas of dealt experts have the same bits, and bf16 ones train") {
  const std::vector<Found> found = run({.ranks = kRanks, .axes = {.ep = 2, .edp = 2}, .is_bf16 = true}, nullptr, 10);
  for (std::size_t rank = 0; rank < 2; ++rank) CHECK(found[rank].weights == found[rank + 2].weights);
  CHECK(found[0].weights != found[1].weights);
  CHECK(found[0].seen.back() < found[0].seen.front());
}

TEST_CASE("dealt experts with adapters are a usage error") {
  const Job job{.ranks = 2, .axes = {.ep = 2}, .has_adapters = true};
  for (const std::string& said :
       on_ranks(2, [&](World& world) { return message_of([&] { Run(world, job).train(1); }); }))
    CHECK_THAT(said, Catch::Contains("blocks.0.mlp.experts are dealt over axis ep, and have adapters"));
}

}  // namespace zs::test::dealt_experts_test
