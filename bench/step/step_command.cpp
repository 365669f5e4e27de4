#include "bench/step/step_command.h"

#include <string_view>
#include <vector>

#include "bench/common/rank_program.h"
#include "model/train/config/config_schema.h"
#include "model/train/rank/startup.h"

namespace zs::bench {
namespace {

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
    const auto set = [&step, size](const std::int64_t& value) {
      step.settings.push_back(fmt::format("model.{}={}", size, value));
    };
    app.add_option_function<std::int64_t>(fmt::format("--{}", size), set, "instead of the preset's");
  }
  const auto set_device = [&step](const std::string& device) { step.settings.push_back("device=" + device); };
  app.add_option_function<std::string>("--device", set_device, "where to compute; default: cpu")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  const auto set_transport = [&step](const std::string& transport) {
    step.settings.push_back("cuda.transport=" + transport);
    step.needs_gpus = "--transport";
  };
  app.add_option_function<std::string>("--transport", set_transport, "between GPUs (cuda.transport); default: auto")
      ->check(CLI::IsMember({"auto", "nccl", "staged"}));
  app.add_option("--dtype", step.dtype, "of parameters and activations")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  const auto set_all = [&step](const std::vector<std::string>& all) {
    step.settings.insert(step.settings.end(), all.begin(), all.end());
  };
  app.add_option_function<std::vector<std::string>>("--set", set_all,
                                                    "key=value: a key of the configuration; repeatable")
      ->allow_extra_args(false);
  add_count_option(app, "--micro-batch", step.micro_batch, "sequences in a micro-batch");
  add_count_option(app, "--micro-batches", step.micro_batches, "micro-batches a rank and step");
  add_count_option(app, "--sequence", step.sequence, "tokens in a sequence");
  add_count_option(app, "--steps", step.steps, "timed steps");
  add_count_option(app, "--warmup", step.warmup, "steps before them", 0);
  add_count_option(app, "--profile-steps", step.profile_steps, "steps after them whose ops are timed");
}

int run_step_program(int argc, char** argv, CLI::App& app, const StepOptions& step, const StepBody& body) {
  Config config;
  const auto read_config = [&](const World& world) {
    config = step_config(step, world.size());
    if (device_kind(config) != DeviceKind::cuda && !step.needs_gpus.empty())
      throw Error(ExitCode::usage, "nothing is sent between GPUs without --device cuda", step.needs_gpus,
                  "add --device cuda; between hosts ZSHARD_TRANSPORT chooses");
  };
  const auto run_body = [&](World& world) {
    Machine machine;
    if (const ExitCode code = take_gpus(world, config, app.get_name(), machine); code != ExitCode::ok)
      return ProgramOutput{"", code};
    return ProgramOutput{body(world, config, machine)};
  };
  return run_rank_program(argc, argv, app, {launched_world, read_config, run_body});
}

}  // namespace zs::bench
