// Tells squares, crosses and rings apart on noisy images, which it draws itself.
#include <zshard/zshard.h>
#include <cstdio>
#include <random>
#include <vector>

constexpr std::int64_t kKinds = 3, kSize = 12, kBatch = 48, kSteps = 60;

/// (n, 1, kSize, kSize) pixels, (n) kinds. Image i is the same on every rank: ranks cut a batch between them.
std::pair<zs::Tensor, zs::Tensor> draw(zs::Job& job, std::int64_t first, std::int64_t count) {
  std::vector<float> pixels;
  std::vector<std::int32_t> kinds;
  for (std::int64_t i = first; i < first + count; ++i) {
    std::mt19937 random(static_cast<unsigned>(i));
    std::normal_distribution<float> noise(0, 0.3f);
    const int x = 4 + static_cast<int>(random() % 4), y = 4 + static_cast<int>(random() % 4);
    kinds.push_back(static_cast<std::int32_t>(i % kKinds));
    for (int at = 0; at < kSize * kSize; ++at) {
      const int dx = std::abs(at % kSize - x), dy = std::abs(at / kSize - y);
      const bool is_set[] = {dx < 3 && dy < 3, dx == dy && dx < 4, dx + dy == 3};
      pixels.push_back(noise(random) + (is_set[i % kKinds] ? 1.0f : 0.0f));
    }
  }
  return {zs::Tensor::from_host(job.context, {count, 1, kSize, kSize}, pixels),
          zs::Tensor::from_host(job.context, {count}, kinds)};
}

struct ConvNet : zs::Layer<ConvNet> {
  zs::Conv2d& first = make_child<zs::Conv2d>("first", 1, 8, 3, zs::Conv2dOptions{.padding = 1});
  zs::BatchNorm& norm = make_child<zs::BatchNorm>("norm", 8);
  zs::Conv2d& second = make_child<zs::Conv2d>("second", 8, 16, 3);
  zs::Dropout& drop = make_child<zs::Dropout>("drop", 0.2f);
  zs::Linear& out = make_child<zs::Linear>("out", 16 * 2 * 2, kKinds);
  zs::Tensor forward(const zs::Tensor& x) {
    const zs::Tensor halved = zs::max_pool2d(zs::relu(norm(first(x))), {2, 2, 2});
    const zs::Tensor quartered = zs::max_pool2d(zs::relu(second(halved)), {2, 2, 2});
    return out(drop(quartered.reshape({x.shape()[0], 16 * 2 * 2})));
  }
};

int main(int argc, char** argv) {
  return zs::run(argc, argv, [](zs::Job& job) {
    ConvNet net;
    zs::ShardedModel model = zs::fully_shard(net, job);
    zs::AdamW optimizer(model, {.weight_decay = 0.01f});
    const std::int64_t share = kBatch / job.ranks(), mine = share * job.rank();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const auto [pixels, kinds] = draw(job, step * kBatch + mine, share);
      auto micro_batch = model.micro_batch();
      zs::cross_entropy(net(pixels), kinds).backward();
      micro_batch.end();
      optimizer.step(0.01f);
    }
    auto evaluation = model.evaluation();
    const auto [pixels, kinds] = draw(job, 1'000'000 + mine, share);
    const float right = zs::mean(zs::eq(zs::argmax(net(pixels), 1), kinds)).to_host()[0];
    std::printf("rank %d: %.1f %% of unseen images\n", job.rank(), 100 * model.runtime().mean_over_ranks(right));
  });
}
