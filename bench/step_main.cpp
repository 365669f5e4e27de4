// bench_step: how fast one model trains here, compared with what the machine's products allow, and where a step's time goes.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <optional>

#include "bench/step_bench.h"
#include "model/train/config_schema.h"
#include "model/train/error_line.h"
#include "model/train/program.h"
#include "model/version.h"

namespace {

using zs::Error;
using zs::ExitCode;

struct CommandLine {
  zs::bench::StepOptions step;
  bool json = false;
  std::optional<Error> problem;  // told by one rank
};

std::string line_of(const Error& error, const zs::World* world = nullptr) {
  return zs::error_line(error, world != nullptr && world->size() > 1 ? fmt::format("rank {}", world->rank()) : "", "bench_step");
}

/// The configuration, or nothing and the exit code: what is wrong with the command line, every rank sees alike and one tells.
std::optional<zs::Config> agreed_config(zs::World& world, const CommandLine& line, int& code) {
  std::optional<zs::Config> config;
  std::string message;
  try {
    if (line.problem) throw *line.problem;
    config = step_config(line.step, world.size());
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = line_of(error);
  }
  const zs::World::Agreement agreement = world.agree(code, message);
  code = agreement.code;
  if (code == 0) return config;
  if (world.rank() == agreement.rank) fmt::print(stderr, "{}\n", agreement.message);
  return std::nullopt;
}

int run(zs::World& world, const CommandLine& line) {
  try {
    int code = 0;
    const auto config = agreed_config(world, line, code);
    if (!config) return code;
    const zs::bench::StepReport report = zs::bench::StepBench(world, line.step, *config).run();
    if (world.rank() == 0) fmt::print("{}\n", line.json ? to_json(report) : to_text(report));
    std::fflush(stdout);
    return 0;
  } catch (...) {
    const Error error = zs::as_error(std::current_exception());
    fmt::print(stderr, "{}\n", line_of(error, &world));
    std::fflush(nullptr);
    if (world.size() > 1) world.abort(static_cast<int>(error.code()));
    return static_cast<int>(error.code());
  }
}

/// The presets that the configuration knows.
std::vector<std::string> presets() {
  std::vector<std::string> names;
  for (const std::string_view name : zs::find_config_key("model.preset")->choice_list())
    if (!name.empty()) names.emplace_back(name);
  return names;
}

void add_model_options(CLI::App& app, zs::bench::StepOptions& step) {
  app.add_option("--preset", step.preset, "the model's sizes")->check(CLI::IsMember(presets()))->capture_default_str();
  for (const char* size : {"layers", "heads", "width"}) {
    const auto set = [&step, size](const std::int64_t& value) { step.settings.push_back(fmt::format("model.{}={}", size, value)); };
    app.add_option_function<std::int64_t>(fmt::format("--{}", size), set, "instead of the preset's");
  }
  app.add_option("--dtype", step.dtype, "of parameters and activations")->check(CLI::IsMember({"f32", "bf16"}))->capture_default_str();
  const auto set_all = [&step](const std::vector<std::string>& all) { step.settings.insert(step.settings.end(), all.begin(), all.end()); };
  app.add_option_function<std::vector<std::string>>("--set", set_all, "key=value: a key of the configuration; repeatable")
      ->allow_extra_args(false);
}

void add_options(CLI::App& app, CommandLine& line) {
  zs::bench::StepOptions& step = line.step;
  add_model_options(app, step);
  const auto add_count = [&app](const char* flag, std::int64_t& count, const char* what, std::int64_t smallest = 1) {
    app.add_option(flag, count, what)->check(CLI::Range(smallest, std::int64_t{1'000'000}))->capture_default_str();
  };
  add_count("--micro-batch", step.micro_batch, "sequences in a micro-batch");
  add_count("--micro-batches", step.micro_batches, "micro-batches a rank and step");
  add_count("--sequence", step.sequence, "tokens in a sequence");
  add_count("--steps", step.steps, "timed steps");
  add_count("--warmup", step.warmup, "steps before them", 0);
  add_count("--profile-steps", step.profile_steps, "steps after them whose ops are timed");
  app.add_flag("--json", line.json, "one line of JSON instead of tables");
  app.set_version_flag("--version", std::string("zshard ") + zs::version());
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Times the training step of a GPT-2 on made-up tokens. Several ranks: mpirun -q -np N build/bench_step ...", "bench_step");
  CommandLine line;
  add_options(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    line.problem = Error(ExitCode::usage, error.what(), "command line", "see bench_step --help");
  }
  const auto world = zs::detect_launch() == zs::Launch::mpirun ? zs::make_mpi_world({}) : zs::make_single_world({});
  return run(*world, line);
}

}  // namespace

int main(int argc, char** argv) {
  zs::limit_spinning(argv);
  try {
    return parse_and_run(argc, argv);
  } catch (...) {
    const Error error = zs::as_error(std::current_exception());
    fmt::print(stderr, "{}\n", line_of(error));
    return static_cast<int>(error.code());
  }
}
