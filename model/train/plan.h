#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/train/config.h"
#include "runtime/device/trace.h"
#include "runtime/shard/scheduler.h"

namespace zs {

/// What a run will do, read off two steps and a validation on the meta device: nothing is allocated or computed.
struct TrainPlan {
  struct Unit {
    std::string name;
    std::int64_t parameters;   ///< how many
    std::int64_t numel;        ///< their elements
    std::int64_t shard_elems;  ///< of the padded flat parameter, per rank
  };
  std::vector<Unit> units;
  std::vector<Action> micro_batch;  ///< the actions of the last micro-batch of a steady step
  ExecOrder train_order, eval_order;
  std::int64_t persistent_bytes = 0;            ///< counted on this rank between steps
  std::int64_t step_peak_bytes = 0;             ///< counted within a step: what metrics call peak_bytes
  std::int64_t peak_bytes = 0;                  ///< the larger of a step's and a validation's
  std::map<std::string, std::int64_t> at_peak;  ///< live bytes by kind when a step is at its peak
  std::vector<TraceEntry> trace;                ///< of the second step
};

TrainPlan make_plan(const Config& config, int rank, int ranks);

/// The plan as text: units, bytes by kind and rank, schedule.
std::string describe(const TrainPlan& plan, const Config& config, int ranks);

}  // namespace zs
