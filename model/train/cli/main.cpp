// The trainer's program: its work is that of a command (commands.h).

#include "comm/gpu/gpu_world.h"
#include "model/train/cli/command.h"
#include "model/train/cli/rank_work.h"
#include "model/train/rank/program.h"
#include "model/train/rank/stop_signal.h"

namespace {

/// Start of this process, before anything else.
const auto program_start = zs::TimeLimit::Clock::now();

zs::Invocation invocation(const char* program) {
  return {.started = program_start, .program_folder = zs::program_folder(program), .name = {}};
}

}  // namespace

int main(int argc, char** argv) {
  zs::hold_stop_signals();
  zs::keep_standard_descriptors();
  zs::set_nccl_environment();
  zs::limit_spinning(argv);
  try {
    return zs::run_command_line(argc, argv, invocation(argv[0]));
  } catch (...) {
    const zs::Error error = zs::as_error(std::current_exception());
    zs::print_error(error);
    return static_cast<int>(error.code());
  }
}
