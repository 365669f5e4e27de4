#pragma once

#include "model/train/cli/command.h"

/// The table of commands: each has a function here, which its own file defines, and a place in the table.
namespace zs {

Command run_command();
Command tune_command();
Command tokenize_command();
Command document_command();
Command report_command();
Command evaluate_command();
Command sample_command();
Command export_command();
Command verify_command();
Command verify_weights_command();
Command replay_command();
Command fit_command();
Command plan_command();
Command inspect_command();
Command keys_command();

/// In the order of `train --help`. Where options of earlier versions ask for several, the first one counts; the very
/// first is run where nothing asks for any.
inline constexpr Command (*kCommands[])() = {
    run_command,    tune_command,   tokenize_command, report_command,         evaluate_command,
    sample_command, export_command, verify_command,   verify_weights_command, replay_command,
    fit_command,    plan_command,   document_command, inspect_command,        keys_command};

}  // namespace zs
