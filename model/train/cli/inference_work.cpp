#include "model/train/cli/inference_work.h"

#include <utility>

#include "model/train/config/expand_path.h"
#include "model/train/config/key_use.h"
#include "model/train/config/site_defaults.h"
#include "model/train/rank/error_line.h"

namespace zs {

RankWork inference_work(const InferenceRequest& request, std::function<int(Inference& inference)> run) {
  const std::string unread = unread_keys(key_use(request.command), request.overrides);
  if (!unread.empty() && is_first_started()) print_warning(unread);
  const SavedModel model = find_saved_model(expand_path(request.of));
  Config config = config_of(model, request.overrides, request.files);
  if (const std::string note = site_note(config); !note.empty() && is_first_started()) print_note(note);
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
