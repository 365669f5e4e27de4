#include "model/train/cli/inference_command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "model/train/config/expand_path.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

std::string not_empty(const std::string& text) { return text.empty() ? "needs a name" : ""; }

/// From 0 on; nan is no number.
CLI::Validator number_within(double most) {
  return CLI::Validator(
      [most](const std::string& text) {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value);
        return is_number && value >= 0 && value <= most
                   ? std::string()
                   : fmt::format("needs a number from 0 to {}, not {}", most, text);
      },
      "");
}

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

void add_sample_options(CLI::App& app, InferenceCommand& command) {
  SampleRequest& sample = command.sample;
  const auto of_sample = [&command](CLI::Option* option) {
    return option->each([&command, option](const std::string&) {
      if (command.first_of_sample.empty()) command.first_of_sample = option->get_name();
    });
  };
  of_sample(
      app.add_option("--prompt", sample.prompt, "with --sample: the text that it goes on from")->type_name("TEXT"));
  of_sample(app.add_option_function<std::string>(
                   "--prompt-ids",
                   [&sample](const std::string& text) {
                     if (const std::string wrong = parse_ids(text, sample.prompt_ids); !wrong.empty())
                       throw CLI::ValidationError(wrong);
                   },
                   "with --sample: the same as token ids")
                ->type_name("1,2,3"));
  app.add_flag_callback(
      "--print-ids",
      [&command] {
        command.sample.prints_ids = true;
        if (command.first_of_sample.empty()) command.first_of_sample = "--print-ids";
      },
      "with --sample: print the ids that are drawn, with commas between them, and no text");
  of_sample(app.add_option("--tokens", sample.tokens, "with --sample: how many to draw (200)")
                ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}))
                ->type_name("N"));
  of_sample(app.add_option("--temperature", sample.temperature, "with --sample: 0 takes the most likely token (0.8)")
                ->check(number_within(1000))
                ->type_name("T"));
  of_sample(
      app.add_option("--top-k", sample.top_k, "with --sample: draw from the K most likely tokens; 0: from all (0)")
          ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31))
          ->type_name("K"));
  of_sample(app.add_option("--top-p", sample.top_p,
                           "with --sample: draw from the most likely tokens that together have this probability (1)")
                ->check(number_within(1))
                ->type_name("P"));
  of_sample(app.add_option("--seed", sample.seed, "with --sample: of the random numbers (train.seed)")
                ->check([](const std::string& text) {
                  const auto seed = parse_integer<std::int64_t>(text);
                  return seed && *seed >= 0 ? std::string() : "needs an integer from 0 to 2^63 - 1, not " + text;
                })
                ->type_name("N"));
}

}  // namespace

void add_inference_options(CLI::App& app, InferenceCommand& command) {
  app.add_option(
         "--evaluate", command.evaluated,
         "print loss, perplexity and tokens of a run's newest checkpoint, or of the checkpoint that is named, and "
         "stop: --evaluate "
         "RUN [FILE...], over these files, patterns or folders, or over the run's validation data (docs/inference.md)")
      ->type_name("RUN")
      ->check(not_empty);
  app.add_option("--logits", command.evaluate.logits,
                 "with --evaluate: a new file for the logits, (tokens, model.vocab) f32 by rows")
      ->type_name("FILE")
      ->check(not_empty);
  app.add_option("--sample", command.sampled,
                 "print a text that a run's newest checkpoint, or the checkpoint that is named, makes up, and stop "
                 "(docs/inference.md)")
      ->type_name("RUN")
      ->check(not_empty);
  add_sample_options(app, command);
}

std::optional<Error> misplaced(const InferenceCommand& command, const std::string& other) {
  const auto refuse = [](const std::string& what, const std::string& todo) {
    return Error(ExitCode::usage, what, "command line", todo);
  };
  const char* const task = command.evaluated.empty() ? "--sample" : "--evaluate";
  if (!command.evaluate.logits.empty() && command.evaluated.empty())
    return refuse("--logits without --evaluate", "say of which model: --evaluate RUN");
  if (!command.first_of_sample.empty() && command.sampled.empty())
    return refuse(fmt::format("{} without --sample", command.first_of_sample), "say of which model: --sample RUN");
  if (!command.is_wanted()) return std::nullopt;
  if (!command.evaluated.empty() && !command.sampled.empty())
    return refuse("--evaluate and --sample do not go together", "use one after the other");
  if (!other.empty()) return refuse(fmt::format("{} and {} do not go together", task, other), "leave one of them out");
  if (command.sample.prompt && !command.sample.prompt_ids.empty())
    return refuse("--prompt and --prompt-ids do not go together", "leave one of them out");
  if (!command.sampled.empty() && !command.evaluate.files.empty())
    return refuse(fmt::format("the argument {} was not expected", command.evaluate.files.front()),
                  "give the text to go on from as --prompt");
  return std::nullopt;
}

Config load(InferenceCommand& command, const std::vector<std::string>& overrides) {
  command.model = find_saved_model(expand_path(command.evaluated.empty() ? command.sampled : command.evaluated));
  for (std::string& file : command.evaluate.files) file = expand_path(file);
  command.evaluate.logits = expand_path(command.evaluate.logits);
  if (!command.evaluated.empty() && !command.model.folder.empty() && command.evaluate.files.empty())
    throw Error(ExitCode::usage, "a model's folder has no validation data", command.evaluated,
                "name files: --evaluate FOLDER FILE...");
  Config config = config_of(command.model, overrides, command.evaluate.files);
  if (config.comm.transport == "null" || config.comm.omit != "none")
    throw Error(ExitCode::config, "a model of which not all is exchanged has no results",
                config.comm.omit != "none" ? "comm.omit" : "transport null", "leave it out");
  return config;
}

std::string describe(const InferenceCommand& command) {
  if (!command.evaluated.empty())
    return fmt::format("--evaluate = {}\n--logits = {}\nfiles = {}\n", command.evaluated,
                       command.evaluate.logits.empty() ? "no" : command.evaluate.logits,
                       fmt::join(command.evaluate.files, " "));
  const SampleRequest& sample = command.sample;
  if (!command.sampled.empty())
    return fmt::format(
        "--sample = {}\n--prompt = {}\n--prompt-ids = {}\n--tokens = {}\n--temperature = {}\n--top-k = {}\n--top-p = "
        "{}\n"
        "--seed = {}\n",
        command.sampled, sample.prompt.value_or(""), fmt::join(sample.prompt_ids, ","), sample.tokens,
        sample.temperature, sample.top_k, sample.top_p, sample.seed.value_or(-1));
  return "";
}

int run(World& world, const Config& config, const InferenceCommand& command) {
  Inference inference(world, config, command.model);
  return command.sampled.empty() ? evaluate(inference, command.evaluate) : sample(inference, command.sample);
}

}  // namespace zs
