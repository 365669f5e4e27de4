// An activation of one's own, in f32 and bf16, with its gradient: it runs on the CPU, and on a GPU where nvcc compiles
// this file (docs/trainer.md). The model learns a wave, and is asked about places between those that it has seen.
#include <zshard/zshard.h>
#include <cmath>
#include <cstdio>
#include <vector>

constexpr std::int64_t kHidden = 64, kRows = 96, kSteps = 400;

/// x + sin(x)^2 (Ziyin, Hartwig, Ueda 2020), and its derivative.
struct Snake {
  ZS_ON_BOTH float operator()(float x) const { return x + std::sin(x) * std::sin(x); }
};
struct SnakeDerivative {
  ZS_ON_BOTH float operator()(float x) const { return 1 + std::sin(2 * x); }
};
zs::Tensor snake(const zs::Tensor& x) { return zs::elementwise("snake", x, Snake(), SnakeDerivative()); }

struct Wave : zs::Layer<Wave> {
  static zs::LinearOptions wide(float deviation) { return {.init = {.normal_std = deviation}}; }
  zs::Linear& in = make_child<zs::Linear>("in", 1, kHidden, wide(2));
  zs::Linear& middle = make_child<zs::Linear>("middle", kHidden, kHidden, wide(0.1f));
  zs::Linear& out = make_child<zs::Linear>("out", kHidden, 1, wide(0.1f));
  zs::Tensor forward(const zs::Tensor& x) { return out(snake(middle(snake(in(x))))); }
};

/// (n, 1): x in [-1, 1), as many on every rank, and the wave there. `shift`: of the distance between two of them.
std::pair<zs::Tensor, zs::Tensor> points(zs::Job& job, float shift) {
  std::vector<float> x, y;
  for (std::int64_t i = job.rank(); i < kRows; i += job.ranks()) {
    x.push_back((static_cast<float>(i) + shift) * 2 / kRows - 1);
    y.push_back(std::sin(9 * x.back()));
  }
  const auto rows = static_cast<std::int64_t>(x.size());
  return {zs::Tensor::from_host(job.context, {rows, 1}, x), zs::Tensor::from_host(job.context, {rows, 1}, y)};
}

int main(int argc, char** argv) {
  return zs::run(argc, argv, [](zs::Job& job) {
    Wave net;
    zs::ShardedModel model = zs::fully_shard(net, job);
    zs::AdamW optimizer(model, {.weight_decay = 0});
    const auto [x, y] = points(job, 0);
    for (std::int64_t step = 0; step < kSteps; ++step) {
      auto micro_batch = model.micro_batch();
      zs::mse(net(x), y).backward();
      micro_batch.end();
      optimizer.step(0.01f);
    }
    auto evaluation = model.evaluation();
    const auto [between, expected] = points(job, 0.5f);
    const double error = model.runtime().mean_over_ranks(double(zs::mse(net(between), expected).to_host()[0]));
    std::printf("rank %d on %s: error %.4f\n", job.rank(), zs::name_of(job.device.kind()), std::sqrt(error));
  });
}
