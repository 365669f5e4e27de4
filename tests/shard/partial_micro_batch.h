#pragma once

#include "tests/shard/chain_model.h"

namespace zs::test {

/// One micro-batch in which the middle layer runs without a gradient, or without its bias.
inline void partial_micro_batch(ChainRun& run, bool leaves_out_the_unit, bool is_last = true) {
  run.runtime.begin_micro_batch(Mode::train, is_last);
  {
    const ForwardScope scope(&run.runtime, 0);
    Tensor y = run.model.layers[0]->forward(linear(chain_input(run.context, 0), run.model.head, nullptr));
    if (leaves_out_the_unit) {
      const NoGradGuard no_grad(run.context);
      run.model.layers[1]->forward(y);
    } else {
      const ForwardScope layer(&run.runtime, 2);
      y = linear(y, run.model.layers[1]->weight, nullptr);
    }
    backward(lm_head_loss(run.model.layers[2]->forward(y), run.model.head, chain_targets(run.context), kChainWidth));
  }
  run.runtime.end_micro_batch();
}

}  // namespace zs::test
