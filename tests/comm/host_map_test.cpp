#include "comm/host/host_map.h"

#include <algorithm>
#include <cmath>

#include <catch2/catch.hpp>

namespace host_map_test {

using zs::HostMap;

namespace {

std::vector<int> ranks_on(const HostMap& map, int host) {
  return {map.ranks_on(host).begin(), map.ranks_on(host).end()};
}

}  // namespace

TEST_CASE("hosts are numbered in the order of their first ranks, wherever the others are") {
  const HostMap map(std::vector{7, 2, 7, 9, 2, 7});
  CHECK(map.size() == 6);
  CHECK(map.hosts() == 3);
  CHECK(ranks_on(map, 0) == std::vector{0, 2, 5});
  CHECK(ranks_on(map, 1) == std::vector{1, 4});
  CHECK(ranks_on(map, 2) == std::vector{3});
  CHECK(map.host_of(4) == 1);
  CHECK(map.place_of(5) == 2);
  CHECK_FALSE((map.is_one_host() || map.is_one_rank_each()));
  CHECK(HostMap(std::vector{4, 4}).is_one_host());
  CHECK(HostMap(std::vector{4, 3}).is_one_rank_each());
}

TEST_CASE("each rank has one partner on every other host, and they share the work evenly") {
  const std::vector<int> hosts = GENERATE(std::vector{0, 0, 1, 1}, std::vector{0, 1, 0, 1, 2, 2},
                                          std::vector{0, 0, 0, 1, 1}, std::vector{0, 1, 1, 1, 1, 0, 2});
  const HostMap map(hosts);
  int served = 0, most = 0;
  for (int rank = 0; rank < map.size(); ++rank) {
    served += static_cast<int>(map.served_by(rank).size());
    most = std::max(most, static_cast<int>(map.served_by(rank).size()));
    for (const int other : map.served_by(rank)) {
      CHECK(map.host_of(other) != map.host_of(rank));
      CHECK(map.partner(map.host_of(rank), other) == rank);
    }
  }
  CHECK(served == map.size() * (map.hosts() - 1));
  CHECK(map.most_served() == most);
  for (int host = 0; host < map.hosts(); ++host) {
    for (const int a : map.ranks_on(host)) {
      for (const int b : map.ranks_on(host)) {
        // One more for each host that it serves, where the numbers do not divide.
        CHECK(std::abs(std::ssize(map.served_by(a)) - std::ssize(map.served_by(b))) <= map.hosts() - 1);
      }
    }
  }
}

}  // namespace host_map_test
