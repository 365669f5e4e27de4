#include "model/train/rank/program_words.h"

#include <string_view>

#include "model/train/rank/error_line.h"

namespace zs {
namespace {

struct Words {
  std::string_view library, program;
};

constexpr Words kWords[] = {
    {"WorldOptions::timeout_s", "comm.timeout_s"},
    {"reduce the micro-batch or the model", "reduce train.micro_batch or the model"},
    {"use another checkpoint", "use another checkpoint; --resume latest-valid finds the newest good one"},
    {"load it into the model that it was saved from", "use the configuration it was saved with"},
    {"go on from an earlier checkpoint with a lower learning rate", "lower train.lr"},
    {"save where all hosts see the same files", "put run.dir where all hosts see the same files"},
};

/// Commands that advice names as they are called in a build folder.
constexpr std::string_view kBuilt = "train", kCommandWords[] = {"train keys", "train report", "train evaluate"};

}  // namespace

std::string in_program_words(std::string advice) {
  for (const auto& [library, program] : kWords) {
    const std::size_t at = advice.find(library);
    const bool is_said = program.find(library) != program.npos && advice.find(program) != std::string::npos;
    if (at != std::string::npos && !is_said) advice.replace(at, library.size(), program);
  }
  for (const std::string_view command : kCommandWords)
    if (const std::size_t at = advice.find(command); at != std::string::npos && program_name() != kBuilt)
      advice.replace(at, kBuilt.size(), program_name());
  return advice;
}

}  // namespace zs
