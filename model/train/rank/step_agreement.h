#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/inline_stream.h"
#include "comm/world.h"
#include "runtime/shard/execute/order_check.h"

namespace zs {

/// Error(config): of ranks whose GPUs exchange through their hosts, and why they do, unless somebody wanted that.
Error graphs_are_refused(std::string_view why_staged);

/// Way in which the GPU is given a step.
enum class StepWay : std::uint8_t { enqueue, capture, replay };

/// Vote of one rank: what it can do with its next step. Its bytes travel.
struct StepVote {
  std::uint64_t graph = 0;                  ///< the name of the graph that it could replay; 0: none
  std::uint64_t order = 0;                  ///< the hash of its communication so far
  std::uint8_t can_capture = 0;             ///< 1: the step before was like it, and enqueued
  std::array<char, 47> why_neither_text{};  ///< zero-terminated; empty: one of both it can

  std::string_view why_neither() const { return why_neither_text.data(); }
};

/// Choice that all ranks follow.
struct StepChoice {
  StepWay way = StepWay::enqueue;
  bool is_order_alike = true;
  std::string obstacle = {};  ///< obstacle of the first rank that has one: "its operations are timed (rank 1)"
};
/// Chooses by the votes of the ranks, in their order. A graph is replayed where all have the same one, and captured
/// where all can: else they enqueue.
StepChoice choose_way(std::span<const StepVote> votes);

/// The ranks decide together how the next step is given to their GPUs, since what one captures, enqueues or replays the
/// others must too, and compare its communication between the hosts, where the step itself no longer does: once when it
/// is captured, and before each replay. One exchange of 64 bytes a rank each time. Outlives nothing; one host thread
/// uses it.
class StepAgreement {
 public:
  /// Collective, where there are several ranks that exchange anything. `order` outlives it.
  StepAgreement(World& world, OrderCheck& order);

  /// Collective; blocks the host. Before a replay: OrderMismatch on every rank, where their communication differs.
  StepChoice choose(bool can_capture, std::uint64_t graph, std::string_view why_neither);
  /// Enqueues what is captured without the comparison of its order, which `confirm` makes.
  template <class Enqueue>
  void enqueue(const Enqueue& enqueue) {
    const Deferral deferral(order_);
    enqueue();
  }
  /// Collective, between a capture and the first launch: a name for the graph, the same on every rank. OrderMismatch on
  /// every rank, where its communication differs.
  std::uint64_t confirm();

 private:
  struct Deferral {
    explicit Deferral(OrderCheck& its_order) : order(its_order) { order.defer(true); }
    ~Deferral() { order.defer(false); }
    Deferral(const Deferral&) = delete;
    Deferral& operator=(const Deferral&) = delete;
    OrderCheck& order;
  };
  std::vector<StepVote> exchange(const StepVote& own);

  OrderCheck& order_;
  Watchdog* watchdog_;
  std::unique_ptr<Communicator> hosts_;  // null: nobody to ask
  InlineStream stream_;
  std::uint64_t graphs_ = 0;
};

}  // namespace zs
