#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "tests/message_of.h"
#include "tests/shard/model_rank.h"

namespace zs::test {

/// As ChainLayer, but that it is called, and may hold another such layer in its middle.
struct Link : Layer<Link> {
  explicit Link(const std::string& path, int depth = 0)
      : Layer(path),
        weight(add_parameter("weight", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true)),
        bias(add_parameter("bias", {kChainWidth}, {.constant = 0.125f}, false)) {
    if (depth > 0) inner = std::make_unique<Link>(path + ".inner", depth - 1);
    if (inner) add_child(*inner);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = output(gelu(linear(input(x), weight, &bias), GeluKind::tanh));
    return add(x, inner ? (*inner)(y) : y);
  }
  Parameter &weight, &bias;
  std::unique_ptr<Link> inner;
};

/// Three links, the outer two of them with others inside.
struct LinkNet : Layer<LinkNet> {
  explicit LinkNet(int depth = 0) : links{Link("link0", depth), Link("link1"), Link("link2", depth)} {
    for (Link& link : links) add_child(link);
  }
  Tensor forward(const Tensor& x, const Tensor& targets) {
    Tensor y = linear(x, head, nullptr);
    for (Link& link : links) y = link(y);
    return lm_head_loss(input(y), head, targets, kChainWidth);
  }
  Parameter& head = add_parameter("head", {kChainWidth, kChainWidth}, {.normal_std = 0.5f}, true);
  std::array<Link, 3> links;
};

struct LinkRank : ModelRank<LinkNet> {
  explicit LinkRank(World& of, int depth = 0) : ModelRank(of, depth) {}
  Tensor loss(int sample) { return net(chain_input(context, sample * 8 + world.rank()), chain_targets(context)); }
};

/// What `body` throws on one rank, behind a model of three units and its root.
inline std::string problem(const std::function<void(LinkRank& rank, ShardedModel& model)>& body) {
  const auto world = make_single_world({.timeout_s = 60});
  LinkRank rank(*world);
  for (Link& link : rank.net.links) fully_shard(link);
  ShardedModel model = rank.shard();
  return message_of([&] { body(rank, model); });
}

}  // namespace zs::test
