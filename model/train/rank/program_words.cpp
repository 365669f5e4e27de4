#include "model/train/rank/program_words.h"

#include <string_view>

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

}  // namespace

std::string in_program_words(std::string advice) {
  for (const auto& [library, program] : kWords) {
    const std::size_t at = advice.find(library);
    const bool is_said = program.find(library) != program.npos && advice.find(program) != std::string::npos;
    if (at != std::string::npos && !is_said) advice.replace(at, library.size(), program);
  }
  return advice;
}

}  // namespace zs
