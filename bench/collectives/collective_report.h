#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/dtype.h"

namespace zs::bench {

enum class Collective : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, broadcast };
const char* name_of(Collective op);
/// Of `bytes` of the largest buffer of a rank: what all links of a ring together must carry, and what all ranks
/// together must read and write in place, each operand once.
double bus_bytes(Collective op, double bytes, int ranks);
double touched_bytes(Collective op, double bytes, int ranks);

/// What bench_collectives found out; docs/benchmarks.md says what each field means.
struct CollectiveReport {
  struct Row {
    Collective op;
    std::int64_t bytes;
    DType dtype;
    std::string transport;
    int sets;                     ///< of buffers, used in turn
    std::int64_t calls;           ///< timed
    double time_us, time_us_min;  ///< of a call: the median and the fastest round
    std::int64_t wrong;           ///< elements, over all ranks
  };

  std::string gpu = {};  ///< the name of rank 0's; empty: the CPU
  int ranks = 1, ranks_a_gpu = 1;
  std::int64_t cache_bytes = 0;
  double copy_gb_per_s = 0;  ///< of all ranks together
  std::vector<Row> rows = {};

  double algbw_gbs(const Row& row) const { return static_cast<double>(row.bytes) / (row.time_us * 1e3); }
  double busbw_gbs(const Row& row) const {
    return bus_bytes(row.op, static_cast<double>(row.bytes), ranks) / (row.time_us * 1e3);
  }
  double percent(const Row& row) const;
  std::int64_t wrong() const;
};

std::string to_json(const CollectiveReport& report);  ///< one line, without its end
std::string to_text(const CollectiveReport& report);

}  // namespace zs::bench
