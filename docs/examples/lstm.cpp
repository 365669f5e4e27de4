// Learns a text letter by letter with an LSTM, made of a linear layer and general ops; then saves it.
#include <zshard/zshard.h>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

constexpr std::int64_t kLetters = 128, kWidth = 64, kTime = 24, kRows = 8, kSteps = 80;

struct Lstm : zs::Layer<Lstm> {
  explicit Lstm(std::string path) : Layer(std::move(path)) {}
  zs::Linear& gates = make_child<zs::Linear>("gates", 2 * kWidth, 4 * kWidth);
  using State = std::pair<zs::Tensor, zs::Tensor>;  // h and c, (B, kWidth)
  State forward(const zs::Tensor& x, const State& before) {
    const auto parts = zs::split(gates(zs::concat({x, before.first}, 1)), 1, {kWidth, kWidth, kWidth, kWidth});
    const zs::Tensor c = zs::sigmoid(parts[0] + 1.0f) * before.second + zs::sigmoid(parts[1]) * zs::tanh(parts[2]);
    return {zs::sigmoid(parts[3]) * zs::tanh(c), c};
  }
};

struct Net : zs::Layer<Net> {
  zs::Embedding& letters = make_child<zs::Embedding>("letters", kLetters, kWidth, zs::Init{.normal_std = 0.5f});
  Lstm& lstm = make_child<Lstm>("lstm");
  zs::Linear& head = make_child<zs::Linear>("head", kWidth, kLetters);
  zs::Tensor forward(const zs::Tensor& ids) {  // (B, T) -> (B, T, kLetters)
    const zs::Tensor x = letters(ids), none = zs::Tensor::zeros(x.context(), {x.shape()[0], kWidth}, x.dtype());
    Lstm::State state{none, none};
    std::vector<zs::Tensor> outputs;
    for (const zs::Tensor& letter : zs::split(x, 1, std::vector<std::int64_t>(kTime, 1))) {
      state = lstm(letter.reshape({x.shape()[0], kWidth}), state);
      outputs.push_back(state.first);
    }
    return head(zs::stack(outputs, 1));
  }
};

int main(int argc, char** argv) {
  return zs::run(argc, argv, [](zs::Job& job) {
    std::string text;
    while (text.size() < 4096) text += "the quick brown fox jumps over the lazy dog, and the dog sleeps on. ";
    Net net;
    zs::ShardedModel model = zs::fully_shard(net, job);
    zs::AdamW optimizer(model, {.weight_decay = 0, .clip = 1});
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      std::vector<std::int32_t> ids, next;
      for (std::int64_t i = 0, row = (step * job.ranks() + job.rank()) * kRows; i < kRows * kTime; ++i) {
        const auto at = static_cast<std::size_t>((row + i / kTime) * 37 % 4000 + i % kTime);
        ids.push_back(text[at]), next.push_back(text[at + 1]);
      }
      auto micro_batch = model.micro_batch();
      const zs::Tensor logits = net(zs::Tensor::from_host(job.context, {kRows, kTime}, ids));
      const zs::Tensor loss = zs::cross_entropy(logits, zs::Tensor::from_host(job.context, {kRows, kTime}, next));
      loss.backward();
      micro_batch.end();
      optimizer.step(0.01f);
      if (step % 79 == 1) std::printf("rank %d, step %d: loss %.3f\n", job.rank(), int(step), loss.to_host()[0]);
    }
    zs::save({job.world, model, optimizer}, "lstm-checkpoints", {.step = kSteps});
  });
}
