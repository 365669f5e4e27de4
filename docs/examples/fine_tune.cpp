// Goes on from weights in a safetensors file that mlp_classifier has written: with a new head, for another question
// about the same points (how far out on its arm of the spiral is it?), while the first layer keeps its weights.
#include <zshard/zshard.h>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

constexpr std::int64_t kArms = 3, kHidden = 64, kBatch = 240, kSteps = 150;

struct Regressor : zs::Layer<Regressor> {
  zs::Linear& in = make_child<zs::Linear>("in", 2, kHidden);
  zs::Linear& middle = make_child<zs::Linear>("middle", kHidden, kHidden);
  zs::Linear& head = make_child<zs::Linear>("head", kHidden, 1);
  zs::Tensor forward(const zs::Tensor& x) { return head(zs::relu(middle(zs::relu(in(x))))); }
};

int main(int argc, char** argv) {
  return zs::run(argc, argv, [](zs::Job& job) {
    if (job.arguments.empty()) throw zs::UsageError("no weights are named", "fine_tune FILE.safetensors");
    Regressor net;
    zs::ShardedModel model = zs::fully_shard(net, job);
    const auto name_in_file = [](const std::string& name) { return name.starts_with("head.") ? "" : name; };
    const auto report = zs::load_safetensors(job.world, model.runtime(), job.arguments[0],
                                             {.name_in_file = name_in_file, .strict = false});
    if (job.is_first())
      for (const std::string& name : report.unexpected) std::printf("left in the file: %s\n", name.c_str());
    for (const auto& parameter : net.in.own_parameters()) parameter->set_trainable(false);
    zs::AdamW optimizer(model, {.groups = {{.pattern = "middle.*", .lr_scale = 0.1f}}});
    const std::int64_t share = kBatch / job.ranks();
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      std::vector<float> places, distances;
      for (std::int64_t i = 0; i < share; ++i) {
        std::mt19937 random(static_cast<unsigned>((step * job.ranks() + job.rank()) * share + i));
        distances.push_back(std::uniform_real_distribution<float>(0.1f, 1)(random));
        const float angle = 4 * distances.back() + 6.2832f * static_cast<float>(i % kArms) / kArms;
        places.insert(places.end(), {distances.back() * std::cos(angle), distances.back() * std::sin(angle)});
      }
      auto micro_batch = model.micro_batch();
      const zs::Tensor loss = zs::mse(net(zs::Tensor::from_host(job.context, {share, 2}, places)),
                                      zs::Tensor::from_host(job.context, {share, 1}, distances));
      loss.backward();
      micro_batch.end();
      optimizer.step(0.01f);
      if (step == kSteps) std::printf("rank %d: error %.3f\n", job.rank(), std::sqrt(loss.to_host()[0]));
    }
    zs::save_safetensors(job.world, model.runtime(), "tuned.safetensors");
  });
}
