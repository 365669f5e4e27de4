// A small vision transformer (Dosovitskiy et al. 2021) tells stripes of four directions apart on noisy images, which it
// draws itself.
#include <zshard/zshard.h>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

constexpr std::int64_t kKinds = 4, kSize = 16, kPatch = 4, kPatches = 16, kWidth = 32, kBatch = 48, kSteps = 60;

/// (n, 1, kSize, kSize) pixels, (n) kinds. Image i is the same on every rank: ranks cut a batch between them.
std::pair<zs::Tensor, zs::Tensor> draw(zs::Job& job, std::int64_t first, std::int64_t count) {
  std::vector<float> pixels;
  std::vector<std::int32_t> kinds;
  for (std::int64_t i = first; i < first + count; ++i) {
    std::mt19937 random(static_cast<unsigned>(i));
    std::normal_distribution<float> noise(0, 0.5f);
    kinds.push_back(static_cast<std::int32_t>(i % kKinds));
    const float angle = 0.7854f * static_cast<float>(kinds.back()), begin = 9 * noise(random);
    for (int at = 0; at < kSize * kSize; ++at) {
      const float x = static_cast<float>(at % kSize), y = static_cast<float>(at / kSize);
      pixels.push_back(std::sin(x * std::cos(angle) + y * std::sin(angle) + begin) + noise(random));
    }
  }
  return {zs::Tensor::from_host(job.context, {count, 1, kSize, kSize}, pixels),
          zs::Tensor::from_host(job.context, {count}, kinds)};
}

struct VisionTransformer : zs::Layer<VisionTransformer> {
  zs::Conv2d& patches = make_child<zs::Conv2d>("patches", 1, kWidth, kPatch, zs::Conv2dOptions{.stride = kPatch});
  zs::Parameter& summary = add_parameter("summary", {1, 1, kWidth}, {.normal_std = 0.02f}, false);
  zs::Parameter& places = add_parameter("places", {1, 1 + kPatches, kWidth}, {.normal_std = 0.02f}, false);
  zs::ModuleList<zs::TransformerBlock>& blocks = make_child<zs::ModuleList<zs::TransformerBlock>>("blocks");
  zs::LayerNorm& norm = make_child<zs::LayerNorm>("norm", kWidth);
  zs::Linear& head = make_child<zs::Linear>("head", kWidth, kKinds);
  VisionTransformer() {
    for (int i = 0; i < 2; ++i)
      blocks.add(zs::BlockOptions{.attention = {.width = kWidth, .heads = 4, .is_causal = false},
                                  .mlp = {.width = kWidth, .hidden = 4 * kWidth}});
  }
  zs::Tensor forward(const zs::Tensor& images) {  // (B, 1, kSize, kSize) -> (B, kKinds)
    const std::int64_t batch = images.shape()[0];
    const zs::Tensor seen = zs::transpose(patches(images).reshape({batch, kWidth, kPatches}), 1, 2);
    const zs::Tensor first = zs::expand(zs::as_tensor(images.context(), summary), {batch, 1, kWidth});
    zs::Tensor x = zs::concat({first, seen}, 1) + zs::as_tensor(images.context(), places);
    for (zs::TransformerBlock* block : blocks) x = (*block)(x);
    return head(norm(zs::slice(x, 1, 0, 1).reshape({batch, kWidth})));
  }
};

int main(int argc, char** argv) {
  return zs::run(argc, argv, [](zs::Job& job) {
    VisionTransformer net;
    zs::ShardedModel model = zs::fully_shard(net, job);  // each block is a unit
    zs::AdamW optimizer(model, {});
    const std::int64_t share = kBatch / job.ranks(), mine = share * job.rank();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const auto [pixels, kinds] = draw(job, step * kBatch + mine, share);
      auto micro_batch = model.micro_batch();
      zs::cross_entropy(net(pixels), kinds).backward();
      micro_batch.end();
      optimizer.step(0.003f);
    }
    auto evaluation = model.evaluation();
    const auto [pixels, kinds] = draw(job, 1'000'000 + mine, share);
    const float right = zs::mean(zs::eq(zs::argmax(net(pixels), 1), kinds)).to_host()[0];
    std::printf("rank %d: %.1f %% of unseen images\n", job.rank(), 100 * model.runtime().mean_over_ranks(right));
  });
}
