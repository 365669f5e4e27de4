#include "comm/host/host_map.h"

#include <algorithm>
#include <map>

namespace zs {

HostMap::HostMap(std::span<const int> host_of_rank) : served_(host_of_rank.size()) {
  std::map<int, int> numbers;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const int host = numbers.try_emplace(host_of_rank[rank], static_cast<int>(numbers.size())).first->second;
    ranks_.resize(numbers.size());
    auto& mates = ranks_[static_cast<std::size_t>(host)];
    hosts_.push_back(host);
    places_.push_back(static_cast<int>(mates.size()));
    mates.push_back(static_cast<int>(rank));
  }
  for (int rank = 0; rank < size(); ++rank) {
    for (int host = 0; host < hosts(); ++host) {
      if (host != host_of(rank)) served_[static_cast<std::size_t>(partner(host, rank))].push_back(rank);
    }
  }
  for (const auto& ranks : served_) most_served_ = std::max(most_served_, static_cast<int>(ranks.size()));
}

int HostMap::partner(int host, int rank) const {
  const auto ranks = ranks_on(host);
  return ranks[static_cast<std::size_t>(place_of(rank)) % ranks.size()];
}

}  // namespace zs
