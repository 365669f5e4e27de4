// Muon: whole matrices made orthogonal, however they are sharded.
#include "runtime/shard/optimizers/muon.h"

#include <catch2/catch.hpp>

#include <numeric>

#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/optimizers/matrix_exchange.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/optimizer_run.h"

namespace zs::test::muon_test {
namespace {

using Catch::Contains;
using Matrix = std::vector<double>;

/// The head is AdamW's, as in most models.
const MuonConfig kMuon{.matrices = {"*.weight"}, .eps = 1e-4f, .clip = 0, .order_free = true};

/// x' y (m, n), of x (k, m) and y (k, n), or x y' of x (m, k) and y (n, k).
Matrix product(const Matrix& x, const Matrix& y, std::size_t m, std::size_t n, std::size_t k, bool has_columns) {
  Matrix out(m * n);
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t l = 0; l < k; ++l)
        out[i * n + j] += has_columns ? x[l * m + i] * y[l * n + j] : x[i * k + l] * y[j * k + l];
  return out;
}

/// Five steps of X := a X + (b A + c A A) X, A = X X', from X / |X|, always with the rows as they are.
Matrix orthogonal(Matrix x, std::size_t rows, std::size_t cols) {
  double squares = 0;
  for (const double one : x) squares += one * one;
  for (double& one : x) one /= std::sqrt(squares) + 1e-7;
  for (int step = 0; step < 5; ++step) {
    const Matrix gram = product(x, x, rows, rows, cols, false),
                 square = product(gram, gram, rows, rows, rows, false);  // it is symmetric
    Matrix factor(rows * rows);
    for (std::size_t i = 0; i < factor.size(); ++i) factor[i] = -4.7750 * gram[i] + 2.0315 * square[i];
    const Matrix moved = product(factor, x, rows, cols, rows, true);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + moved[i];
  }
  return x;
}

/// Muon's step from g, or from what it goes by instead: each of the parameter's matrices orthogonal; 0 in padding.
Matrix orthogonal_matrices(const Matrix& x, const FlatView& view) {
  const auto cols = static_cast<std::size_t>(view.shape[1]);
  Matrix out(x.size());
  std::size_t first = 0;
  for (const std::int64_t count : view.matrix_rows.empty() ? std::vector{view.shape[0]} : view.matrix_rows) {
    const auto rows = static_cast<std::size_t>(count);
    const auto begin = static_cast<std::ptrdiff_t>(first * cols),
               end = static_cast<std::ptrdiff_t>((first + rows) * cols);
    Matrix own = orthogonal(Matrix(x.begin() + begin, x.begin() + end), rows, cols);
    for (double& one : own) one *= 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
    std::copy(own.begin(), own.end(), out.begin() + begin);
    first += rows;
  }
  return out;
}

/// True if an element of the parameter is of one of its matrices.
bool is_updated(std::size_t element, const FlatView& view) {
  const auto rows = std::accumulate(view.matrix_rows.begin(), view.matrix_rows.end(), std::int64_t{0});
  return rows == 0 || static_cast<std::int64_t>(element) < rows * view.shape[1];
}

ParameterRule rule_of(const MuonConfig& config) {
  return [config](std::vector<Element>& elements, const float* grad, const FlatView& view, int step) {
    const auto b1 = static_cast<double>(config.beta1), b2 = static_cast<double>(config.beta2),
               eps = static_cast<double>(config.eps), momentum = static_cast<double>(config.momentum);
    const double decay = view.has_decay ? static_cast<double>(config.weight_decay) : 0;
    const bool is_muons = view.name.ends_with(".weight");
    Matrix x(elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) {
      Element& element = elements[i];
      const auto g = static_cast<double>(grad[i]);
      element.m = is_muons ? momentum * element.m + g : b1 * element.m + (1 - b1) * g;
      element.v = b2 * element.v + (1 - b2) * g * g;
      const double m = element.m / (1 - std::pow(b1, step)), v = element.v / (1 - std::pow(b2, step));
      x[i] = is_muons ? (config.nesterov ? g + momentum * element.m : element.m) : m / (std::sqrt(v) + eps);
    }
    if (is_muons) x = orthogonal_matrices(x, view);
    for (std::size_t i = 0; i < elements.size(); ++i)
      if (!is_muons || is_updated(i, view)) elements[i].w -= kLr * (x[i] + decay * elements[i].w);
  };
}

}  // namespace

