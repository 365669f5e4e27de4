#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/rank_work.h"
#include "model/train/config/config_schema.h"

namespace zs {
namespace {

int print_keys(const std::string& pattern) {
  const std::string text = config_help(pattern);
  if (text.empty())
    throw Error(ExitCode::usage, fmt::format("no key matches \"{}\"", pattern), "command line",
                "name a part of a key, or a pattern such as \"train.*\"");
  return print_answer(text);
}

Command::Action add_keys(CLI::App& app, const Invocation& by) {
  if (by.is_alias) {
    app.add_flag_callback(
        "--help-config", [] {}, "list every key of the configuration");
    app.add_option("CONFIG.toml", "not read")->group("");
    return [] { return run_alone([] { return print_keys("*"); }); };
  }
  const auto pattern = std::make_shared<std::string>("*");
  app.add_option("PATTERN", *pattern, "a part of a key's name, or a pattern: \"train.*\"; none: all keys");
  return [pattern] { return run_alone([&] { return print_keys(*pattern); }); };
}

}  // namespace

Command keys_command() {
  return {.name = "keys",
          .aliases = {"--help-config"},
          .usage = "[PATTERN]",
          .summary = "Explains the keys of the configuration.",
          .add = add_keys};
}

}  // namespace zs
