#pragma once

#include <string>
#include <vector>

#include "model/train/config/config.h"
#include "model/train/plan/plan.h"

namespace zs {

class Session;

/// Says in the plan which module and parameter is of which unit, and which key made the units what they are. The units
/// are there already.
void note_places(TrainPlan& plan, Session& session);

/// Warnings about the lists of what is gathered ahead, against the order in which the units of a session's first
/// micro-batch ran: a line each. Error(config) where a unit, or what a list names, never runs.
std::vector<std::string> list_warnings(Session& session);
/// Line that says how many of a step's micro-batches are empty; empty: none is.
std::string describe_empty_micro_batches(const Config& config, int ranks);

/// One module or parameter: its unit and why that is one, dtypes, bytes, and between which ops of a micro-batch it is
/// gathered, freed and reduced. Error(usage) where the model has nothing of that name.
std::string explain(const TrainPlan& plan, const Config& config, const std::string& name);

struct PlannedRun {
  const TrainPlan& plan;
  const Config& config;
  std::string name;  ///< name of its file
};
/// Differences of two configurations: keys, units, bytes, gathers, schedule; and whether the bits stay the same.
std::string describe_difference(const PlannedRun& a, const PlannedRun& b);

}  // namespace zs
