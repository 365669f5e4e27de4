// What ranks send each other of experts that are dealt over them, and experts that cannot be dealt.
#include <catch2/catch.hpp>
#include <cmath>

#include "runtime/tensor/host_view.h"
#include "tests/message_of.h"
#include "tests/model/dealt_run.h"

namespace zs::test::expert_exchange_test {

using namespace dealt;

using Catch::Contains;

TEST_CASE("ranks send a row for each expert of another rank, there and back, and a gradient likewise") {
  constexpr std::int64_t kTokens = 13, kChosen = 2;
  struct Sent {
    std::int64_t bytes = 0, foreign = 0;
    std::vector<float> sums;
  };
  const auto step = [&](World& world, Dispatcher dispatcher) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    const auto ranks = world.communicator();
    const ExpertExchange exchange(*ranks, dispatcher, "experts");
    const auto seed = std::to_string(world.rank());
    const auto tensor = [&](const Shape& shape, const std::string& name) {
      Tensor made = Tensor::from_host(context, shape, to_floats(normal(shape, (name + seed).c_str()).values));
      made.set_requires_grad();
      return made;
    };
    const Tensor x = tensor({kTokens, kWidth}, "x"), logits = tensor({kTokens, kExperts}, "logits");
    const Routing routing = route(logits, {.chosen = kChosen});
    const DealtRows dealt = exchange.dispatch(x, routing);
    // Each row comes back as its expert's number times itself.
    const std::int64_t own = kExperts / world.size(), first = world.rank() * own;
    const Tensor y = Tensor::zeros(context, dealt.rows.shape(), DType::f32);
    const Buffer in = dealt.rows.buffer(), out = y.buffer(), offsets = dealt.routing.offsets.buffer();
    context.launch({"number", {in, offsets}, {out}}, [=](ExecContext&) {
      for (std::int64_t e = 0; e < own; ++e)
        for (std::int64_t i = offsets.as<std::int64_t>()[e] * kWidth; i < offsets.as<std::int64_t>()[e + 1] * kWidth;
             ++i)
          out.as<float>()[i] = in.as<float>()[i] * static_cast<float>(first + e);
    });
    Sent sent{.sums = exchange.combine(y, routing, dealt).to_host()};
    const std::vector<float> values = x.to_host(), weights = routing.weights.to_host();
    const HostView ids(context, context.stream(), routing.ids.buffer());
    for (std::int64_t i = 0; i < kTokens * kChosen; ++i) {
      const std::int32_t expert = ids.as<std::int32_t>()[i];
      sent.foreign += expert / own != world.rank() ? 1 : 0;
      for (std::int64_t c = 0; c < kWidth; ++c)
        sent.sums[static_cast<std::size_t>(i / kChosen * kWidth + c)] -=
            weights[static_cast<std::size_t>(i)] * static_cast<float>(expert) *
            values[static_cast<std::size_t>(i / kChosen * kWidth + c)];
    }
    sent.bytes = exchange.row_traffic().of(CommOp::all_to_all).sent_bytes;
    return sent;
  };
  for (const int ranks : {2, 4, 8}) {
    for (const Dispatcher dispatcher : kBoth) {
      std::int64_t bytes = 0, foreign = 0;
      for (const Sent& sent : on_ranks(ranks, [&](World& world) { return step(world, dispatcher); })) {
        bytes += sent.bytes;
        foreign += sent.foreign;
        for (const float difference : sent.sums) CHECK(std::abs(difference) < 1e-5f);
      }
      CAPTURE(ranks, dispatcher);
      CHECK(foreign > 0);
      // Rows there, and what became of them back.
      CHECK(bytes == (dispatcher == Dispatcher::all_to_all ? 2 * foreign * kWidth * 4 : 0));
    }
  }
}

