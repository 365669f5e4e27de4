#pragma once

#include "model/train/inference/evaluate.h"
#include "model/train/inference/inference.h"

namespace zs {

/// True if the first rank finds that the files are tasks, false if they are data or there are none. Error(usage) where
/// some are the one and some the other, and for an option of the other.
bool are_tasks(const Config& config, const EvaluateRequest& request);

/// Collective: figures of tasks, a table on stdout by one rank, and what each line came to in the file that is asked
/// for. The exit code.
int evaluate_tasks(Inference& inference, const EvaluateRequest& request);

}  // namespace zs
