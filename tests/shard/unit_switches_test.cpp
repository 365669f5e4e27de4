// The switches of a sharded model's units, between micro-batches.
#include <catch2/catch.hpp>

#include <algorithm>

#include "tests/shard/link_net.h"
#include "tests/shard/named_weights.h"
#include "tests/shard/scheme_cases.h"

namespace zs::test::unit_switches_test {
namespace {

using Catch::Contains;
using Catch::Equals;
using Kind = Action::Kind;

}  // namespace

TEST_CASE("1-27, 2B-23: each switch of a unit changes what is done of that unit alone, from the next micro-batch on") {
  const auto counts = on_ranks(4, [](World& world) {
    LinkRank rank(world);
    for (Link& link : rank.net.links) fully_shard(link);
    ShardedModel model = rank.shard(
        {.shard = {.scheme = {.strategy = Strategy::hsdp, .group_size = 2, .all_reduce_every_micro_batch = true},
                   .schedule = {.prefetch = 1, .keep_root_unsharded = false},
                   .zero_copy = false}});
    AdamW optimizer(model.executor(), {});
    std::string text;
    const auto run = [&](bool is_last) {
      auto micro_batch = model.micro_batch({.last = is_last});
      micro_batch.backward(rank.loss(1));
      micro_batch.end();
      for (int unit = 0; unit < 4; ++unit) {
        const auto& actions = model.runtime().actions();
        const auto count = [&](Kind kind) { return std::count(actions.begin(), actions.end(), Action{kind, unit}); };
        text += fmt::format("{}{}{} ", count(Kind::gather), count(Kind::reduce), count(Kind::finish));
      }
      text += "; ";
    };
    const Module& one = rank.net.links[1];
    run(false);
    model.set_requires_gradient_sync(one, false);
    run(false);
    model.set_requires_gradient_sync(one, true);
    model.set_requires_all_reduce(one, false);
    run(false);
    model.set_requires_all_reduce(one, true);
    model.set_reshard_after_forward(one, false);
    run(false);
    model.set_reshard_after_forward(one, true);
    model.set_reshard_after_backward(one, false);
    run(false);
    run(false);
    model.set_reshard_after_backward(rank.net, true);
    model.set_reshard_after_forward(rank.net, false);
    run(true);
    return text;
  });
  // Of each unit: gathers, reductions, second steps. What stays behind a backward is there for the next forward.
  CHECK(counts[0] ==
        "211 211 211 211 ; 211 211 200 211 ; 211 211 210 211 ; 211 211 111 211 ; 211 211 211 211 ; 211 211 111 211 ; "
        "111 111 011 111 ; ");
  for (const std::string& text : counts) CHECK(text == counts[0]);
}

TEST_CASE(
    "1-27, 2B-23: switches that change between micro-batches train to the same bits, in every scheme that has them") {
  for (const std::string name : {"zero3", "zero3 k", "zero2", "hsdp", "hsdp small each", "hsdp k", "nested", "ddp"}) {
    CAPTURE(name);
    const auto run = [&](bool switches) {
      return on_ranks(4, [&](World& world) {
        LinkRank rank(world, 1);
        for (Link& link : rank.net.links) fully_shard(link);
        SchemeOptions scheme = scheme_of(name, 4);
        scheme.deterministic = name == std::string("zero3");
        ShardedModel model = rank.shard({.shard = {.scheme = scheme, .seed = 7}});
        AdamW optimizer(model.executor(), {.clip = 0});
        rank.device->trace().start();
        for (int i = 0; i < 12; ++i) {
          const bool is_last = i % 4 == 3;
          if (switches) {
            for (std::size_t link = 0; link < 3; ++link) {
              const bool is_odd = (static_cast<std::size_t>(i) + link) % 2 == 1;
              model.set_requires_all_reduce(rank.net.links[link], is_last || is_odd);
              model.set_reshard_after_backward(rank.net.links[link], is_odd);
              if (scheme.strategy != Strategy::zero2 && scheme.strategy != Strategy::ddp)
                model.set_reshard_after_forward(rank.net.links[link], !is_odd);
            }
          }
          // Sums of powers of two, so that where they are rounded says nothing.
          auto micro_batch = model.micro_batch({.last = is_last});
          micro_batch.backward(rank.loss(i % 4));
          micro_batch.end();
          if (is_last) optimizer.step(1e-2f);
        }
        rank.device->synchronize();
        const auto violations = verify_order(rank.device->trace().entries());
        return std::pair(weights_of(model.executor()), violations.empty() ? std::string() : violations.front().message);
      });
    };
    const auto with = run(true), without = run(false);
    for (std::size_t rank = 0; rank < with.size(); ++rank) {
      CHECK(with[rank].second == "");
      for (const auto& [parameter, values] : with[rank].first)
        for (std::size_t i = 0; i < values.size(); ++i)
          CHECK(values[i] == Approx(without[rank].first.at(parameter)[i]).epsilon(1e-4).margin(1e-6));
    }
  }
}

TEST_CASE("1-27: a switch without recurse is that of the outer unit alone") {
  const auto texts = on_ranks(4, [](World& world) {
    LinkRank rank(world, 1);
    for (Link& link : rank.net.links) {
      if (link.inner) fully_shard(*link.inner);
      fully_shard(link);
    }
    ShardedModel model = rank.shard(
        {.shard = {.scheme = {.strategy = Strategy::hsdp, .group_size = 2, .all_reduce_every_micro_batch = true},
                   .schedule = {.prefetch = 1, .keep_root_unsharded = false},
                   .zero_copy = false}});
    const Module& outer = rank.net.links[0];
    std::string text;
    const auto run = [&](bool recurse, const auto& set) {
      set(false, recurse);
      auto micro_batch = model.micro_batch({.last = false});
      micro_batch.backward(rank.loss(1));
      micro_batch.end();
      const auto& actions = model.runtime().actions();
      for (const Module* module : {&outer, static_cast<const Module*>(rank.net.links[0].inner.get())})
        for (const Kind kind : {Kind::gather, Kind::free_full, Kind::reduce, Kind::finish})
          text += fmt::format("{}", std::count(actions.begin(), actions.end(), Action{kind, model.unit_of(*module)}));
      text += "; ";
      set(true, true);
    };
    for (const bool recurse : {false, true}) {
      run(recurse, [&](bool on, bool all) { model.set_requires_gradient_sync(outer, on, all); });
      run(recurse, [&](bool on, bool all) { model.set_requires_all_reduce(outer, on, all); });
      run(recurse, [&](bool on, bool all) { model.set_reshard_after_forward(outer, on, all); });
      run(recurse, [&](bool on, bool all) { model.set_reshard_after_backward(outer, on, all); });
      model.set_unshard_in_backward(outer, false, recurse);
      for (const Module* module : {&outer, static_cast<const Module*>(rank.net.links[0].inner.get())})
        text += fmt::format("{}", model.runtime().scheduler().unshards_in_backward(model.unit_of(*module)));
      model.set_unshard_in_backward(outer, true);
      text += "| ";
    }
    model.runtime().abandon_step();
    return text;
  });
  // Of the outer unit, then of the inner one: gathers, frees, reductions, second steps.
  CHECK(texts[0] ==
        "22002211; 22102211; 11112211; 21112211; falsetrue| 12002200; 22102210; 11111111; 21112111; falsefalse| ");
  for (const std::string& text : texts) CHECK(text == texts[0]);
}

TEST_CASE("1-27: gradients of a unit that is not reduced go on to the step that reduces it") {
  const auto norms = on_ranks(2, [](World& world) {
    const auto gradient = [&](bool is_split) {
      LinkRank rank(world);
      for (Link& link : rank.net.links) fully_shard(link);
      ShardedModel model = rank.shard({.shard = {.zero_copy = false}});
      if (is_split) model.set_requires_gradient_sync(rank.net.links[0], false);
      for (int i = 0; i < 2; ++i) {
        if (i == 1) model.set_requires_gradient_sync(rank.net.links[0], true);
        model.micro_batch({.last = i == 1}).backward(rank.loss(i));
      }
      model.executor().wait_reductions();
      rank.device->synchronize();
      const Buffer grad = model.executor().units()[1].grad_buffer();
      return std::vector<float>(grad.as<float>(), grad.as<float>() + grad.elems);
    };
    return std::pair(gradient(true), gradient(false));
  });
  for (const auto& [split, each] : norms) {
    CHECK(split.size() == each.size());
    for (std::size_t i = 0; i < split.size(); ++i) CHECK(split[i] == Approx(each[i]).epsilon(1e-5).margin(1e-7));
  }
}

TEST_CASE("1-27: a switch within a micro-batch, and a last one without its all-reduce, are errors that name them") {
  const auto messages = on_ranks(4, [](World& world) {
    LinkRank rank(world);
    for (Link& link : rank.net.links) fully_shard(link);
    ShardedModel model = rank.shard({.shard = {.scheme = {.strategy = Strategy::hsdp, .group_size = 2}}});
    model.set_requires_all_reduce(rank.net.links[2], false);
    std::vector<std::string> said{message_of([&] { const auto micro_batch = model.micro_batch(); })};
    auto micro_batch = model.micro_batch({.last = false});
    said.push_back(message_of([&] { model.set_requires_gradient_sync(rank.net.links[2], false); }));
    said.push_back(message_of([&] { model.set_reshard_after_backward(rank.net, false); }));
    micro_batch.backward(rank.loss(0));
    return said;
  });
  for (const auto& said : messages) {
    CHECK_THAT(said[0], Contains("unit link2 is without its all-reduce in the step's last micro-batch"));
    CHECK_THAT(said[1], Contains("set_requires_gradient_sync() within a micro-batch"));
    CHECK_THAT(said[2], Contains("set_reshard_after_backward() within a micro-batch"));
  }
  CHECK_THAT(
      problem([](LinkRank& rank, ShardedModel& model) { model.set_reshard_after_forward(rank.net.links[0], true); }),
      Equals(""));
}

}  // namespace zs::test::unit_switches_test
