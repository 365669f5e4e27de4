// Trains a small GPT on text: ./language_model TRAIN... VALIDATION, each a file, a folder or a quoted pattern. A token
// is a byte; .tokenizer = zs::open_tokenizer("models/gpt2") in both datasets' options makes it that of a model.
#include <zshard/zshard.h>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

constexpr std::int64_t kWidth = 64, kTime = 32, kBatch = 16, kSteps = 100;

struct Gpt : zs::Layer<Gpt> {
  const std::int64_t vocab;
  zs::Embedding& tokens = make_child<zs::Embedding>("tokens", vocab, kWidth);
  zs::Embedding& positions = make_child<zs::Embedding>("positions", kTime, kWidth);
  zs::ModuleList<zs::TransformerBlock>& blocks = make_child<zs::ModuleList<zs::TransformerBlock>>("blocks");
  zs::LayerNorm& norm = make_child<zs::LayerNorm>("norm", kWidth);
  explicit Gpt(std::int64_t of) : vocab(of) {
    for (int i = 0; i < 2; ++i)
      blocks.add(
          zs::BlockOptions{.attention = {.width = kWidth, .heads = 4}, .mlp = {.width = kWidth, .hidden = 4 * kWidth}});
  }
  zs::Tensor forward(const zs::Tensor& inputs, const zs::Tensor& targets) {  // both (B, kTime); the mean loss
    zs::Tensor x = tokens(inputs, &positions);
    for (zs::TransformerBlock* block : blocks) x = (*block)(x);
    return zs::lm_head_loss(norm(x), tokens.weight(), targets, vocab);
  }
};

int main(int argc, char** argv) {
  return zs::run(argc, argv, [](zs::Job& job) {
    if (job.arguments.size() < 2) throw zs::UsageError("no text", "call it with files to train on and one to validate");
    const std::vector<std::string> train(job.arguments.begin(), job.arguments.end() - 1);
    const zs::TokenDataset data(train, {.sequence = kTime, .seed = 1});  // shuffled anew in each epoch
    const zs::TokenDataset unseen({job.arguments.back()}, {.sequence = kTime});
    Gpt net(data.vocab());
    zs::ShardedModel model = zs::fully_shard(net, job, {.shard = {.seed = 1}});  // each block is a unit
    zs::AdamW optimizer(model, {.weight_decay = 0.1f, .clip = 1});
    const zs::LrSchedule schedule{.lr = 5e-3, .steps = kSteps, .warmup = 10};
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const zs::TokenBatch batch = data.batch(job.context, job.world, step, kBatch);  // this rank's part of it
      auto micro_batch = model.micro_batch();
      net(batch.inputs, batch.targets).backward();
      micro_batch.end();
      optimizer.step(static_cast<float>(schedule.at(step)));
    }
    double sum = 0;
    const std::int64_t batches = unseen.size() / kBatch;
    for (std::int64_t i = 0; i < batches; ++i) {
      const zs::TokenBatch batch = unseen.batch(job.context, job.world, i, kBatch);
      auto evaluation = model.evaluation();
      sum += model.runtime().mean_over_ranks(static_cast<double>(net(batch.inputs, batch.targets).to_host()[0]));
    }
    if (job.is_first()) std::printf("loss of unseen text: %.3f\n", sum / static_cast<double>(batches));
  });
}