TEST_CASE("20 steps of Muon are those of plain arithmetic, in every strategy and layout") {
  // f32; the iteration enlarges what is rounded in the smallest singular values by some hundreds
  constexpr double kTolerance = 1e-3;
  check_everywhere(maker_of<Muon>(kMuon), rule_of(kMuon), kTolerance);
  MuonConfig plain = kMuon;
  plain.nesterov = false;
  const Make make = maker_of<Muon>(plain);
  const Arrays trained = on_ranks(2, [&](World& world) {
    Run run(world, {}, make);
    for (int step = 1; step <= 20; ++step) run.step(step);
    return run.weights();
  })[0];
  CHECK(distance(trained, by_formula(make, rule_of(plain), 20, 4)) < kTolerance);
}

TEST_CASE("Muon trains to the same bits in every scheme and layout, at any number of ranks, in bf16 too") {
  const DType param = GENERATE(DType::f32, DType::bf16);
  const Make make = maker_of<Muon>(kMuon);
  const Arrays one = on_ranks(1, [&](World& world) { return train(world, {}, make, param); })[0];
  for (const std::string& name : scheme_names()) {
    CAPTURE(name, name_of(param));
    CHECK(on_ranks(4, [&](World& world) { return train(world, scheme_of(name, 4), make, param); })[3] == one);
  }
  const LayoutOptions columns{.layout = Layout::per_parameter,
                              .dim = [](auto, const Shape& shape) { return shape.rank() - 1; }};
  CHECK(on_ranks(4, [&](World& world) {
          Run run(world, {}, make, param, columns);
          for (int step = 1; step <= 3; ++step) run.step(step);
          return run.weights();
        })[3] == one);
}

TEST_CASE("what Muon adds is orthogonal, up to its length") {
  const auto world = make_single_world({.timeout_s = 60});
  MuonConfig config = kMuon;
  config.weight_decay = 0;
  Run run(*world, {}, maker_of<Muon>(config));
  const Arrays before = run.weights();
  run.step(1);
  const Arrays after = run.weights();  // head, layer0.weight ...
  for (const std::size_t parameter : {1U, 3U, 5U}) {
    double squares = 0;
    for (std::size_t i = 0; i < before[parameter].size(); ++i)
      squares += std::pow(static_cast<double>(after[parameter][i]) - static_cast<double>(before[parameter][i]), 2);
    // Each singular value is about 1, those that are next to nothing aside: at most sqrt(width) times its length.
    const double length = std::sqrt(squares) / (kLr * 0.2 * std::sqrt(kChainWidth));
    CHECK(length > 1);
    CHECK(length < 1.2 * std::sqrt(kChainWidth));
  }
}

TEST_CASE("Muon's state is saved by name, without a second moment of matrices, and goes on at other ranks") {
  const Make make = maker_of<Muon>(kMuon);
  const auto go = [&](int ranks, const std::string& scheme, int first, int last, const LayoutOptions& layout,
                      const std::string& folder) {
    return on_ranks(ranks, [&](World& world) {
      Run run(world, scheme_of(scheme, ranks), make, DType::f32, layout);
      const TrainingState state{world, run.runtime.executor(), *run.optimizer};
      if (first > 1) load(state, folder + "/step-2");
      for (int step = first; step <= last; ++step) run.step(step);
      if (first == 1 && !folder.empty()) save(state, folder, {.step = last, .attributes = {}});
      return run.weights();
    });
  };
  const TempDir folder;
  const LayoutOptions rows{.layout = Layout::per_parameter};
  const Arrays expected = go(1, "zero3", 1, 4, {}, "")[0];
  go(4, "hsdp", 1, 2, {}, folder.path());
  CHECK(go(2, "zero3", 3, 4, rows, folder.path())[1] == expected);
  CHECK(go(1, "zero3", 3, 4, {}, folder.path())[0] == expected);
  const CheckpointReader reader(folder.path() + "/step-2");
  CHECK(reader.find("layer0.weight", "muon.m"));
  CHECK_FALSE(reader.find("layer0.weight", "muon.v"));
  CHECK(reader.find("layer0.bias", "muon.v"));
  CHECK(reader.find("head", "muon.v"));
}

