// A trainer outside the tree, against the installed library: two ranks (threads) fit the identity map with a sharded
// linear layer. Prints the first and the last loss; exits 0 when the loss has fallen tenfold and the saved state is
// good.
#include <zshard/zshard.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t kWidth = 16, kRows = 32;
constexpr int kSteps = 200;

struct Identity : zs::Module {
  Identity() : Module(""), weight_(add_parameter("weight", {kWidth, kWidth}, {.normal_std = 0.02f}, true)) {}
  zs::Tensor loss(const zs::Tensor& x, const zs::Tensor& targets) {
    const zs::ForwardScope scope = enter();
    return zs::lm_head_loss(x, weight_, targets, kWidth);
  }
  zs::Parameter& weight_;
};

/// Rows that are unit vectors, and which unit vector each is.
void make_rows(std::vector<float>& x, std::vector<std::int32_t>& targets) {
  x.assign(kRows * kWidth, 0.0f);
  targets.resize(kRows);
  for (std::int64_t row = 0; row < kRows; ++row) {
    targets[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(row % kWidth);
    x[static_cast<std::size_t>(row * kWidth + row % kWidth)] = 1.0f;
  }
}

std::vector<float> train(zs::World& world) {
  const auto device = zs::Device::create(zs::DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
  zs::Context context(*device);
  Identity model;
  zs::ShardedRuntime runtime(context, world, {});
  zs::shard_module(model, runtime, zs::Units::model);
  zs::AdamW optimizer(runtime.executor(), {.weight_decay = 0});
  std::vector<float> losses, x;
  std::vector<std::int32_t> targets;
  make_rows(x, targets);
  for (int step = 1; step <= kSteps; ++step) {
    runtime.begin_micro_batch(zs::Mode::train, true);
    const zs::Tensor loss = model.loss(zs::Tensor::from_host(context, {kRows, kWidth}, x),
                                       zs::Tensor::from_host(context, {kRows}, targets));
    zs::backward(loss, 1.0f / static_cast<float>(world.size()));
    runtime.end_micro_batch();
    optimizer.step(0.1f, step);
    losses.push_back(loss.to_host()[0]);
  }
  const zs::TrainingState state{world, runtime.executor(), optimizer};
  const std::string saved = zs::save(state, "checkpoints", {.step = kSteps, .attributes = {{"made by", "consumer"}}});
  if (zs::load(state, saved).attributes.at("made by") != "consumer") losses.push_back(losses.front());
  return losses;
}

/// Readers of text and tokenizers are in the library, too.
bool reads_text() {
  std::ofstream("text.txt") << "one line of text";
  const auto device = zs::Device::create(zs::DeviceKind::cpu, {});
  zs::Context context(*device);
  const zs::TokenDataset data({"text.txt"}, {.sequence = 5});
  const zs::TokenBatch batch = data.read(context, 0, data.size());
  try {
    zs::open_tokenizer("text.txt");
    return false;
  } catch (const zs::Error& error) {
    return error.code() == zs::ExitCode::model && batch.targets.shape() == zs::Shape({3, 5});
  }
}

}  // namespace

int main() {
  std::filesystem::remove_all("checkpoints");
  std::vector<float> losses;
  std::mutex mutex;
  zs::run_local_world(2, {.timeout_s = 60}, [&](zs::World& world) {
    const std::vector<float> own = train(world);
    const std::lock_guard lock(mutex);
    losses = own;
  });
  zs::CheckpointReader(zs::step_folder("checkpoints", kSteps)).verify();
  std::printf("zshard %s: loss %g, after %d steps %g\n", zs::version(), losses.front(), kSteps, losses.back());
  return losses.back() < losses.front() / 10 && reads_text() ? 0 : 1;
}
