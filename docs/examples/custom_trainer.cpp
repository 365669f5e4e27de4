// A trainer of one's own: a module and an op that zshard does not know, sharded over mpirun's ranks or one alone.
#include <zshard/zshard.h>
#include <cstdio>
#include <vector>

constexpr std::int64_t kWidth = 32, kRows = 32;

/// The op, y (rows, C) := x^2 * scale (C). The host only enqueues; backward adds to the parameter's gradient.
zs::Tensor scaled_square(const zs::Tensor& x, zs::Parameter& scale) {
  zs::Tensor y = zs::Tensor::empty(x.context(), x.shape(), x.dtype());
  const auto *v = x.buffer().as<float>(), *f = scale.value().as<float>();
  x.context().launch({"scaled_square", {x.buffer(), scale.value()}, {y.buffer()}},
                     [v, f, out = y.buffer().as<float>()](zs::ExecContext&) {
                       for (std::int64_t i = 0; i < kRows * kWidth; ++i) out[i] = v[i] * v[i] * f[i % kWidth];
                     });
  zs::record_op(y, "scaled_square", {x}, {&scale}, [x = x.detach(), &scale](const zs::Tensor& dy) {
    zs::Tensor dx = zs::Tensor::empty(x.context(), x.shape(), x.dtype());
    const zs::Buffer dscale = scale.grad_target().buffer;  // zeros; what is put there is added to what other ops give
    float *out = dx.buffer().as<float>(), *sum = dscale.as<float>();
    const auto *v = x.buffer().as<float>(), *g = dy.buffer().as<float>(), *f = scale.value().as<float>();
    const zs::OpInfo op{"square_backward", {x.buffer(), dy.buffer(), scale.value(), dscale}, {dx.buffer(), dscale}};
    x.context().launch(op, [v, g, f, out, sum](zs::ExecContext&) {
      for (std::int64_t i = 0; i < kRows * kWidth; ++i) out[i] = 2 * v[i] * f[i % kWidth] * g[i];
      for (std::int64_t i = 0; i < kRows * kWidth; ++i) sum[i % kWidth] += v[i] * v[i] * g[i];
    });
    return std::vector<zs::Tensor>{dx};
  });
  return y;
}

struct Model : zs::Layer<Model> {  // one unit, unless parts of it are given to fully_shard() first
  zs::Parameter& scale = add_parameter("scale", {kWidth}, {.constant = 1}, false);
  zs::Parameter& head = add_parameter("head", {kWidth, kWidth}, {.normal_std = 0.1f}, true);
  zs::Tensor forward(const zs::Tensor& x, const zs::Tensor& targets) {
    return zs::lm_head_loss(scaled_square(x, scale), head, targets, kWidth);
  }
};

int main(int argc, char** argv) {
  const auto body = [](zs::Job& job) {
    Model net;
    zs::ShardedModel model = zs::fully_shard(net, job);
    zs::AdamW optimizer(model, {});
    std::vector<float> rows(kRows * kWidth);
    std::vector<std::int32_t> ids(kRows);
    for (std::int64_t row = 0; row < kRows; ++row)
      rows[row * kWidth + (ids[row] = (row * 5 + job.rank()) % kWidth)] = 1;
    for (int step = 1; step <= 100; ++step) {
      auto micro_batch = model.micro_batch();
      const auto x = zs::Tensor::from_host(job.context, {kRows, kWidth}, rows);
      const auto loss = net(x, zs::Tensor::from_host(job.context, {kRows}, ids));
      loss.backward();
      micro_batch.end();
      optimizer.step(0.05f);
      if (step % 33 == 1)
        std::printf("rank %d of %d, step %d: loss %.3f\n", job.rank(), job.ranks(), step, loss.to_host()[0]);
    }
  };
  return zs::run(argc, argv, body, {.device = "cpu"});  // where the loops above can run
}
