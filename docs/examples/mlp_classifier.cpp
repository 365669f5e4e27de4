// Learns which arm of a spiral a point is on, and says how often it is right about points that it has not seen.
#include <zshard/zshard.h>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

constexpr std::int64_t kArms = 3, kHidden = 64, kBatch = 240, kSteps = 300;

struct Points {
  std::vector<float> places;       // (n, 2)
  std::vector<std::int32_t> arms;  // (n)
};

/// Point i is the same on every rank: ranks cut a batch between them.
Points draw(std::int64_t first, std::int64_t count) {
  Points points;
  for (std::int64_t i = first; i < first + count; ++i) {
    std::mt19937 random(static_cast<unsigned>(i));
    const auto arm = static_cast<std::int32_t>(i % kArms);
    const float along = std::uniform_real_distribution<float>(0.1f, 1)(random);
    const float angle =
        4 * along + 6.2832f * static_cast<float>(arm) / kArms + std::normal_distribution<float>(0, 0.1f)(random);
    points.places.insert(points.places.end(), {along * std::cos(angle), along * std::sin(angle)});
    points.arms.push_back(arm);
  }
  return points;
}

struct Classifier : zs::Layer<Classifier> {
  static zs::LinearOptions wide(float deviation) { return {.init = {.normal_std = deviation}}; }
  zs::Linear& in = make_child<zs::Linear>("in", 2, kHidden, wide(1));
  zs::Linear& middle = make_child<zs::Linear>("middle", kHidden, kHidden, wide(0.2f));
  zs::Linear& out = make_child<zs::Linear>("out", kHidden, kArms, wide(0.2f));
  zs::Tensor forward(const zs::Tensor& x) { return out(zs::relu(middle(zs::relu(in(x))))); }
};

int main(int argc, char** argv) {
  return zs::run(argc, argv, [](zs::Job& job) {
    Classifier net;
    zs::fully_shard(net.middle);  // a unit of its own
    zs::ShardedModel model = zs::fully_shard(net, job);
    zs::AdamW optimizer(model, {.weight_decay = 0.01f});
    const std::int64_t share = kBatch / job.ranks(), mine = share * job.rank();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const Points points = draw(step * kBatch + mine, share);
      auto micro_batch = model.micro_batch();
      const zs::Tensor arms = zs::Tensor::from_host(job.context, {share}, points.arms);
      zs::cross_entropy(net(zs::Tensor::from_host(job.context, {share, 2}, points.places)), arms).backward();
      micro_batch.end();
      optimizer.step(0.01f);
    }
    zs::save_safetensors(job.world, model.runtime(), "mlp.safetensors");
    const Points unseen = draw(1'000'000, kBatch);
    auto evaluation = model.evaluation();
    const zs::Tensor found = zs::argmax(net(zs::Tensor::from_host(job.context, {kBatch, 2}, unseen.places)), 1);
    const auto right = zs::mean(zs::eq(found, zs::Tensor::from_host(job.context, {kBatch}, unseen.arms))).to_host()[0];
    std::printf("rank %d of %d: %.1f %% of unseen points\n", job.rank(), job.ranks(), 100 * right);
  });
}
