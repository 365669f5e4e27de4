#include "model/train/cli/inference_work.h"

#include <utility>

#include "model/train/config/expand_path.h"
#include "model/train/config/key_use.h"
#include "runtime/base/standard_streams.h"

namespace zs {

RankWork inference_work(const InferenceRequest& request, std::function<int(Inference& inference)> run) {
  const std::string unread = unread_keys(key_use(request.command), request.overrides);
  if (!unread.empty() && is_first_started()) print_to_stderr("train: warning: {}\n", unread);
  const SavedModel model = find_saved_model(expand_path(request.of));
  Config config = config_of(model, request.overrides, request.files);
  if (config.comm.transport == "null" || config.comm.omit != "none")
    throw Error(ExitCode::config, "a model of which not all is exchanged has no results",
                config.comm.omit != "none" ? "comm.omit" : "transport null", "leave it out");
  RankWork work{.config = config, .config_path = "command line", .started = request.started, .run = {}};
  work.run = [config = std::move(config), model, run = std::move(run)](World& world) {
    Inference inference(world, config, model);
    return run(inference);
  };
  return work;
}

}  // namespace zs
