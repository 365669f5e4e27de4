#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/communicator.h"

/// The loops behind ordered_reduce, compiled once per instruction set from ordered_reduce_loops.cpp (ZS_ISA names the
/// namespace). They see plain pointers, and neither throw nor allocate. What is compiled for an instruction set calls
/// no inline function of another header: its out-of-line copy could be compiled for AVX-512 and then be the one that
/// the whole program uses.
namespace zs::ordered_reduce_loops {

/// OrderedReduceArgs without its containers.
struct OrderedReduction {
  const std::byte* const* parts;
  std::size_t count;
  DType part_dtype;
  const std::byte* start;
  std::byte* out;
  DType out_dtype;
  std::int64_t elems;
  ReduceOp op;
};

struct Isa {
  const char* name;
  /// False where it has no loop for these dtypes.
  bool (*run)(const OrderedReduction& args);
};

/// Instruction sets that this processor can run, the best first.
std::vector<const Isa*> available();

namespace baseline {
extern const Isa kIsa;
}
namespace avx2 {
extern const Isa kIsa;
}
namespace avx512 {
extern const Isa kIsa;
}

}  // namespace zs::ordered_reduce_loops