TEST_CASE("a step sends rows and gradients once, and again what is computed again") {
  const auto bytes = [](Recompute recompute) {
    std::int64_t sum = 0;
    const Job job{.ranks = 2, .axes = {.ep = 2}, .recompute = recompute};
    for (const std::int64_t own : on_ranks(2, [&](World& world) {
           Run run(world, job);
           auto micro_batch = run.model().micro_batch();
           micro_batch.backward(run.loss_of(world.rank()), 0.5f);
           micro_batch.end();
           return run.row_bytes();
         }))
      sum += own;
    return sum;
  };
  const std::int64_t once = bytes(Recompute::none);
  CHECK(once > 0);
  CHECK(bytes(Recompute::block) == once / 4 * 6);
}

TEST_CASE("experts that cannot be dealt as asked are refused with a line") {
  const auto refusal = [](const Job& job, const auto& change) {
    return on_ranks(job.ranks,
                    [&](World& world) {
                      return message_of([&] {
                        const auto device =
                            Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
                        Context context(*device);
                        Transformer net(net_options(job));
                        FullyShardOptions options = sharding(job);
                        change(options);
                        ShardedModel model = fully_shard(net, context, world, options);
                        const auto evaluation = model.evaluation();
                        const Tensor ids = Tensor::from_host(context, {1, kTime}, random_ids(kTime, kVocab, 1));
                        net.loss(ids, ids).to_host();
                      });
                    })
        .front();
  };
  const Job two{.ranks = 2, .axes = {.ep = 2}};
  CHECK_THAT(refusal(two, [](FullyShardOptions& options) { options.shard.scheme.deterministic = true; }),
             Contains("blocks.0.mlp.experts are dealt over axis ep in a deterministic training"));
  CHECK_THAT(refusal(two, [](FullyShardOptions& options) { options.shard.grid.back().reads_data = false; }),
             Contains("axis ep, whose ranks read the same data"));
  CHECK_THAT(refusal(two,
                     [](FullyShardOptions& options) {
                       options.policies.front().second.partition.dims = {{"*.gate_up", 1}, {"*", 0}};
                     }),
             Contains("8 of them have no 2 equal parts"));
  CHECK_THAT(refusal({.ranks = 3, .axes = {.ep = 3}}, [](FullyShardOptions&) {}), Contains("equal parts"));
}

TEST_CASE("a model that is sharded again has its experts dealt anew") {
  const auto losses = on_ranks(kRanks, [](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    Transformer net(net_options({}));
    set_weights(net, Load::any);
    std::vector<float> seen;
    for (const Axes& axes : {Axes{.efsdp = 4}, Axes{.ep = 2, .efsdp = 2}, Axes{.ep = 4}, Axes{.efsdp = 4}}) {
      ShardedModel model = fully_shard(net, context, world, sharding({.ranks = kRanks, .axes = axes}));
      const auto evaluation = model.evaluation();
      const Tensor ids = Tensor::from_host(context, {1, kTime}, random_ids(kTime, kVocab, 1));
      seen.push_back(net.loss(ids, ids).to_host()[0]);
    }
    return seen;
  });
  for (const float loss : losses.front()) CHECK(loss == Approx(losses.front().front()).epsilon(1e-6));
}

TEST_CASE("ranks with different numbers of tokens are told so") {
  for (const Dispatcher dispatcher : kBoth) {
    const std::string message = message_of([&] {
      on_ranks(2, [&](World& world) {
        Run run(world, {.ranks = 2, .axes = {.ep = 2}, .dispatcher = dispatcher, .load = Load::first_two});
        const auto evaluation = run.model().evaluation();
        const std::int64_t time = world.rank() == 0 ? 2 : 40;
        const Tensor ids = Tensor::from_host(run.context(), {1, time}, random_ids(time, kVocab, 1));
        try {
          return run.net().loss(ids, ids).to_host();
        } catch (...) {
          world.abort(1);
          throw;
        }
      });
    });
    CHECK_THAT(message, Contains(dispatcher == Dispatcher::all_to_all ? "that has room for" : "the ranks disagree"));
  }
}

}  // namespace zs::test::expert_exchange_test
