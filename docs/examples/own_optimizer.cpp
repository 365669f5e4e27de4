// An optimizer of one's own, over shards: it says what becomes of a slice of elements. Clipping, groups of parameters,
// skipped steps and checkpoints come with zs::Optimizer. The model learns which points are in a ring.
#include <zshard/zshard.h>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

constexpr std::int64_t kHidden = 32, kRows = 128, kSteps = 200;

/// Adagrad (Duchi, Hazan, Singer 2011): an element's steps shrink with the squares of its gradients so far.
struct Adagrad : zs::Optimizer {
  explicit Adagrad(zs::Executor& executor) : Optimizer(executor, {.name = "Adagrad", .state = {"sum"}}, {.clip = 1}) {}
  Update slice_update() const override {
    return [](zs::ExecContext&, const Slice& slice) {
      const zs::StepScalars& step = slice.step();
      float *const w = slice.master.as<float>(), *const sum = slice.state[0].as<float>();
      const float* const gradient = slice.grad.as<float>();
      for (std::int64_t i = 0; step.skip == 0 && i < slice.master.elems; ++i) {
        const float g = gradient[i] * step.clip_coefficient;
        sum[i] += g * g;
        w[i] -= step.lr * g / (std::sqrt(sum[i]) + 1e-6f);
      }
    };
  }
};

struct Net : zs::Layer<Net> {
  zs::Linear& in = make_child<zs::Linear>("in", 2, kHidden, zs::LinearOptions{.init = {.normal_std = 1}});
  zs::Linear& out = make_child<zs::Linear>("out", kHidden, 2, zs::LinearOptions{.init = {.normal_std = 0.1f}});
  zs::Tensor forward(const zs::Tensor& x) { return out(zs::relu(in(x))); }
};

int main(int argc, char** argv) {
  const auto body = [](zs::Job& job) {
    Net net;
    zs::ShardedModel model = zs::fully_shard(net, job);
    Adagrad optimizer(model);
    std::mt19937 random(static_cast<unsigned>(job.rank()));
    std::uniform_real_distribution<float> place(-1, 1);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      std::vector<float> places;
      std::vector<std::int32_t> kinds;
      for (std::int64_t i = 0; i < kRows; ++i) {
        const float x = place(random), y = place(random), radius = std::hypot(x, y);
        places.insert(places.end(), {x, y}), kinds.push_back(radius > 0.4f && radius < 0.8f);
      }
      auto micro_batch = model.micro_batch();
      const zs::Tensor logits = net(zs::Tensor::from_host(job.context, {kRows, 2}, places));
      const zs::Tensor loss = zs::cross_entropy(logits, zs::Tensor::from_host(job.context, {kRows}, kinds));
      loss.backward();
      micro_batch.end();
      optimizer.step(0.1f);
      if (step % 199 == 1) std::printf("rank %d, step %d: loss %.3f\n", job.rank(), int(step), loss.to_host()[0]);
    }
  };
  return zs::run(argc, argv, body, {.device = "cpu"});  // where the loop above can run
}
