#include "bench/step_command.h"

#include <cstdio>
#include <optional>

#include "model/train/config_schema.h"
#include "model/train/error_line.h"
#include "model/train/program.h"
#include "model/version.h"

namespace zs::bench {
namespace {

struct Program {
  std::string name;
  const StepOptions& step;
  const StepBody& body;
  std::optional<Error> problem = {};  // of the command line: told by one rank

  std::string line_of(const Error& error, const World* world = nullptr) const {
    return error_line(error, world != nullptr && world->size() > 1 ? fmt::format("rank {}", world->rank()) : "", name);
  }
};

/// The configuration, or nothing and the exit code: what is wrong with the command line, every rank sees alike and one tells.
std::optional<Config> agreed_config(World& world, const Program& program, int& code) {
  std::optional<Config> config;
  std::string message;
  try {
    if (program.problem) throw *program.problem;
    config = step_config(program.step, world.size());
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = program.line_of(error);
  }
  const World::Agreement agreement = world.agree(code, message);
  code = agreement.code;
  if (code == 0) return config;
  if (world.rank() == agreement.rank) fmt::print(stderr, "{}\n", agreement.message);
  return std::nullopt;
}

int run(World& world, const Program& program) {
  try {
    int code = 0;
    const auto config = agreed_config(world, program, code);
    if (!config) return code;
    const std::string text = program.body(world, *config);
    if (world.rank() == 0) fmt::print("{}\n", text);
    std::fflush(stdout);
    return 0;
  } catch (...) {
    const Error error = as_error(std::current_exception());
    fmt::print(stderr, "{}\n", program.line_of(error, &world));
    std::fflush(nullptr);
    if (world.size() > 1) world.abort(static_cast<int>(error.code()));
    return static_cast<int>(error.code());
  }
}

/// The presets that the configuration knows.
std::vector<std::string> presets() {
  std::vector<std::string> names;
  for (const std::string_view name : find_config_key("model.preset")->choice_list())
    if (!name.empty()) names.emplace_back(name);
  return names;
}

}  // namespace

void add_count_option(CLI::App& app, const char* flag, std::int64_t& count, const char* what, std::int64_t smallest) {
  app.add_option(flag, count, what)->check(CLI::Range(smallest, std::int64_t{1'000'000}))->capture_default_str();
}

void add_step_options(CLI::App& app, StepOptions& step) {
  app.add_option("--preset", step.preset, "the model's sizes")->check(CLI::IsMember(presets()))->capture_default_str();
  for (const char* size : {"layers", "heads", "width"}) {
    const auto set = [&step, size](const std::int64_t& value) { step.settings.push_back(fmt::format("model.{}={}", size, value)); };
    app.add_option_function<std::int64_t>(fmt::format("--{}", size), set, "instead of the preset's");
  }
  app.add_option("--dtype", step.dtype, "of parameters and activations")->check(CLI::IsMember({"f32", "bf16"}))->capture_default_str();
  const auto set_all = [&step](const std::vector<std::string>& all) { step.settings.insert(step.settings.end(), all.begin(), all.end()); };
  app.add_option_function<std::vector<std::string>>("--set", set_all, "key=value: a key of the configuration; repeatable")
      ->allow_extra_args(false);
  add_count_option(app, "--micro-batch", step.micro_batch, "sequences in a micro-batch");
  add_count_option(app, "--micro-batches", step.micro_batches, "micro-batches a rank and step");
  add_count_option(app, "--sequence", step.sequence, "tokens in a sequence");
  add_count_option(app, "--steps", step.steps, "timed steps");
  add_count_option(app, "--warmup", step.warmup, "steps before them", 0);
  add_count_option(app, "--profile-steps", step.profile_steps, "steps after them whose ops are timed");
  app.set_version_flag("--version", std::string("zshard ") + version());
}

int run_step_program(int argc, char** argv, CLI::App& app, const StepOptions& step, const StepBody& body) {
  Program program{app.get_name(), step, body};
  try {
    limit_spinning(argv);
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& success) {  // --help, --version
      return app.exit(success);
    } catch (const CLI::ParseError& error) {
      program.problem = Error(ExitCode::usage, error.what(), "command line", fmt::format("see {} --help", program.name));
    }
    const auto world = detect_launch() == Launch::mpirun ? make_process_world({}) : make_single_world({});
    return run(*world, program);
  } catch (...) {
    const Error error = as_error(std::current_exception());
    fmt::print(stderr, "{}\n", program.line_of(error));
    return static_cast<int>(error.code());
  }
}

}  // namespace zs::bench
