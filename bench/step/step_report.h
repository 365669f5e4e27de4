#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench/step/step_profile.h"

namespace zs::bench {

/// What bench_step found out; docs/benchmarks.md says what each field means. Rates and bytes are of all ranks unless
/// they say otherwise.
struct StepReport {
  std::string preset = {}, dtype = {}, reduce_dtype = {}, isa = {};
  std::string gpu = {};        ///< the name of rank 0's; empty: the CPU
  std::string transport = {};  ///< that moves what the ranks exchange in a step
  int ranks = 1, threads = 1;  ///< threads a rank
  int ranks_a_gpu = 1;         ///< at most
  std::int64_t layers = 0, width = 0, parameters = 0;
  std::int64_t micro_batch = 0, micro_batches = 0, sequence = 0;  ///< micro_batches a rank and step
  std::int64_t steps = 0;
  double loss = 0;              ///< of the last step
  std::int64_t operations = 0;  ///< between ranks, of one rank in the last step; 0 where nobody counts
  double step_ms = 0, step_ms_min = 0, flops_per_token = 0, product_ceiling_gflops = 0;
  std::int64_t peak_bytes = 0, planned_peak_bytes = 0;  ///< counted, the largest of the ranks
  struct Pss {
    double sum = 0, rank_max = 0;
  };
  std::optional<Pss> pss = {}, pss_baseline = {};
  StepProfile profile = {};  ///< of rank 0; without rows where the device takes no times

  double tokens_per_step() const { return static_cast<double>(ranks * micro_batches * micro_batch * sequence); }
  double tokens_per_s() const { return tokens_per_step() / (step_ms * 1e-3); }
  double gflops() const { return tokens_per_s() * flops_per_token * 1e-9; }
  double pct_of_product_ceiling() const { return 100 * gflops() / product_ceiling_gflops; }
};

std::string to_json(const StepReport& report);  ///< one line, without its end
std::string to_text(const StepReport& report);

}  // namespace zs::bench
