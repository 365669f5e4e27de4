#include "model/train/inference/sample_run.h"

#include <fmt/ranges.h>

#include "model/train/rank/agreed.h"
#include "model/train/rank/print.h"
#include "model/train/rank/program.h"
#include "model/train/rank/stop_signal.h"
#include "model/train/session/sample.h"
#include "model/train/session/sample_text.h"
#include "model/train/session/token_window.h"
#include "model/weights/end_tokens.h"

namespace zs {
namespace {

constexpr std::int64_t kTokens = 200;

std::vector<std::int32_t> prompt_of(const SampleRequest& request, const Config& config, const Tokenizer* tokenizer) {
  if (request.prompt && tokenizer == nullptr && config.data.kind != "text")
    throw Error(ExitCode::config, "there is no tokenizer for the prompt", "--prompt",
                "name one with --set data.tokenizer=FOLDER, or give --prompt-ids");
  const SampleText text(config, tokenizer);
  if (request.prompt_ids.empty()) return text.prompt(request.prompt.value_or(""), "--prompt");
  text.check(request.prompt_ids, "--prompt-ids");
  return request.prompt_ids;
}

void print(const SampleRequest& request, const SampleText& text, const SampleTask& task,
           const std::vector<std::int32_t>& drawn) {
  if (request.prints_ids) return print_to_stdout("{}\n", fmt::join(drawn, ","));
  print_to_stdout("{}\n",
                  AsIs{text.print(request.prompt.value_or(""), task.prompt, without_end(drawn, task), prints_utf8())});
}

}  // namespace

int sample(Inference& inference, const SampleRequest& request) {
  World& world = inference.world();
  std::unique_ptr<Tokenizer> tokenizer;
  SampleTask task{.prompt = {}, .count = request.tokens.value_or(kTokens)};
  const auto prepare = [&] {
    const Config& config = inference.config();
    if (!config.data.tokenizer.empty()) tokenizer = open_tokenizer(config.data.tokenizer);
    task.prompt = prompt_of(request, config, tokenizer.get());
    if (!inference.model().folder.empty()) task.ends = end_tokens_of(inference.model().folder);
    if (tokenizer && tokenizer->end_of_text()) task.ends.push_back(*tokenizer->end_of_text());
    task.options = {.temperature = request.temperature,
                    .top_k = request.top_k,
                    .top_p = request.top_p,
                    .seed = static_cast<std::uint64_t>(request.seed.value_or(config.train.seed))};
  };
  if (const int code = agreed(world, prepare); code != 0) return code;
  inference.limit_sequence(std::ssize(task.prompt) + task.count);
  if (const int code = inference.start(TokenWindow::enqueue_longest); code != 0) return code;
  bool is_stopped = false;
  task.stops = [&] { return is_stopped = world.agree(is_stop_requested() ? 1 : 0, "").code != 0; };
  inference.watch().enter(Phase::first_step, 1);
  const std::vector<std::int32_t> drawn = sample_tokens(inference.session(), world, task);
  inference.watch().enter(Phase::ending);
  if (inference.is_first()) print(request, SampleText(inference.config(), tokenizer.get()), task, drawn);
  return inference.end(is_stopped);
}

}  // namespace zs
