// Two models in one process that train against each other (Goodfellow et al. 2014): a generator turns noise into
// points, and a critic tells them from points on a circle.
#include <zshard/zshard.h>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

constexpr std::int64_t kNoise = 4, kHidden = 32, kRows = 64, kSteps = 1500;

struct Net : zs::Layer<Net> {
  Net(std::int64_t in, std::int64_t out) : first(in), last(out) {}
  std::int64_t first, last;
  zs::Linear& in = make_child<zs::Linear>("in", first, kHidden, zs::LinearOptions{.init = {.normal_std = 0.5f}});
  zs::Linear& out = make_child<zs::Linear>("out", kHidden, last, zs::LinearOptions{.init = {.normal_std = 0.2f}});
  zs::Tensor forward(const zs::Tensor& x) { return out(zs::relu(in(x))); }
};

/// The mean of -log sigmoid(logits), in a form that no logit makes infinite.
zs::Tensor surprise(const zs::Tensor& logits) {
  return zs::mean(zs::relu(-logits) + zs::log(1.0f + zs::exp(-zs::abs(logits))));
}

int main(int argc, char** argv) {
  return zs::run(argc, argv, [](zs::Job& job) {
    Net generator(kNoise, 2), critic(2, 1);
    zs::ShardedModel generates = zs::fully_shard(generator, job), judges = zs::fully_shard(critic, job);
    zs::AdamW generator_steps(generates, {.beta1 = 0.5f}), critic_steps(judges, {.beta1 = 0.5f});
    std::mt19937 random(static_cast<unsigned>(job.rank()));
    std::normal_distribution<float> normal;
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      std::vector<float> noise, circle;
      for (std::int64_t i = 0; i < kRows * kNoise; ++i) noise.push_back(normal(random));
      for (std::int64_t i = 0; i < kRows; ++i) {
        const float angle = 3 * normal(random);
        circle.insert(circle.end(), {std::cos(angle), std::sin(angle)});
      }
      auto generating = generates.micro_batch();
      const zs::Tensor real = zs::Tensor::from_host(job.context, {kRows, 2}, circle);
      const zs::Tensor made = generator(zs::Tensor::from_host(job.context, {kRows, kNoise}, noise));
      auto judging = judges.micro_batch();  // the critic learns from points that are cut off from the generator
      (surprise(critic(real)) + surprise(-critic(made.detach()))).backward();
      judging.end();
      critic_steps.step(5e-3f);
      auto deceiving = judges.micro_batch();  // the generator learns what would have deceived it
      surprise(critic(made)).backward();
      deceiving.end();
      judges.runtime().abandon_step();  // the critic's own gradients of that
      generating.end();
      generator_steps.step(5e-3f);
      if (step % (kSteps - 1) != 1) continue;
      double error = 0;
      const std::vector<float> points = made.to_host();
      for (std::size_t i = 0; i < kRows; ++i)
        error += std::abs(std::hypot(points[2 * i], points[2 * i + 1]) - 1) / kRows;
      std::printf("rank %d, step %d: %.3f off the circle\n", job.rank(), int(step), error);
    }
  });
}
