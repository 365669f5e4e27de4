#include "model/train/report/series.h"

#include <algorithm>
#include <cmath>

namespace zs {
namespace {

/// Adds `from`, which comes after it, to `point`.
void merge(Series::Point& point, const Series::Point& from) {
  point.step = from.step;
  point.samples += from.samples;
  if (from.count == 0) return;
  point.min = point.count == 0 ? from.min : std::min(point.min, from.min);
  point.max = point.count == 0 ? from.max : std::max(point.max, from.max);
  point.sum += from.sum;
  point.count += from.count;
}

}  // namespace

void Series::add(std::int64_t step, double value) {
  const Point sample =
      std::isfinite(value) ? Point{step, 1, value, value, value, 1} : Point{.step = step, .samples = 1};
  if (!points_.empty() && points_.back().samples < samples_per_point_) return merge(points_.back(), sample);
  if (points_.size() == kMostPoints) {
    halve();
    return add(step, value);
  }
  points_.push_back(sample);
}

void Series::halve() {
  for (std::size_t i = 0; 2 * i < points_.size(); ++i) {
    points_[i] = points_[2 * i];
    if (2 * i + 1 < points_.size()) merge(points_[i], points_[2 * i + 1]);
  }
  points_.resize((points_.size() + 1) / 2);
  samples_per_point_ *= 2;
}

}  // namespace zs
