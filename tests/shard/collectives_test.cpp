#include "runtime/shard/collectives/collectives.h"

#include <catch2/catch.hpp>

#include <functional>

#include "runtime/tensor/arithmetic.h"
#include "runtime/tensor/reduction.h"
#include "tests/shard/chain_model.h"

namespace zs::test::collectives_test {
namespace {

using Floats = std::vector<float>;
constexpr int kRanks = 3;

struct Result {
  Floats value, gradient;
};

/// f of (2, 2) integers that differ by rank, and the gradient of the sum of the results times 1, 2, 3 ..., which on
/// ranks that each have a loss of their own is once more times rank + 1.
std::vector<Result> of_ranks(bool has_own_loss, const std::function<Tensor(Communicator&, const Tensor&)>& f) {
  return on_ranks(kRanks, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    const auto ranks = world.communicator();
    const auto by = static_cast<float>(world.rank() + 1);
    Tensor x = Tensor::from_host(context, {2, 2}, Floats{by, 2 * by, 3 * by, 4 * by});
    x.set_requires_grad();
    const Tensor y = f(*ranks, x);
    Floats weights(static_cast<std::size_t>(y.numel()));
    for (std::size_t i = 0; i < weights.size(); ++i)
      weights[i] = static_cast<float>(i + 1) * (has_own_loss ? by : 1.0f);
    backward(sum(y * Tensor::from_host(context, y.shape(), weights)));
    device->synchronize();
    return Result{y.to_host(), x.grad().to_host()};
  });
}

}  // namespace

TEST_CASE("a mean over ranks hands back the mean of what their losses gave") {
  for (const auto& [value, gradient] :
       of_ranks(true, [](auto&ranks, const Tensor&x) { return mean_over_ranks(ranks, x * 3.0f); })) {
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(value[i] == Approx(6.0f * static_cast<float>(i + 1)));
      CHECK(gradient[i] == Approx(6.0f * static_cast<float>(i + 1)));
    }
  }
}

TEST_CASE("a sum of parts hands its gradient to each part, and an input of parts sums theirs") {
  for (const auto& [value, gradient] :
       of_ranks(false, [](auto&ranks, const Tensor&x) { return sum_of_parts(ranks, x); })) {
    CHECK(value == Floats{6, 12, 18, 24});
    CHECK(gradient == Floats{1, 2, 3, 4});
  }
  const auto inputs = of_ranks(true, [](auto& ranks, const Tensor& x) { return input_of_parts(ranks, x); });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& [value, gradient] = inputs[static_cast<std::size_t>(rank)];
    CHECK(value[3] == 4 * static_cast<float>(rank + 1));  // as it was
    CHECK(gradient == Floats{6, 12, 18, 24});
  }
}

TEST_CASE("tensors of the ranks lie one after the other along a dim, and each gets its part of the gradient") {
  const auto rows = of_ranks(false, [](auto& ranks, const Tensor& x) { return concat_over_ranks(ranks, x); });
  const auto columns = of_ranks(false, [](auto& ranks, const Tensor& x) { return concat_over_ranks(ranks, x, 1); });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const auto first = static_cast<float>(4 * rank), column = static_cast<float>(2 * rank);
    CHECK(rows[at].value == Floats{1, 2, 3, 4, 2, 4, 6, 8, 3, 6, 9, 12});
    CHECK(rows[at].gradient == Floats{first + 1, first + 2, first + 3, first + 4});
    CHECK(columns[at].value == Floats{1, 2, 2, 4, 3, 6, 3, 4, 6, 8, 9, 12});
    CHECK(columns[at].gradient == Floats{column + 1, column + 2, column + 7, column + 8});
  }
}

TEST_CASE("what all ranks gather hands each rank the sum of what their losses gave for its part") {
  const auto rows = of_ranks(true, [](auto& ranks, const Tensor& x) { return all_gather(ranks, x); });
  const auto columns = of_ranks(true, [](auto& ranks, const Tensor& x) { return all_gather(ranks, x, 1); });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const auto first = static_cast<float>(4 * rank), column = static_cast<float>(2 * rank);
    CHECK(rows[at].value == Floats{1, 2, 3, 4, 2, 4, 6, 8, 3, 6, 9, 12});
    // The ranks' losses weigh 1, 2 and 3 times the element's number
    CHECK(rows[at].gradient == Floats{6 * (first + 1), 6 * (first + 2), 6 * (first + 3), 6 * (first + 4)});
    CHECK(columns[at].value == Floats{1, 2, 2, 4, 3, 6, 3, 4, 6, 8, 9, 12});
    CHECK(columns[at].gradient == Floats{6 * (column + 1), 6 * (column + 2), 6 * (column + 7), 6 * (column + 8)});
  }
}

}  // namespace zs::test::collectives_test
