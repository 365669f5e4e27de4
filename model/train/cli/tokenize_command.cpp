#include <map>
#include <memory>
#include <string>

#include "model/train/cli/commands.h"
#include "model/train/cli/rank_work.h"
#include "model/train/inference/tokenize.h"
#include "model/train/rank/stop_signal.h"
#include "runtime/base/launch.h"

namespace zs {
namespace {

int tokenize(const TokenizeJob& job, const Invocation& by) {
  if (const Launch launch = read_launch(); launch.has_several_ranks()) {
    if (launch.rank == 0)
      throw Error(ExitCode::usage,
                  fmt::format("{} works with threads, and {} has started ranks", by.name, launch.launcher),
                  "command line", "leave out " + launch.launcher);
    return static_cast<int>(ExitCode::usage);
  }
  if (job.inputs.empty())
    throw Error(ExitCode::usage, fmt::format("{} without a text", by.name), "command line",
                "name files, patterns or folders");
  if (job.out.empty())
    throw Error(ExitCode::usage, fmt::format("{} without --out", by.name), "command line",
                "say where to write: --out FILE.bin");
  tokenize_files(job);
  return 0;
}

Command::Action add_tokenize(CLI::App& app, const Invocation& by) {
  const auto job = std::make_shared<TokenizeJob>();
  app.add_option(by.spelled("FOLDER", "--tokenize"), job->tokenizer, "the folder of a tokenizer (docs/tokenizer.md)")
      ->type_name("FOLDER")
      ->required()
      ->check([](const std::string& text) { return text.empty() ? std::string("needs a folder") : std::string(); });
  app.add_option("TEXT...", job->inputs, "files, patterns or folders")->type_name("");
  app.add_option("--out", job->out, "the file to write")->type_name("FILE.bin");
  static const std::map<std::string, SpecialTokens> kSpecial = {
      {"auto", SpecialTokens::automatic}, {"always", SpecialTokens::always}, {"none", SpecialTokens::none}};
  app.add_option("--special-tokens", job->special,
                 "which tokens a text gets beside its own, as data.special_tokens has it")
      ->transform(CLI::CheckedTransformer(kSpecial))
      ->type_name("auto|always|none");
  return [job, by] {
    release_stop_signals();
    return tokenize(*job, by);
  };
}

}  // namespace

Command tokenize_command() {
  return {.name = "tokenize",
          .aliases = {"--tokenize"},
          .usage = "FOLDER TEXT... --out FILE.bin",
          .summary = "Writes the token ids of texts.",
          .add = add_tokenize};
}

}  // namespace zs
