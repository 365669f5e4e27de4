#pragma once

#include <span>
#include <string_view>
#include <vector>

namespace zs {

/// Map of the hosts that the ranks of a group are on. Hosts are numbered in the order of their first ranks, whatever
/// their ranks' order. A value, alike on every rank of the group.
class HostMap {
 public:
  /// `host_of_rank`: any numbers, equal for ranks of one host.
  explicit HostMap(std::span<const int> host_of_rank);

  int size() const { return static_cast<int>(hosts_.size()); }
  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  /// Among the ranks of its host.
  int place_of(int rank) const { return places_[static_cast<std::size_t>(rank)]; }
  std::span<const int> ranks_on(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  /// All on one host, or alone on it each. Both for a group of one.
  bool is_one_host() const { return hosts() == 1; }
  bool is_one_rank_each() const { return hosts() == size(); }
  /// Transport of a group there: "shm" on one host, "mpi" where each rank is alone on its own, else "hier".
  std::string_view transport() const { return is_one_host() ? "shm" : is_one_rank_each() ? "mpi" : "hier"; }

  /// The rank of another host that has to do with `rank`'s part of the data: takes it in for its host, or sends its
  /// host's sum of it. Ranks share this work evenly.
  int partner(int host, int rank) const;
  /// The ranks of other hosts whose partner `rank` is, in their order.
  const std::vector<int>& served_by(int rank) const { return served_[static_cast<std::size_t>(rank)]; }
  /// The longest of these lists.
  int most_served() const { return most_served_; }

 private:
  std::vector<int> hosts_, places_;       // by rank
  std::vector<std::vector<int>> ranks_;   // by host
  std::vector<std::vector<int>> served_;  // by rank
  int most_served_ = 0;
};

}  // namespace zs
