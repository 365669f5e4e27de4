#pragma once

#include <string>

namespace zs {

/// Reads every byte of a checkpoint, or of all checkpoints of a run, on one rank: a line to stdout for each that is
/// good, to stderr for each that is not. The program's exit code. Error(checkpoint) when there is none.
int verify_checkpoints(const std::string& path);

}  // namespace zs
