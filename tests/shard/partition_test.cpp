// Units whose parameters are cut over an axis of the job's grid, against one rank that has them whole.
#include "runtime/shard/placement/partition.h"

#include <catch2/catch.hpp>

#include <cmath>
#include <functional>

#include "model/sharding/fully_shard.h"
#include "runtime/shard/checkpoint/checkpoint.h"
#include "runtime/shard/checkpoint/state_by_name.h"
#include "runtime/shard/collectives/collectives.h"
#include "runtime/shard/optimizers/muon.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/host_view.h"
#include "runtime/tensor/layout.h"
#include "tests/message_of.h"
#include "tests/model/temp_dir.h"
#include "tests/shard/chain_model.h"
#include "tests/shard/named_weights.h"

namespace zs::test::partition_test {
namespace {

using Catch::Contains;

constexpr std::int64_t kHidden = 12;

/// Grid of a job, and the axis of it that layers are cut over; empty: none.
struct Cut {
  std::vector<GridAxis> grid = {};
  std::string axis = {};
  bool reads_data() const {
    for (const GridAxis& of_grid : grid)
      if (of_grid.name == axis) return of_grid.reads_data;
    return false;
  }
};

/// Sum over ranks that each have a loss of their own, as experts return what they made of everybody's tokens.
Tensor sum_of_shares(Communicator& ranks, const Tensor& x) {
  const auto sum_of = [&ranks](const Tensor& part) {
    const NoGradGuard no_grad(part.context());
    Tensor sum = part * 1.0f;
    ranks.all_reduce(part.context().stream(), "shares", sum.buffer(), ReduceOp::sum);
    return sum;
  };
  Tensor sum = sum_of(x);
  record_op(sum, "sum_of_shares", {x}, {}, [sum_of](const Tensor& grad) { return std::vector{sum_of(grad)}; });
  return sum;
}

/// Two products with a hidden dim that is cut, and one that is whole on every rank (`mix`) where the cut allows it.
struct Mlp : Module {
  Mlp(std::string path, bool has_mix)
      : Module(std::move(path)),
        up(add_parameter("up", {kHidden, kChainWidth}, {.normal_std = 0.5f}, true)),
        up_bias(add_parameter("up_bias", {kHidden}, {.uniform_bound = 0.125f}, false)),
        down(add_parameter("down", {kChainWidth, kHidden}, {.normal_std = 0.5f}, true)),
        mix(has_mix ? &add_parameter("mix", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true) : nullptr) {}
  bool is_block() const override { return true; }

  Tensor forward(const Tensor& x, Communicator* ranks, bool reads_data) {
    const ForwardScope scope = enter();
    const std::int64_t others = ranks != nullptr ? ranks->size() - 1 : 0, before = ranks != nullptr ? ranks->rank() : 0;
    Tensor all = x;
    if (ranks != nullptr)
      all = reads_data ? sum_of_shares(*ranks, pad(x, 0, before * kChainRows, (others - before) * kChainRows))
                       : input_of_parts(*ranks, x);
    Tensor y = linear(gelu(linear(all, up, &up_bias), GeluKind::tanh), down, nullptr);
    if (ranks != nullptr)
      y = reads_data ? slice(sum_of_shares(*ranks, y), 0, before * kChainRows, kChainRows) : sum_of_parts(*ranks, y);
    return add(x, mix != nullptr ? linear(y, *mix, nullptr) : y);
  }
  Parameter &up, &up_bias, &down;
  Parameter* mix;
};

struct Net : Module {
  explicit Net(bool has_mix)
      : Module(""), head(add_parameter("head", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)) {
    for (int i = 0; i < 2; ++i)
      add_child(*layers.emplace_back(std::make_unique<Mlp>(fmt::format("layer{}", i), has_mix)));
  }
  Tensor loss(const Tensor& x, const Tensor& targets, Communicator* ranks, bool reads_data) {
    const ForwardScope scope = enter();
    Tensor y = linear(x, head, nullptr);
    for (const auto& layer : layers) y = layer->forward(y, ranks, reads_data);
    return lm_head_loss(y, head, targets, kChainWidth);
  }
  Parameter& head;
  std::vector<std::unique_ptr<Mlp>> layers;
};

const std::vector<std::pair<std::string, int>> kDims{{"*.up", 0}, {"*.up_bias", 0}, {"*.down", -1}};

FullyShardOptions sharding(ShardOptions options, const Cut& cut) {
  options.grid = cut.grid;
  FullyShardOptions all{.shard = in_tests(std::move(options))};
  if (!cut.axis.empty()) all.policies = {{"layer*", {.partition = {cut.axis, kDims}}}};
  return all;
}

/// A rank's model, which does whatever its share of two samples a step is.
class Run {
 public:
  Run(World& of_world, const ShardOptions& options, const Cut& cut, bool has_mix)
      : world(of_world),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        net(has_mix),
        model(fully_shard(net, context, world, sharding(options, cut))),
        optimizer(model.executor(), {.clip = 0.5f, .order_free = options.scheme.deterministic}),
        ranks_(cut.axis.empty() ? nullptr : &model.executor().groups().along(cut.axis)),
        reads_data_(cut.reads_data()) {}

