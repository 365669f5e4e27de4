#include "model/train/cli/command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>

#include "model/job/version.h"
#include "model/train/cli/commands.h"
#include "model/train/cli/rank_work.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/program.h"
#include "runtime/base/name_pattern.h"

namespace zs {
namespace {

const std::vector<Command>& commands() {
  static const auto all = [] {
    std::vector<Command> made;
    for (const auto make : kCommands) made.push_back(make());
    return made;
  }();
  return all;
}

bool is_alias_in(std::string_view alias, const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [&](std::string_view argument) {
    return argument == alias || (argument.starts_with(alias) && argument.substr(alias.size()).starts_with('='));
  });
}

/// Request that the command line makes.
struct Request {
  const Command* command;
  std::vector<std::string> arguments;
  Invocation by;
};

Request find_request(std::vector<std::string> arguments, Invocation by) {
  const auto& all = commands();
  const auto named = std::find_if(all.begin(), all.end(), [&](const Command& command) {
    return !arguments.empty() && (arguments.front() == command.name || arguments.front() == command.other_name);
  });
  if (named != all.end()) {
    if (named != all.begin()) by.name = named->name;
    arguments.erase(arguments.begin());
    return {&*named, std::move(arguments), std::move(by)};
  }
  for (const Command& command : all) {
    for (const std::string_view alias : command.aliases) {
      if (!is_alias_in(alias, arguments)) continue;
      by.name = alias;
      by.is_alias = true;
      return {&command, std::move(arguments), std::move(by)};
    }
  }
  return {&all.front(), std::move(arguments), std::move(by)};
}

bool takes(const Command& command, const std::string& option, const Invocation& by) {
  CLI::App app;
  const Command::Action act = command.add(app, by);
  return app.get_option_no_throw(option) != nullptr;
}

/// Names of the commands that take this option, "tokenize, report or fit"; empty: none does.
std::string owners_of(const std::string& option, Invocation by) {
  std::vector<std::string_view> names;
  by.is_alias = false;
  for (const Command& command : commands()) {
    by.name = command.name;
    if (takes(command, option, by)) names.push_back(command.name);
  }
  if (names.size() < 2) return names.empty() ? "" : std::string(names.front());
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

bool is_alias(const std::string& option) {
  return std::any_of(commands().begin(), commands().end(), [&](const Command& command) {
    return std::find(command.aliases.begin(), command.aliases.end(), option) != command.aliases.end();
  });
}

/// Error of a first word that is no file, and nearly a command's name.
std::optional<Error> misspelled(const std::vector<std::string>& arguments) {
  constexpr std::size_t kNear = 2;
  if (arguments.empty() || arguments.front().find_first_of("./-") != std::string::npos) return std::nullopt;
  const std::string& word = arguments.front();
  std::error_code failed;
  if (std::filesystem::exists(word, failed)) return std::nullopt;
  for (const Command& command : commands())
    for (const std::string_view name : {command.name, command.other_name})
      if (!name.empty() && edit_distance(word, name) <= kNear)
        return Error(ExitCode::usage, fmt::format("there is no command \"{}\"", word), "command line",
                     fmt::format("did you mean {}?", name));
  return std::nullopt;
}

/// Error of arguments that the command does not take.
std::optional<Error> unexpected(const CLI::App& app, const Invocation& by) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return std::nullopt;
  const auto first =
      std::find_if(extras.begin(), extras.end(), [](const std::string& text) { return text.starts_with("--"); });
  const auto refuse = [&](const std::string& what) {
    return Error(ExitCode::usage, what, "command line", see_help(by));
  };
  if (first == extras.end()) return refuse(fmt::format("the argument {} was not expected", extras.front()));
  const std::string option = first->substr(0, first->find('='));
  const bool is_of_run = takes(commands().front(), option, {.started = {}, .program_folder = {}, .name = {}});
  if (!by.name.empty() && (is_of_run || is_alias(option)))
    return Error(ExitCode::usage, fmt::format("{} and {} do not go together", by.name, option), "command line",
                 "leave one of them out");
  const std::string owners = owners_of(option, by);
  return refuse(owners.empty() ? fmt::format("The following argument was not expected: {}", option)
                               : fmt::format("{} is an option of {} {}", option, program_name(), owners));
}

/// Commands, a line each.
std::string list_commands() {
  std::string text = "\nCommands (each has --help):\n";
  for (const Command& command : commands())
    text += fmt::format("  {} {:<16} {}\n", program_name(), command.name, command.summary);
  return text;
}

std::string new_form(const Command& command, const Invocation& by) {
  return fmt::format("{} is a command now: {} {} {}", by.name, program_name(), command.name, command.usage);
}

}  // namespace

std::string not_empty(const std::string& text) { return text.empty() ? "needs a name" : ""; }

std::string see_help(const Invocation& by) {
  const std::string command = by.name.empty() || by.is_alias ? "" : by.name + " ";
  return fmt::format("see {} {}--help", program_name(), command);
}

int run_command_line(int argc, char** argv, Invocation by) {
  Request request = find_request({argv + 1, argv + argc}, std::move(by));
  const Command& command = *request.command;
  const bool is_run = &command == &commands().front();
  const std::string program(program_name());
  CLI::App app(std::string(command.summary), is_run ? program : fmt::format("{} {}", program, command.name));
  app.allow_extras();
  app.set_version_flag("--version", [] { return describe_build(); });
  if (is_run) app.footer(list_commands());
  const Command::Action act = command.add(app, request.by);
  std::optional<Error> problem;
  if (request.by.name.empty()) problem = misspelled(request.arguments);
  if (problem) return refuse_on_ranks(*problem);
  try {
    std::reverse(request.arguments.begin(), request.arguments.end());  // as CLI11 takes a vector
    app.parse(request.arguments);
    problem = unexpected(app, request.by);
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream text;
    const int code = app.exit(success, text, text);
    return code == 0 ? print_answer(text.str()) : code;
  } catch (const CLI::ParseError& error) {
    problem = Error(ExitCode::usage, error.what(), "command line", see_help(request.by));
  }
  if (problem) return refuse_on_ranks(*problem);
  const int code = act();
  // Not beside an error, which is one line.
  if (code == 0 && request.by.is_alias && is_first_started()) print_note(new_form(command, request.by));
  return code;
}

}  // namespace zs
