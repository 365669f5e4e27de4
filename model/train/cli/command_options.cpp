#include "model/train/cli/command_options.h"

#include <fmt/format.h>

#include <algorithm>

namespace zs {
namespace {

const std::vector<CommandOptions>& all_commands() {
  static const std::vector<CommandOptions> commands = {
      {"--report", {"--set", "--out"}, false},
      {"--evaluate", {"--set", "--logits"}},
      {"--sample",
       {"--set", "--prompt", "--prompt-ids", "--print-ids", "--tokens", "--temperature", "--top-k", "--top-p",
        "--seed"}},
      {"--export", {"--set", "--average", "--dtype", "--shard-mib", "--adapter", "--resume"}},
      {"--verify-weights", {"--set"}, false},
      {"--tokenize", {"--set", "--out", "--special-tokens"}},
      {"--show-document", {"--set"}},
      {"--verify", {"--set"}, false},
      {"",
       {"--set", "--dry-run", "--ranks", "--fit", "--plan-explain", "--plan-diff", "--out", "--resume", "--overwrite",
        "--verify-order", "--verify-data", "--explain", "--trace"}},
  };
  return commands;
}

bool is_given(const CLI::App& app, std::string_view name) {
  const CLI::Option* const option = app.get_option_no_throw(std::string(name));
  return option != nullptr && option->count() > 0;
}

bool takes(const CommandOptions& command, std::string_view option) {
  return std::find(command.options.begin(), command.options.end(), option) != command.options.end();
}

Error refusal(const CommandOptions& command, const std::string& option) {
  if (!command.name.empty())
    return {ExitCode::usage, fmt::format("{} and {} do not go together", command.name, option), "command line",
            "leave one of them out"};
  const auto& all = all_commands();
  const auto owner =
      std::find_if(all.begin(), all.end(), [&](const CommandOptions& other) { return takes(other, option); });
  return {ExitCode::usage, fmt::format("{} without {}", option, owner == all.end() ? "a command" : owner->name),
          "command line", "see train --help"};
}

}  // namespace

const CommandOptions& command_given(const CLI::App& app) {
  const auto& all = all_commands();
  return *std::find_if(all.begin(), all.end(), [&](const CommandOptions& command) {
    return command.name.empty() || is_given(app, command.name);
  });
}

std::optional<Error> misplaced(const CLI::App& app, const CommandOptions& command) {
  for (const CLI::Option* const option : app.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || !name.starts_with("--") || name == command.name || takes(command, name)) continue;
    return refusal(command, name);
  }
  const CLI::Option* const argument = app.get_option_no_throw("CONFIG.toml");
  if (command.has_argument || argument == nullptr || argument->count() == 0) return std::nullopt;
  return Error(ExitCode::usage, fmt::format("the argument {} was not expected", argument->results().front()),
               "command line", fmt::format("{} needs nothing but what it names", command.name));
}

}  // namespace zs