  /// Losses and norms of steps `first` to `last`.
  std::vector<double> train(int first, int last) {
    std::vector<double> seen;
    const DataShare share = model.runtime().data_share();
    const int batches = 2 / share.count;
    for (int step = first; step <= last; ++step) {
      double loss = 0;
      for (int i = 0; i < batches; ++i) {
        auto micro_batch = model.micro_batch({.last = i + 1 == batches});
        const Tensor mean = net.loss(chain_input(context, static_cast<int>(2 * step + share.item(i))),
                                     chain_targets(context), ranks_, reads_data_);
        micro_batch.backward(mean, 1.0f / static_cast<float>(batches));
        loss += static_cast<double>(mean.to_host()[0]) / batches;
      }
      seen.push_back(model.runtime().mean_over_ranks(loss));
      optimizer.step(0.01f, step);
      seen.push_back(HostView(context, context.stream(), optimizer.grad_norm()).as<float>()[0]);
    }
    return seen;
  }
  TrainingState state() { return {world, model.executor(), optimizer}; }
  /// Largest difference between this rank's parameters and its parts of whole ones.
  double distance(const Weights& whole) {
    double most = 0;
    for (const auto& [name, values] : weights_of(model.executor())) {
      for (const FlatParameter& unit : model.executor().units()) {
        for (const Parameter* parameter : unit.parameters) {
          if (parameter->name() != name) continue;
          const ParameterPart& part = parameter->part();
          const TensorParts parts(part.whole_of(parameter->shape()), part);
          for (std::size_t i = 0; i < values.size(); ++i) {
            const auto at = static_cast<std::size_t>(parts.in_whole(part.index, static_cast<std::int64_t>(i)));
            most = std::max(most, std::abs(static_cast<double>(values[i]) - static_cast<double>(whole.at(name)[at])));
          }
        }
      }
    }
    return most;
  }

  World& world;
  std::unique_ptr<Device> device;
  Context context;
  Net net;
  ShardedModel model;
  AdamW optimizer;

