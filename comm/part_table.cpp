#include "comm/part_table.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace zs {

PartTable::PartTable(std::span<const std::int64_t> said, int ranks, std::string_view what)
    : ranks_(ranks), sent_(index(ranks, 0)), received_(index(ranks, 0)) {
  const auto sends = [&](int from, int to) { return said[static_cast<std::size_t>(2 * from * ranks + to)]; };
  const auto expects = [&](int to, int from) { return said[static_cast<std::size_t>((2 * to + 1) * ranks + from)]; };
  for (int rank = 0; rank < ranks; ++rank) {
    for (int other = 0; other < ranks; ++other) {
      if (sends(rank, other) != expects(other, rank)) {
        throw Error(ExitCode::ranks_disagree,
                    fmt::format("the ranks disagree: rank {} sends {} elements to rank {} in {}, which expects {}",
                                rank, sends(rank, other), other, what, expects(other, rank)));
      }
      sent_[index(rank, other + 1)] = sent_begin(rank, other) + sends(rank, other);
      received_[index(rank, other + 1)] = received_begin(rank, other) + expects(rank, other);
    }
    most_sent_ = std::max(most_sent_, sent_begin(rank, ranks));
  }
}

}  // namespace zs
