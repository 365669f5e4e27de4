#pragma once

#include <map>

#include "runtime/shard/optimizers/adamw.h"

namespace zs {

/// AdamW whose moments are codes of 8 bits with a scale for each 256 elements of a parameter (Dettmers et al. 2022): 2
/// bytes and 1/32 an element instead of 8. Blocks are counted from a parameter's first element, whoever holds them:
/// ranks that share one exchange the largest magnitude they have of it, so that the bits do not depend on how
/// parameters are cut. A step goes by the moments before they are rounded. States "adamw8bit.m" and "adamw8bit.v", u8,
/// and "adamw8bit.m_scale" and "adamw8bit.v_scale", of blocks.
class AdamW8bit final : public Optimizer {
 public:
  AdamW8bit(Executor& executor, const AdamWConfig& config);
  ~AdamW8bit() override { settle(); }

 private:
  /// Work on a unit in one update.
  struct Work {
    std::size_t unit;
    std::vector<Part> parts;
    Memory scales;  // scales after the step: of m, then of v, part after part
  };
  /// Blocks of a part of which other ranks have elements too, one after the other: where their scales are among the
  /// part's, and among the exchanged ones of m.
  struct Shared {
    std::int64_t of_part, slot, count;
  };
  /// Scales that are exchanged, of units that are placed alike and updated together.
  struct Exchange {
    std::int64_t slots = 0;
    Memory scales = {};  // scales of m, then of v
  };
  bool copies() const override { return true; }
  void update_apart(std::vector<Apart> units) override;

  void plan_exchanges();
  static BlockwiseAdamW args_of(const Slice& slice);
  std::vector<Work> works(std::vector<Apart> units);
  void find_scales(const Work& work);
  void exchange_scales(const std::vector<Work>& works);
  void exchange_scales(const std::vector<Work>& works, std::size_t first);
  void copy_shared(const Work& work, const Exchange& exchange, bool to_exchange);
  void apply(Work& work);

  AdamWConfig config_;
  std::vector<std::vector<std::vector<Shared>>> shared_;  // by unit and parameter, this rank's
  std::vector<std::size_t> first_;                        // by unit: of those whose scales are exchanged with its own
  std::map<std::size_t, Exchange> exchanges_;             // by the first unit; none: no blocks are shared
};

}  // namespace zs