TEST_CASE("Muon's state by name is whole on one rank, and comes back from it, wherever it is kept") {
  const TempDir disk;
  Residence residence;
  SECTION("on the device") {}
  SECTION("in memory of the host") { residence.has_moments_on_host = true; }
  SECTION("on a disk") { residence.has_moments_on_host = true, residence.moments_disk = disk.path(); }
  const auto results = on_ranks(3, [&](World& world) {
    Run run(world, scheme_of("zero3", 3), maker_of<Muon>(kMuon), DType::f32, {}, residence);
    Run other(world, scheme_of("zero3", 3), maker_of<Muon>(kMuon), DType::f32, {}, residence);
    run.samples = other.samples = 3;
    for (int step = 1; step <= 2; ++step) run.step(step);
    const TrainingState state{world, run.runtime.executor(), *run.optimizer};
    const StateByName whole = state_by_name(state, {.whole = true, .on_host = true, .only_rank = 1});
    const bool is_named = whole.find("layer1.weight", "muon.m") != nullptr &&
                          whole.find("layer1.weight", "muon.v") == nullptr &&
                          whole.find("layer1.bias", "muon.v") != nullptr;
    load_by_name({world, other.runtime.executor(), *other.optimizer}, whole, {.only_rank = 1});
    for (int step = 3; step <= 4; ++step) run.step(step), other.step(step);
    return std::pair(is_named, run.weights() == other.weights());
  });
  for (const auto& [is_named, is_same] : results) {
    CHECK(is_named);
    CHECK(is_same);
  }
}

TEST_CASE("a rank whose parameter is made of other matrices is named before anything is exchanged") {
  const auto messages = on_ranks(2, [](World& world) {
    ChainRun run(world, {}, [&](Chain& chain, ShardedRuntime& runtime) {
      chain.layers[0]->weight.set_matrix_rows({world.rank() == 0 ? 4 : 5, 5});
      shard_module(chain, runtime, Units::block);
    });
    return message_of([&] {
      run.micro_batch(0);
      run.optimizer->step(0.1f);
      run.device->synchronize();
    });
  });
  for (const std::string& message : messages)
    CHECK_THAT(message, Contains("layer0") && Contains("names and shapes of its parameters"));
}

TEST_CASE("costs are balanced: the largest first, each to whom has the least") {
  CHECK(balanced({}, 3).empty());
  CHECK(balanced({1, 2, 3}, 1) == std::vector{0, 0, 0});
  CHECK(balanced({1, 4, 2, 3}, 2) == std::vector{0, 0, 1, 1});
  CHECK(balanced({5, 5, 5}, 8) == std::vector{0, 1, 2});
}

TEST_CASE("wrong options of Muon are errors that name them, and so are patterns without a matrix") {
  const auto world = make_single_world({.timeout_s = 60});
  const auto problem = [&](const MuonConfig& config) {
    return message_of([&] { Run run(*world, {}, maker_of<Muon>(config)); });
  };
  CHECK_THAT(problem({.momentum = 1}), Contains("Muon: a momentum of 1"));
  CHECK_THAT(problem({.momentum = 0}), Contains("nesterov without a momentum"));
  CHECK_THAT(problem({.beta2 = -1}), Contains("Muon: a beta2 of -1"));
  CHECK_THAT(problem({.matrices = {"*.weight", "*.bias"}}), Contains("no matrix has a name of \"*.bias\""));
}

}  // namespace zs::test::muon_test
