#include "model/train/config/config_cuda.h"

#include <fmt/format.h>

#include "model/train/config/config_schema.h"

namespace zs {

void check_cuda(ConfigDraft& draft) {
  const Config& c = draft.config;
  if (are_good(draft, {"device", "model.experts"}) && c.device == "cuda" && c.model.experts > 0)
    draft.report("device", "device = \"cuda\" does not go with a mixture of experts, which has no kernels for GPUs yet",
                 "use device = \"cpu\", or a model without experts");
  if (are_good(draft, {"cuda.graph", "device"}) && c.cuda.graph && c.device != "cuda")
    draft.report("cuda.graph", fmt::format("cuda.graph = true does not go with device = \"{}\"", c.device),
                 "leave it out, or use device = \"cuda\": the CPU has no graphs");
  if (are_good(draft, {"cuda.attention", "train.deterministic"}) && c.cuda.attention == "cudnn" &&
      c.train.deterministic)
    draft.report("cuda.attention", "cuda.attention = \"cudnn\" does not go with train.deterministic",
                 "leave one of them out: cuDNN's attention does not repeat its bits");
  if (are_good(draft, {"cuda.tune_products", "train.deterministic"}) && c.cuda.tune_products && c.train.deterministic)
    draft.report("cuda.tune_products", "cuda.tune_products = true does not go with train.deterministic",
                 "leave one of them out: what is fastest is not the same in every run");
  if (are_good(draft, {"cuda.graph", "run.lost_updates_every"}) && c.cuda.graph && c.run.lost_updates_every > 0)
    draft.report("run.lost_updates_every", "run.lost_updates_every does not go with cuda.graph = true",
                 "leave one of them out: a captured step is the same work each time");
  if (are_good(draft, {"cuda.graph", "device", "model.dropout"}) && c.cuda.graph && c.device == "cuda" &&
      c.model.has_dropout())
    draft.report("cuda.graph",
                 "cuda.graph = true does not go with dropout, whose random numbers are others in each step",
                 "leave it out, or set model.dropout = 0");
}

std::vector<std::string> unused_cuda_keys(const Config& config) {
  std::vector<std::string> unused;
  if (config.device == "cuda") return unused;
  Config own = config, defaults;
  for (const ConfigKey& key : config_keys())
    if (key.name.starts_with("cuda.") && key.name != "cuda.libraries" &&
        toml_value(key.slot(own)) != toml_value(key.slot(defaults)))
      unused.emplace_back(key.name);
  return unused;
}

}  // namespace zs
