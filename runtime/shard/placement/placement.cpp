#include "runtime/shard/placement/placement.h"

namespace zs {

Placement::Placement(const PlacementOptions& from, const ShardScheme& cut, GroupTable& table, bool has_whole)
    : options(from),
      scheme(cut),
      groups(table, scheme, has_whole),
      division(from.division.factors(scheme.data_shares())),
      kept(scheme.slice(groups.kept)) {
  if (scheme.has_final_step()) {
    const int sums = scheme.slice(scheme.reduced).count, masters = scheme.slice(scheme.master).count;
    second = sums < masters   ? SecondStep::reduce_scatter
             : sums > masters ? SecondStep::all_gather
                              : SecondStep::all_reduce;
  }
  is_all_reduced_each = second == SecondStep::all_reduce && scheme.options().all_reduce_every_micro_batch;
  is_alone = groups.reduce->size() == 1 && second == SecondStep::none;
  has_own_sum = second == SecondStep::reduce_scatter || second == SecondStep::all_gather || is_all_reduced_each;
}

}  // namespace zs
