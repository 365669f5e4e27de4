#pragma once

#include <functional>
#include <vector>

#include "tests/fuzz/random_use.h"

namespace zs::test {

/// A mistake of a program, which has to be told: by an error that is neither silent nor zshard's own.
struct Mistake {
  const char* name;
  std::function<void(UseTrainer& trainer, Random& random)> make;
  bool is_of_ranks = false;  ///< ranks differ: two at least
};

/// The use of a second model, of the same net.
Use other_use(const UseTrainer& trainer);
/// Trains such a one for a step, sharded in another way.
void shard_otherwise(UseTrainer& trainer, const std::function<void(Way&)>& change);

/// Ops whose arguments do not fit; the trainer's context alone is used.
std::vector<Mistake> wrong_ops();
/// Calls at the wrong time, of what has ended, or with options that make no sense.
std::vector<Mistake> wrong_calls();
/// Calls in which one rank differs from the others.
std::vector<Mistake> wrong_ranks();

}  // namespace zs::test
