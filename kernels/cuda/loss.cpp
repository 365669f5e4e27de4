#include "kernels/checks.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

/// lse empty: not wanted; logits may be bf16 then.
CrossEntropyArgs cross_entropy_args(const Buffer& lse, const Buffer& logits, const Buffer& targets,
                                    std::int64_t classes) {
  const std::int64_t stride = lse.empty() ? checks::logits_of_targets(logits, targets, classes)
                                          : checks::cross_entropy(lse, logits, targets, classes);
  return {.lse = lse.empty() ? nullptr : floats_of(lse),
          .logits = elements_of(logits),
          .targets = targets.as<std::int32_t>(),
          .rows = targets.elems,
          .stride = stride,
          .classes = classes,
          .is_aligned = are_whole_packs(stride, logits.data)};
}

void cross_entropy_forward(ExecContext& ctx, Buffer losses, Buffer lse, Buffer logits, Buffer targets,
                           std::int64_t classes) {
  if (targets.empty()) return;
  CrossEntropyArgs args = cross_entropy_args(lse, logits, targets, classes);
  checks::cross_entropy_losses(losses, targets);
  args.losses = floats_of(losses);
  launch(ctx, "zs_cross_entropy_forward", args.rows, kThreads, &args);
}

void cross_entropy_backward(ExecContext& ctx, Buffer dlogits, Buffer logits, Buffer lse, Buffer targets, Buffer dloss,
                            std::int64_t classes, float factor) {
  if (targets.empty()) return;
  CrossEntropyArgs args = cross_entropy_args(lse, logits, targets, classes);
  checks::cross_entropy_gradient(dlogits, logits, dloss);
  args.dlogits = elements_of(dlogits);
  args.dloss = floats_of(dloss);
  args.factor = factor;
  args.is_aligned = are_whole_packs(args.stride, logits.data, dlogits.data);
  launch_elems(ctx, typed("zs_cross_entropy_backward", dlogits.dtype), args.rows * packs_of(args.stride), 1, args);
}

void cross_entropy_in_place(ExecContext& ctx, Buffer losses, Buffer logits, Buffer targets, Buffer dloss,
                            std::int64_t classes, float factor) {
  if (targets.empty()) return;
  CrossEntropyArgs args = cross_entropy_args({}, logits, targets, classes);
  checks::cross_entropy_losses(losses, targets);
  checks::cross_entropy_gradient(logits, logits, dloss);
  args.losses = floats_of(losses);
  args.dloss = floats_of(dloss);
  args.factor = factor;
  launch(ctx, typed("zs_cross_entropy_in_place", logits.dtype), args.rows, kThreads, &args);
}

}  // namespace

void fill_loss(KernelTable& table, KernelNames& names) {
  table.cross_entropy_forward = cross_entropy_forward;
  table.cross_entropy_backward = cross_entropy_backward;
  table.cross_entropy_in_place = cross_entropy_in_place;
  names.push_back("zs_cross_entropy_forward");
  add_typed(names, {"zs_cross_entropy_backward", "zs_cross_entropy_in_place"});
}

}  // namespace zs::cuda
