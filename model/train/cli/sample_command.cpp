#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/inference_work.h"
#include "model/train/cli/number_option.h"
#include "model/train/inference/chat_run.h"
#include "model/train/inference/sample_run.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

struct SampleOptions : InferenceRequest {
  SampleRequest sample;
  bool is_chat = false;
  std::string system;
};

/// "1,2,3"
std::string parse_ids(const std::string& text, std::vector<std::int32_t>& ids) {
  ids.clear();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const auto id = parse_integer<std::int32_t>(text.substr(begin, end - begin));
    if (!id || *id < 0) return "--prompt-ids wants token ids with commas between them: 1,2,3";
    ids.push_back(*id);
    begin = end + 1;
  }
  return "";
}

void add_prompt_options(CLI::App& app, SampleRequest& sample) {
  app.add_option("--prompt", sample.prompt, "the text that it goes on from")->type_name("TEXT");
  app.add_option_function<std::string>(
         "--prompt-ids",
         [&sample](const std::string& text) {
           if (const std::string wrong = parse_ids(text, sample.prompt_ids); !wrong.empty())
             throw CLI::ValidationError(wrong);
         },
         "the same as token ids")
      ->type_name("1,2,3");
  app.add_flag("--print-ids", sample.prints_ids, "print the ids that are drawn, with commas between them, and no text");
}

void add_drawing_options(CLI::App& app, SampleRequest& sample) {
  app.add_option("--tokens", sample.tokens, "how many to draw (200), of an answer at most (1024)")
      ->check(integer_from(1, 1'000'000))
      ->type_name("N");
  app.add_option("--temperature", sample.temperature, "0 takes the most likely token (0.8)")
      ->check(number_from(0, 1000))
      ->type_name("T");
  app.add_option("--top-k", sample.top_k, "draw from the K most likely tokens; 0: from all (0)")
      ->check(integer_from(0, std::int64_t{1} << 31))
      ->type_name("K");
  app.add_option("--top-p", sample.top_p, "draw from the most likely tokens that together have this probability (1)")
      ->check(number_from(0, 1))
      ->type_name("P");
  app.add_option("--seed", sample.seed, "of the random numbers (train.seed)")
      ->check(integer_from(0, std::numeric_limits<std::int64_t>::max()))
      ->type_name("N");
}

RankWork prepare(SampleOptions& options) {
  const SampleRequest& sample = options.sample;
  if (sample.prompt && !sample.prompt_ids.empty())
    throw Error(ExitCode::usage, "--prompt and --prompt-ids do not go together", "command line",
                "leave one of them out");
  const bool has_prompt = sample.prompt || !sample.prompt_ids.empty() || sample.prints_ids;
  if (options.is_chat && has_prompt)
    throw Error(ExitCode::usage, "--chat goes with no prompt and no ids", "command line",
                "type what it shall answer, or leave --chat out");
  if (!options.is_chat && !options.system.empty())
    throw Error(ExitCode::usage, "--system is a message of a chat", "command line", "give --chat, too");
  options.command = "sample";
  options.started = fmt::format(
      "--sample = {}\n--prompt = {}\n--prompt-ids = {}\n--tokens = {}\n--temperature = {}\n--top-k = {}\n--top-p = {}\n"
      "--seed = {}\n--chat = {}\n--system = {}\n",
      options.of, sample.prompt.value_or(""), fmt::join(sample.prompt_ids, ","), sample.tokens.value_or(-1),
      sample.temperature, sample.top_k, sample.top_p, sample.seed.value_or(-1), options.is_chat, options.system);
  if (options.is_chat)
    return inference_work(options, [request = ChatRequest{options.system, sample}](Inference& inference) {
      return chat(inference, request);
    });
  return inference_work(options, [sample](Inference& inference) { return zs::sample(inference, sample); });
}

Command::Action add_sample(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<SampleOptions>();
  app.add_option(by.spelled("RUN", "--sample"), options->of, "a run, of which the newest checkpoint, or a checkpoint")
      ->type_name("RUN")
      ->required()
      ->check(not_empty);
  app.add_option("--set", options->overrides, "key=value: overrides a key of the run; repeatable")
      ->allow_extra_args(false);
  app.add_flag("--chat", options->is_chat, "answer what is typed, a line a turn, by the model's chat template");
  app.add_option("--system", options->system, "a message before the chat")->type_name("TEXT");
  add_prompt_options(app, options->sample);
  add_drawing_options(app, options->sample);
  return [options] { return run_on_ranks([&] { return prepare(*options); }); };
}

}  // namespace

Command sample_command() {
  return {.name = "sample",
          .aliases = {"--sample"},
          .usage = "RUN [--prompt TEXT | --chat]",
          .summary = "Prints a text that a saved model makes up, or chats.",
          .add = add_sample};
}

}  // namespace zs