 private:
  Communicator* ranks_;
  bool reads_data_;
};

struct Alone {
  Weights begin, end;
  std::vector<double> seen;
};

/// What one rank does in four steps, and its weights before and after them.
const Alone& alone(bool has_mix) {
  static const auto run = [](bool mixes) {
    return on_ranks(1,
                    [&](World& world) {
                      Run one(world, {}, {}, mixes);
                      Alone found{.begin = weights_of(one.model.executor()), .end = {}, .seen = one.train(1, 4)};
                      found.end = weights_of(one.model.executor());
                      return found;
                    })
        .front();
  };
  static const Alone with = run(true), without = run(false);
  return has_mix ? with : without;
}

const std::vector<GridAxis> kTensor{{"tensor", 2, false}}, kInner{{"data", 2}, {"tensor", 2, false}},
    kOuter{{"tensor", 2, false}, {"data", 2}}, kOne{{"data", 2}, {"tensor", 1, false}}, kFour{{"tensor", 4, false}},
    kExperts{{"expert", 2}}, kReplicas{{"replica", 1}, {"expert", 2}, {"same", 2, false}};

}  // namespace

TEST_CASE("parts of a tensor are runs of its elements, and each element is in one of them") {
  const TensorParts parts({2, 4, 3}, 1, 2);
  CHECK(parts.numel() == 12);
  std::vector<std::int64_t> second;
  for (std::int64_t i = 0; i < 12; ++i) second.push_back(parts.in_whole(1, i));
  CHECK(second == std::vector<std::int64_t>{6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23});
  CHECK(parts.left(2) == 4);
  for (std::int64_t i = 0; i < 24; ++i) CHECK(parts.in_whole(parts.find(i).part, parts.find(i).element) == i);
  CHECK(TensorParts({5}, 0, 1).left(2) == 3);
}

TEST_CASE("parts of a tensor of blocks have their part of each block") {
  const TensorParts parts({6, 2}, {0, 0, 2, {4, 2}});
  CHECK(parts.numel() == 6);
  std::vector<std::int64_t> second;
  for (std::int64_t i = 0; i < 6; ++i) second.push_back(parts.in_whole(1, i));
  CHECK(second == std::vector<std::int64_t>{4, 5, 6, 7, 10, 11});
  CHECK(parts.left(1) == 3);
  CHECK(parts.left(4) == 2);
  for (std::int64_t i = 0; i < 12; ++i) CHECK(parts.in_whole(parts.find(i).part, parts.find(i).element) == i);
  Parameter parameter("qkv", {6, 2}, {}, true);
  CHECK_THAT(message_of([&] {
               parameter.set_blocks({4, 3});
             }),
             Contains("the first dim of parameter qkv of shape (6, 2) has no blocks of 4, 3"));
  parameter.set_blocks({5, 1});
  CHECK_THAT(message_of([&] {
               parameter.set_owner(nullptr, {0, 0, 2, {}});
             }),
             Contains("has a block of 5 rows, and so no 2 equal parts of it"));
}

TEST_CASE("a unit that is cut over an axis begins as one rank's, bit for bit, and trains as it to rounding") {
  struct Case {
    int ranks;
    Cut cut;
    ShardOptions options = {};
  };
  const ShardOptions by_parameter{.layout = {.layout = Layout::per_parameter}};
  const std::vector<Case> cases{{2, {kTensor, "tensor"}},
                                {2, {kOne, "tensor"}},
                                {4, {kInner, "tensor"}},
                                {4, {kOuter, "tensor"}, by_parameter},
                                {4, {kFour, "tensor"}},
                                {4, {kInner, "tensor"}, {.scheme = {.strategy = Strategy::ddp}}},
                                {4, {kInner, "tensor"}, {.scheme = {.deterministic = true}}},
                                {4, {kInner, "tensor"}, {.scheme = {.strategy = Strategy::hsdp, .group_size = 1}}},
                                {2, {kExperts, "expert"}},
                                {4, {kReplicas, "expert"}}};
  for (const Case& row : cases) {
    const bool has_mix = !row.cut.reads_data();
    const Alone& one = alone(has_mix);
    struct Found {
      double begin, end;
      std::vector<double> seen;
    };
    for (const Found& found : on_ranks(row.ranks, [&](World& world) {
           Run run(world, row.options, row.cut, has_mix);
           Found result{.begin = run.distance(one.begin), .end = 0, .seen = run.train(1, 4)};
           result.end = run.distance(one.end);
           return result;
         })) {
      CAPTURE(row.ranks, row.cut.axis, found.seen, one.seen);
      CHECK(found.begin == 0);
      CHECK(found.end < 1e-4);  // AdamW divides by what a small gradient's rounding changes
      for (std::size_t i = 0; i < one.seen.size(); ++i) CHECK(found.seen[i] == Approx(one.seen[i]).epsilon(1e-5));
    }
  }
}

TEST_CASE("a checkpoint of parts goes on without them, and with others, at any number of ranks") {
  struct Job {
    int ranks;
    Cut cut;
    ShardOptions options = {};
  };
  const ShardOptions by_parameter{.layout = {.layout = Layout::per_parameter}};
  const Job whole{1, {}}, two{2, {kTensor, "tensor"}}, four{4, {kFour, "tensor"}},
      inner{4, {kInner, "tensor"}, by_parameter};
  const std::vector<std::pair<Job, Job>> cases{{two, whole}, {whole, two}, {inner, whole}, {inner, four}, {four, two}};
  for (const auto& [saved, resumed] : cases) {
    CAPTURE(saved.ranks, resumed.ranks);
    const TempDir folder;
    const auto save_after = [&folder](World& world, const Job& job) {
      Run run(world, job.options, job.cut, true);
      run.train(1, 2);
      save(run.state(), folder.path(), {.step = 2});
      return true;
    };
    const std::string path = step_folder(folder.path(), 2);
    on_ranks(saved.ranks, [&](World& world) { return save_after(world, saved); });
    CheckpointReader(path).verify();
    // Without a cut the weights are what was saved, whose parts are those of the job that saved them.
    const Weights values = on_ranks(1, [&](World& world) {
                             Run run(world, {}, {}, true);
                             load(run.state(), path);
                             return weights_of(run.model.executor());
                           }).front();
    for (const Job* job : {&saved, &resumed}) {
      for (const auto& [distance, seen] : on_ranks(job->ranks, [&, job = job](World& world) {
             Run run(world, job->options, job->cut, true);
             load(run.state(), path);
             const double far = run.distance(values);
             return std::pair(far, run.train(3, 4));
           })) {
        CHECK(distance == 0);
        const auto& expected = alone(true).seen;
        for (std::size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == Approx(expected[4 + i]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("a cut that cannot be, and what would take a part for the whole, is refused") {
  const auto refusal = [](const Cut& cut, const std::vector<std::pair<std::string, int>>& dims, bool has_mix,
                          const std::function<void(Run&, ShardedModel&)>& use = {}) {
    return on_ranks(2,
                    [&](World& world) {
                      return message_of([&] {
                        const auto device =
                            Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
                        Context context(*device);
                        Net net(has_mix);
                        FullyShardOptions options = sharding({}, cut);
                        options.policies.front().second.partition.dims = dims;
                        if (use) {
                          Run run(world, {}, cut, has_mix);
                          use(run, run.model);
                        }
                        const ShardedModel model = fully_shard(net, context, world, options);
                      });
                    })
        .front();
  };
  const Cut cut{kTensor, "tensor"}, experts{kExperts, "expert"};
  CHECK_THAT(refusal({kTensor, "expert"}, kDims, true), Contains("no axis expert"));
  CHECK_THAT(refusal(cut, {{"*.up", 2}}, true), Contains("no 2 equal parts along dim 2"));
  CHECK_THAT(refusal(cut, {{"*.upper", 0}}, true), Contains("cuts \"*.upper\", and no parameter is called so"));
  CHECK_THAT(refusal(experts, kDims, true), Contains("layer0.mix is not cut over axis expert"));
  CHECK_THAT(refusal(cut, kDims, true, [](Run& run, ShardedModel&) { state_by_name(run.state()); }),
             Contains("state_by_name() of unit layer0, of which this rank owns a part"));
  CHECK_THAT(
      refusal(cut, kDims, true, [](Run&, ShardedModel& model) { const UnshardScope scope(model.runtime(), {1}); }),
      Contains("of which each rank owns a part"));
  CHECK_THAT(refusal(cut, kDims, true,
                     [](Run&, ShardedModel& model) { const Muon muon(model.executor(), {.matrices = {"*.up"}}); }),
             Contains("Muon takes parameters as a whole, and unit layer0 is partitioned over axis tensor"));
}

}  // namespace zs::test::partition_test
