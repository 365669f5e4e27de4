#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>

#include "model/train/cli/commands.h"
#include "model/train/cli/number_option.h"
#include "model/train/cli/rank_work.h"
#include "model/train/cli/run_options.h"
#include "model/train/config/config_dataset.h"
#include "model/train/config/expand_path.h"
#include "runtime/device/cpu_topology.h"

namespace zs {
namespace {

struct DocumentOptions : RunOptions {
  std::int64_t number = 1;  ///< from 1
};

std::string shown_document(const DocumentOptions& options, const Invocation& by) {
  const std::string path = expand_path(options.config_path);
  const Config config = load_config(path, options.overrides);
  DatasetOptions dataset = dataset_options(config, path, by.program_folder);
  open_text(config, dataset);
  dataset.threads = cpu_share(0, 1).threads;
  return show_document(dataset, options.number, ::isatty(STDOUT_FILENO) != 0);
}

Command::Action add_document(CLI::App& app, const Invocation& by) {
  const auto options = std::make_shared<DocumentOptions>();
  add_config_options(app, *options);
  app.get_option("CONFIG.toml")->required();
  app.add_option(by.spelled("N", "--show-document"), options->number, "the document's number, from 1 (1)")
      ->type_name("N")
      ->check(integer_from(1, std::numeric_limits<std::int64_t>::max()));
  return [options, by] { return run_alone([&] { return print_answer(shown_document(*options, by)); }); };
}

}  // namespace

Command document_command() {
  return {.name = "document",
          .aliases = {"--show-document"},
          .usage = "CONFIG.toml [N]",
          .summary = "Prints a document of the training data as it is trained on: ids, tokens, and which are targets.",
          .add = add_document};
}

}  // namespace zs
