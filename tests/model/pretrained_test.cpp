// Models of Hugging Face folders in a trainer of one's own: what transformers has computed of them.
#include "model/families/pretrained.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/message_of.h"
#include "tests/model/temp_dir.h"

namespace zs::test::pretrained_test {
namespace {

using Catch::Contains;

const std::string kFolders = std::string(ZSHARD_SOURCE_ROOT) + "/tests/data/huggingface/";

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Inputs, or from 1 on targets, of the folder's four rows of 64 tokens.
Tensor tokens_of(Context& context, const std::string& folder, std::size_t first) {
  const std::string bytes = bytes_of(folder + "/tokens.bin");
  std::vector<std::int32_t> ids;
  for (std::size_t i = first; i < first + 256; ++i) {
    std::uint16_t id;
    std::memcpy(&id, bytes.data() + 2 * i, sizeof id);
    ids.push_back(id);
  }
  return Tensor::from_host(context, {4, 64}, ids);
}

float loss_of(Job& job, Pretrained& loaded, const std::string& folder) {
  auto evaluation = loaded.model->evaluation();
  return loaded.net->loss(tokens_of(job.context, folder, 0), tokens_of(job.context, folder, 1)).to_host()[0];
}

void on_ranks_of_job(int ranks, const std::function<void(Job&)>& body) {
  run_local_world(ranks, {.timeout_s = 60}, [&](World& world) {
    const auto device = Device::create(DeviceKind::cpu, {.threads = 1, .cpus = {}, .sync_timeout_s = 60});
    Context context(*device);
    Job job{world, *device, context, {}};
    body(job);
  });
}

}  // namespace

TEST_CASE("a model of a Hugging Face folder has transformers' loss, and is written as one that has it too") {
  const std::string folder = kFolders + GENERATE("gpt2", "llama", "qwen2");
  CAPTURE(folder);
  const float expected = nlohmann::json::parse(bytes_of(folder + "/expected.json")).at("loss").get<float>();
  const TempDir dir;
  on_ranks_of_job(2, [&](Job& job) {
    Pretrained loaded = load_pretrained(job, folder);
    const float loss = loss_of(job, loaded, folder);
    CHECK(loss == Approx(expected).epsilon(1e-5));  // sums of f32 in another order
    save_pretrained(job.world, loaded.model->runtime(), folder, dir / "saved");
    Pretrained again = load_pretrained(job, dir / "saved");
    CHECK(loss_of(job, again, folder) == loss);
  });
  CHECK(std::filesystem::exists(dir / "saved/config.json"));
}

TEST_CASE("a folder that is no model, or another one's, is an error that names it") {
  on_ranks_of_job(1, [&](Job& job) {
    CHECK_THAT(coded_message_of([&] { make_pretrained(kFolders); }), Contains("67: ") && Contains("config.json"));
    const auto net = make_pretrained(kFolders + "llama");
    ShardedModel model = fully_shard(*net, job);
    CHECK_THAT(coded_message_of([&] { load_pretrained(job.world, model.runtime(), kFolders + "gpt2"); }),
               Contains("67: ") && Contains("has no head.weight"));
    CHECK_THAT(
        coded_message_of([&] { save_pretrained(job.world, model.runtime(), kFolders + "llama", kFolders + "gpt2"); }),
        Contains("73: "));
  });
}

}  // namespace zs::test::pretrained_test
