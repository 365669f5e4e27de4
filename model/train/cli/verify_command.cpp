#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/rank_work.h"
#include "model/train/config/expand_path.h"
#include "model/train/run_dir/verify.h"
#include "model/weights/weight_files.h"

namespace zs {
namespace {

Command::Action add_verify(CLI::App& app, const Invocation& by) {
  const auto path = std::make_shared<std::string>();
  app.add_option(by.spelled("RUN", "--verify"), *path, "a checkpoint, or a run: all of its checkpoints")->required();
  return [path] {
    return run_alone([&] {
      const int code = verify_checkpoints(expand_path(*path));
      return code == 0 ? print_answer("") : code;
    });
  };
}

Command::Action add_verify_weights(CLI::App& app, const Invocation& by) {
  const auto path = std::make_shared<std::string>();
  app.add_option(by.spelled("FILE", "--verify-weights"), *path,
                 "a file of weights in safetensors, an index, or the folder of a model")
      ->required();
  return [path] { return run_alone([&] { return print_answer(describe_weights(expand_path(*path))); }); };
}

}  // namespace

Command verify_command() {
  return {.name = "verify",
          .aliases = {"--verify"},
          .usage = "RUN",
          .summary = "Reads every byte of a checkpoint, or of all of a run.",
          .add = add_verify};
}

Command verify_weights_command() {
  return {.name = "verify-weights",
          .aliases = {"--verify-weights"},
          .usage = "FILE",
          .summary = "Checks files of weights, and lists what is in them.",
          .add = add_verify_weights};
}

}  // namespace zs
