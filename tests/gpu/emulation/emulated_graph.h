#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUstream_st;

namespace zs::test {

/// Captured work: what comes after what.
struct EmulatedGraph {
  struct Node {
    std::set<std::size_t> after;
    std::function<void()> run;
    std::function<bool()> may_run;  // null: at once
  };
  std::vector<Node> nodes;
};

/// Captures of an emulated driver, one a thread at a time, and the graphs that come of them. What a capturing thread
/// may not do on a real driver it may not do here, and ends the capture. A launched graph's nodes run in any order that
/// the captured events allow. Under the driver's lock.
class EmulatedGraphs {
 public:
  static constexpr int kUnsupported = 900, kInvalidated = 901, kUnmatched = 903, kUnjoined = 904, kIsolation = 905,
                       kCapturedEvent = 907;

  int begin(CUstream_st& stream);
  int end(CUstream_st* stream, CUgraph_st** graph);
  int instantiate(CUgraphExec_st** made, CUgraph_st* graph);
  int launch(CUgraphExec_st* graph, CUstream_st& stream);
  int destroy(CUgraph_st* graph);
  int destroy(CUgraphExec_st* graph);

  bool captures(const CUstream_st& stream) const { return find(stream) != captures_.end(); }
  void add(CUstream_st& stream, std::function<void()> run, std::function<bool()> may_run = nullptr);
  int record(CUstream_st& stream, CUevent_st& event);
  /// Whether a wait is for a capture to see.
  bool concerns(const CUstream_st& stream, const CUevent_st& event) const;
  int wait(CUstream_st& stream, const CUevent_st& event);
  /// What somebody gets, whichever thread it is, who asks a stream that captures how far it is: the capture is over.
  int refuse(const CUstream_st& stream);
  /// What the calling thread gets for calling this function while it captures; 0: it may.
  int forbid(const std::string& function);
  /// Of graphs that run: each node that may run now.
  std::vector<std::function<void()>> ready();
  std::size_t live_handles() const { return graphs_.size() + executables_.size(); }

 private:
  struct Capture {
    const CUstream_st* origin;
    std::thread::id thread;
    int number;  // from 1
    EmulatedGraph graph = {};
    std::map<const CUstream_st*, std::set<std::size_t>> last = {};  // nodes of each stream that nothing follows yet
    bool is_broken = false;
  };
  struct Run {
    std::shared_ptr<const EmulatedGraph> graph;
    std::vector<bool> is_done;
    std::shared_ptr<bool> has_ended = std::make_shared<bool>(false);
  };
  using Captures = std::list<Capture>;
  static bool is_joined(const Capture& capture);
  Captures::const_iterator find(const CUstream_st& stream) const;
  Captures::iterator find(const CUstream_st& stream);
  /// The calling thread's.
  Captures::iterator own();
  void forget_what_ended();

  Captures captures_;
  int captures_made_ = 0;
  std::set<CUgraph_st*> graphs_;
  std::set<CUgraphExec_st*> executables_;
  std::vector<std::shared_ptr<Run>> runs_;
};

}  // namespace zs::test
