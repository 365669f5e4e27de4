#pragma once

#include <cstdint>
#include <vector>

namespace zs {

/// A number along the steps of a run, thinned out: however many samples are added, at most kMostPoints points exist.
/// Each stands for the same number of samples that follow each other; only the last one may have fewer. A value.
class Series {
 public:
  static constexpr std::size_t kMostPoints = 1200;  // more than a screen has columns for

  struct Point {
    std::int64_t step = 0;   ///< step of its last sample
    std::int64_t count = 0;  ///< number of its samples that are finite; the rest follows from them
    double sum = 0, min = 0, max = 0;
    std::int64_t samples = 0;  ///< finite or not
    double mean() const { return sum / static_cast<double>(count); }
  };

  /// Steps grow from call to call.
  void add(std::int64_t step, double value);
  const std::vector<Point>& points() const { return points_; }
  std::int64_t samples_per_point() const { return samples_per_point_; }

 private:
  void halve();

  std::vector<Point> points_;
  std::int64_t samples_per_point_ = 1;
};

}  // namespace zs
