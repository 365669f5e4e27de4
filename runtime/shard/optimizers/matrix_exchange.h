#pragma once

#include <cstdint>
#include <vector>

#include "runtime/shard/execute/executor.h"

namespace zs {

/// Bearer, of `count`, that has each of some costs: the largest first, each to the one that has the least so far.
std::vector<int> balanced(const std::vector<double>& costs, int count);

/// A matrix that a parameter is, or is made of (Parameter::matrix_rows): where it lies in the parameter.
struct MatrixPlace {
  std::int64_t rows, cols;
  std::int64_t begin = 0;  ///< its first element

  std::int64_t numel() const { return rows * cols; }
  std::int64_t end() const { return begin + numel(); }
};

/// Matrices of a parameter with two dims, from its first row on.
std::vector<MatrixPlace> matrices_of(const FlatView& view);

/// Sharded matrices, each whole on one of the ranks that share their masters, and the way there and back: one exchange
/// each way for all of them. Their units are placed alike. Lives for one update; one host thread uses it. On return:
/// enqueued on compute, not done.
class MatrixExchange {
 public:
  struct Matrix {
    const FlatParameter* unit;
    std::size_t view;
    MatrixPlace place;  ///< in the view
    double cost;        ///< cost of what its owner does with it
  };
  /// Makes an exchange of matrices, alike on every rank. None of them is held whole.
  MatrixExchange(Executor& executor, std::vector<Matrix> matrices);

  /// f32, this rank's segment of a matrix, element after element as in the shard: what `gather` takes, and where
  /// `scatter` puts it. Empty where this rank has none.
  Buffer part(std::size_t matrix) const;
  /// f32, the whole matrix, after `gather`; empty but on its owner.
  Buffer whole(std::size_t matrix) const;
  /// Collective, like the next.
  void gather();
  void scatter();

 private:
  /// A segment on its way, as its matrix's owner has it: of the view.
  struct Piece {
    std::size_t matrix;
    ShardSegment segment;
    std::int64_t offset;  // in what has arrived
  };
  struct Place {
    std::int64_t offset = 0, count = 0;
  };
  void plan();
  /// Segment of a matrix that the rank at a place holds; a count of 0: nothing.
  ShardSegment segment(std::size_t matrix, int slice) const;
  Buffer of(const Memory& memory, const Place& place) const;
  Buffer all(const Memory& memory, std::int64_t elems) const;
  void copy_pieces(bool to_whole);

  Executor& executor_;
  std::vector<Matrix> matrices_;
  Communicator& ranks_;
  std::vector<int> owners_;
  std::vector<std::int64_t> sends_, receives_;  // in elements, by rank of `ranks_`
  std::vector<Place> parts_, wholes_;           // by matrix
  std::vector<Piece> pieces_;
  std::int64_t part_elems_ = 0, piece_elems_ = 0, whole_elems_ = 0;
  Memory parts_memory_, pieces_memory_, wholes_memory_;
};

}  // namespace zs
