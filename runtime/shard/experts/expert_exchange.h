#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/communicator.h"
#include "runtime/tensor/experts.h"

namespace zs {

/// Way of tokens to the experts of other ranks.
enum class Dispatcher : std::uint8_t {
  all_to_all,  ///< each row goes to the rank that has its expert, and comes back from there
  all_gather,  ///< all ranks have all tokens, and sum up what their experts make of them
};
inline constexpr std::string_view kDispatchers = "all_to_all|all_gather";

/// Rows that this rank's experts have of the tokens of all ranks (runtime/tensor/experts.h).
struct DealtRows {
  Tensor rows;      ///< (most rows that there can be, C): expert after expert
  Routing routing;  ///< offsets of this rank's experts
  Tensor counts;    ///< all_to_all: i64 (ranks, own experts), rows that came from each rank
  Tensor places;    ///< all_gather: i32 (ranks N, k), the row of each token's slot; -1: another rank has it
};

/// Exchange of tokens between ranks that each read other data and have equal parts of a mixture's experts: rank r those
/// from r E / ranks on. The experts' sums are over the tokens of all ranks, each token's over its experts in the order
/// that its rank chose (all_to_all), or that of ranks (all_gather). A rank that sends nothing, or an expert without a
/// token, takes part all the same. Dropless: a rank has room for the most rows that the tokens can give its experts.
///
/// Dispatch, combination and their backward are collective, on the compute stream; on return: enqueued, not done. The
/// ranks' tokens are equally many. It outlives the recorded graph and the stream's work, and dies before the World of
/// its ranks. One host thread uses it.
class ExpertExchange {
 public:
  /// Collective. `ranks`: on the compute stream; outlives this. `name`: of the experts, for messages.
  ExpertExchange(Communicator& ranks, Dispatcher dispatcher, std::string name);
  ~ExpertExchange();

  /// Experts of this rank, of so many.
  std::int64_t own_experts(std::int64_t experts) const { return experts / ranks_.size(); }
  /// (N, C), and what its tokens have chosen, to the rows of this rank's experts.
  DealtRows dispatch(const Tensor& x, const Routing& routing) const;
  /// Combines what the experts made of these, (rows, C), to (N, C): sums of each token's rows times their weights.
  Tensor combine(const Tensor& y, const Routing& routing, const DealtRows& dealt) const;
  /// Traffic of rows that this rank has sent: once the stream's work is done.
  CommTraffic row_traffic() const;

 private:
  struct Rows;
  std::int64_t most_rows(const Routing& routing) const;
  DealtRows send(const Tensor& x, const Routing& routing) const;
  DealtRows gather(const Tensor& x, const Routing& routing) const;
  Tensor return_rows(const Tensor& y, const Routing& routing, const DealtRows& dealt) const;
  Tensor scatter(const Tensor& y, const Routing& routing, const DealtRows& dealt) const;
  void exchange_counts(const Routing& routing, const DealtRows& dealt) const;
  Tensor to_experts(const Tensor& rows, std::int64_t most, const Rows& of) const;
  Tensor from_experts(const Tensor& rows, std::int64_t count, const Rows& of) const;
  void launch_exchange(const char* op, const Tensor& out, const Tensor& in, const Rows& of, bool is_return) const;
  Tensor gathered(const char* what, const Tensor& x) const;
  Tensor summed(const char* what, const Tensor& x) const;

  Communicator& ranks_;
  Dispatcher dispatcher_;
  std::string name_;
  struct Parts;
  std::unique_ptr<Parts> parts_;  // exchange of parts whose sizes the stream's thread alone knows
};

}  // namespace zs
