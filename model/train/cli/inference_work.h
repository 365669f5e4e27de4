#pragma once

#include <string>
#include <vector>

#include "model/train/cli/rank_work.h"
#include "model/train/inference/inference.h"

namespace zs {

/// Request to a model that is there.
struct InferenceRequest {
  std::string of;                       ///< a run, a checkpoint, or a model's folder
  std::vector<std::string> overrides;   ///< --set; what of it has no effect is a warning
  std::string_view command;             ///< name of its KeyUse
  std::vector<std::string> files = {};  ///< data that is read; none: the model's own
  std::string started;                  ///< facts that ranks must have in common beside the configuration, a line each
};

/// Work on that model, its configuration read: `run`, on every rank. Throws Error.
RankWork inference_work(const InferenceRequest& request, std::function<int(Inference& inference)> run);

}  // namespace zs
