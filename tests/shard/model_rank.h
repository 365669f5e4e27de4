#pragma once

#include <memory>

#include "model/sharding/fully_shard.h"
#include "tests/shard/chain_model.h"

namespace zs::test {

/// A rank with a model of a test's own that is not sharded yet.
template <class Model>
struct ModelRank {
  template <class... Args>
  explicit ModelRank(World& of, Args... args)
      : world(of),
        device(Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60})),
        context(*device),
        net(args...) {}

  ShardedModel shard(const FullyShardOptions& options = {}) {
    FullyShardOptions asked = options;
    asked.shard = in_tests(options.shard);
    return fully_shard(net, context, world, asked);
  }

  World& world;
  std::unique_ptr<Device> device;
  Context context;
  Model net;
};

}  // namespace zs::test
