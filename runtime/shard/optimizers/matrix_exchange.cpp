#include "runtime/shard/optimizers/matrix_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace zs {
namespace {

constexpr const char* kLabel = "matrix";

std::vector<double> costs_of(const std::vector<MatrixExchange::Matrix>& matrices) {
  std::vector<double> costs;
  for (const auto& matrix : matrices) costs.push_back(matrix.cost);
  return costs;
}

}  // namespace

std::vector<int> balanced(const std::vector<double>& costs, int count) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<double> sums(static_cast<std::size_t>(count));
  std::vector<int> bearers(costs.size());
  for (const std::size_t i : order) {
    const auto least = std::min_element(sums.begin(), sums.end());
    *least += costs[i];
    bearers[i] = static_cast<int>(least - sums.begin());
  }
  return bearers;
}

std::vector<MatrixPlace> matrices_of(const FlatView& view) {
  if (view.matrix_rows.empty()) return {{view.shape[0], view.shape[1]}};
  std::vector<MatrixPlace> places;
  for (const std::int64_t rows : view.matrix_rows)
    places.push_back({rows, view.shape[1], places.empty() ? 0 : places.back().end()});
  return places;
}

MatrixExchange::MatrixExchange(Executor& executor, std::vector<Matrix> matrices)
    : executor_(executor),
      matrices_(std::move(matrices)),
      ranks_(executor.transfer().masters(*matrices_.at(0).unit)),
      owners_(balanced(costs_of(matrices_), ranks_.size())),
      sends_(static_cast<std::size_t>(ranks_.size())),
      receives_(static_cast<std::size_t>(ranks_.size())),
      parts_(matrices_.size()),
      wholes_(matrices_.size()) {
  plan();
  Stream& compute = executor.context().stream();
  const auto acquire = [&](std::int64_t elems) {
    return elems == 0 ? Memory() : executor.transfer().pool().acquire(elems * size_of(DType::f32), compute, kLabel);
  };
  parts_memory_ = acquire(part_elems_);
  pieces_memory_ = acquire(piece_elems_);
  wholes_memory_ = acquire(whole_elems_);
}

ShardSegment MatrixExchange::segment(std::size_t matrix, int slice) const {
  for (const ShardSegment& found : matrices_[matrix].unit->layout->segments(slice))
    if (found.view == matrices_[matrix].view)
      return found.within(matrices_[matrix].place.begin, matrices_[matrix].place.end());
  return {};
}

void MatrixExchange::plan() {
  constexpr std::int64_t kAlign = UnitLayout::kAlignBytes / size_of(DType::f32);
  const std::vector<int> slices = ScopeTransfer::slices(*matrices_[0].unit);
  const int own = ranks_.rank();
  for (int owner = 0; owner < ranks_.size(); ++owner) {  // as they are sent: for one rank after the other
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      if (owners_[i] != owner) continue;
      parts_[i] = {part_elems_, segment(i, slices[static_cast<std::size_t>(own)]).count};
      part_elems_ += parts_[i].count;
      sends_[static_cast<std::size_t>(owner)] += parts_[i].count;
    }
  }
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    if (owners_[i] != own) continue;
    const std::int64_t numel = matrices_[i].place.numel();
    wholes_[i] = {whole_elems_, numel};
    whole_elems_ += (numel + kAlign - 1) / kAlign * kAlign;
  }
  for (std::size_t place = 0; place < slices.size(); ++place) {
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      if (owners_[i] != own) continue;
      const ShardSegment found = segment(i, slices[place]);
      if (found.count == 0) continue;
      pieces_.push_back({i, found, piece_elems_});
      piece_elems_ += found.count;
      receives_[place] += found.count;
    }
  }
}

Buffer MatrixExchange::all(const Memory& memory, std::int64_t elems) const {
  if (elems > 0) return memory.buffer(DType::f32, elems);
  return {nullptr, 0, DType::f32, matrices_[0].unit->master_buffer().device};
}

Buffer MatrixExchange::of(const Memory& memory, const Place& place) const {
  return place.count == 0 ? Buffer{}
                          : memory.buffer(DType::f32, place.offset + place.count).slice(place.offset, place.count);
}

Buffer MatrixExchange::part(std::size_t matrix) const { return of(parts_memory_, parts_[matrix]); }
Buffer MatrixExchange::whole(std::size_t matrix) const { return of(wholes_memory_, wholes_[matrix]); }

void MatrixExchange::copy_pieces(bool to_whole) {
  if (pieces_.empty()) return;
  struct Copy {
    Buffer whole, piece;
    ShardSegment segment;
  };
  std::vector<Copy> copies;
  for (const Piece& piece : pieces_) {
    const ShardSegment& segment = piece.segment;
    const std::int64_t first = segment.view_offset - matrices_[piece.matrix].place.begin;
    copies.push_back({whole(piece.matrix).slice(first, (segment.runs() - 1) * segment.stride + segment.run),
                      of(pieces_memory_, {piece.offset, segment.count}), segment});
  }
  const Buffer pieces = all(pieces_memory_, piece_elems_), wholes = all(wholes_memory_, whole_elems_);
  executor_.context().launch(
      {to_whole ? "join_matrices" : "cut_matrices", {to_whole ? pieces : wholes}, {to_whole ? wholes : pieces}},
      [&kernels = executor_.context().kernels(), copies = std::move(copies), to_whole](ExecContext& exec) {
        for (const auto& [whole, piece, segment] : copies) {
          if (to_whole)
            kernels.copy_rows(exec, whole, piece, {segment.runs(), segment.run, segment.stride, segment.run});
          else
            kernels.copy_rows(exec, piece, whole, {segment.runs(), segment.run, segment.run, segment.stride});
        }
      });
}

void MatrixExchange::gather() {
  ranks_.all_to_all_v(executor_.context().stream(), "matrices", {all(parts_memory_, part_elems_), sends_},
                      {all(pieces_memory_, piece_elems_), receives_});
  copy_pieces(true);
}

void MatrixExchange::scatter() {
  copy_pieces(false);
  ranks_.all_to_all_v(executor_.context().stream(), "matrices", {all(pieces_memory_, piece_elems_), receives_},
                      {all(parts_memory_, part_elems_), sends_});
}

}  // namespace zs
