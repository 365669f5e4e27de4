#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/train/plan/memory_check.h"

namespace zs {

/// Start of `train fit`.
struct FitRequest {
  MemoryDemand demand;  ///< the run as it is configured
  std::vector<MemoryBudget> budgets;
  /// Numbers of tokens to train on, and to validate with (0: none), where samples are windows of them: others then
  /// serve other sequence lengths. Nothing: train.sequence stays.
  struct Tokens {
    std::int64_t train = 0, validation = 0;
  };
  std::optional<Tokens> tokens;
};

/// A setting of the run that fits, as its own plan says.
struct FitRow {
  MemoryDemand demand;
  RankBytes bytes;                        ///< bytes that a rank takes from the system
  std::int64_t peak_bytes = 0;            ///< peak of a step, as a dry run and the metrics call it
  double share = 0;                       ///< share of the limit that it comes nearest to
  std::vector<std::string> changes = {};  ///< "train.micro_batch=8": what is not as configured
};

/// Settings of micro-batch, sequence length, residence, recomputation and strategy that fit: for each sequence length
/// the largest micro-batch, and for each larger one what it costs beside; as it is configured otherwise, too. The batch
/// of a step stays. Most tokens a micro-batch first, then the cheaper. None where nothing fits. Allocates nothing:
/// every row is planned on the meta device.
std::vector<FitRow> find_fits(const FitRequest& request);

/// The row that changes least of the configuration, of these the first; its index. There is one.
std::size_t nearest(const std::vector<FitRow>& rows);

/// The table, with a mark at the chosen row, what that takes of each limit, and what it changes.
std::string describe(const std::vector<FitRow>& rows, std::size_t chosen, const FitRequest& request);

/// Line of what the row changes: "set train.micro_batch=8", or "as configured".
std::string describe_choice(const FitRow& row);

/// Writes a configuration after a line that says what it is for. Replaces only what this has written before and nobody
/// has changed since, else Error(cannot_create).
void write_fit(const std::string& path, const FitRow& row, const std::string& toml);

/// Error(cannot_create) where write_fit would refuse, or this is the configuration that is read.
void check_fit_file(const std::string& path, const std::string& config_path);

}  // namespace zs
