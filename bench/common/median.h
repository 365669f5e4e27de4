#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zs::bench {

/// Of at least one value; the mean of the two in the middle of an even number.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Half of what lies between the least and the largest of at least one value.
inline double half_range(const std::vector<double>& values) {
  const auto [least, largest] = std::minmax_element(values.begin(), values.end());
  return (*largest - *least) / 2;
}

}  // namespace zs::bench
