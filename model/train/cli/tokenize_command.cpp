#include "model/train/cli/tokenize_command.h"

#include <cstdlib>
#include <limits>
#include <map>
#include <string_view>

#include "model/train/config/config_dataset.h"
#include "model/train/config/expand_path.h"
#include "model/train/rank/program.h"
#include "runtime/device/cpu_topology.h"

namespace zs {

void add_tokenize_options(CLI::App& app, TokenizeJob& job) {
  app.add_option("--tokenize", job.tokenizer,
                 "write the token ids of texts to --out and stop: --tokenize FOLDER TEXT... --out FILE.bin, with the "
                 "folder of a tokenizer, and "
                 "files, patterns or folders in place of a configuration (docs/tokenizer.md)")
      ->type_name("FOLDER")
      ->check([](const std::string& text) { return text.empty() ? std::string("needs a folder") : std::string(); });
  app.add_option("TEXT...", job.inputs, "with --tokenize and --evaluate: what to read")->type_name("");
  app.add_option("--out", job.out, "with --tokenize, --report and --fit: the file to write")->type_name("FILE");
  static const std::map<std::string, SpecialTokens> kSpecial = {
      {"auto", SpecialTokens::automatic}, {"always", SpecialTokens::always}, {"none", SpecialTokens::none}};
  app.add_option("--special-tokens", job.special,
                 "with --tokenize: auto, always or none: which tokens a text gets beside its own, as "
                 "data.special_tokens has it")
      ->transform(CLI::CheckedTransformer(kSpecial))
      ->type_name("auto|always|none");
}

void add_show_options(CLI::App& app, ShowDocument& shown) {
  app.add_option("--show-document", shown.number,
                 "print document N of the training data as it is trained on, ids, tokens and which of them are "
                 "targets, and stop: --show-document N CONFIG.toml")
      ->type_name("N")
      ->check(CLI::Range(std::int64_t{1}, std::numeric_limits<std::int64_t>::max()));
}

std::string show_document(const ShowDocument& shown, const std::string& config,
                          const std::vector<std::string>& overrides, const char* program) {
  const std::string path = expand_path(config);
  const Config loaded = load_config(path, overrides);
  DatasetOptions options = dataset_options(loaded, path, program_folder(program));
  if (!loaded.data.tokenizer.empty()) options.tokenizer = open_tokenizer(loaded.data.tokenizer);
  options.threads = cpu_share(0, 1).threads;
  return show_document(options, shown.number);
}

int tokenize(TokenizeJob& job, const std::string& first_input) {
  if (!first_input.empty()) job.inputs.insert(job.inputs.begin(), first_input);
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* const size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (size != nullptr && std::string_view(size) != "1") {
    if (rank == nullptr || std::string_view(rank) == "0")
      throw Error(ExitCode::usage, "--tokenize works with threads, and mpirun has started ranks", "command line",
                  "leave out mpirun");
    return static_cast<int>(ExitCode::usage);
  }
  if (job.inputs.empty())
    throw Error(ExitCode::usage, "--tokenize without a text", "command line", "name files, patterns or folders");
  if (job.out.empty())
    throw Error(ExitCode::usage, "--tokenize without --out", "command line", "say where to write: --out FILE.bin");
  tokenize_files(job);
  return 0;
}

std::optional<Error> misplaced(const TokenizeJob& job) {
  if (!job.tokenizer.empty() || (job.inputs.empty() && job.out.empty())) return std::nullopt;
  const std::string what = job.inputs.empty() ? "--out without --tokenize, --report or --fit"
                                              : fmt::format("the argument {} was not expected", job.inputs.front());
  return Error(ExitCode::usage, what, "command line", "see train --help");
}

}  // namespace zs
