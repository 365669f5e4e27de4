#include "tests/gpu/emulation/emulated_graph.h"

#include <algorithm>
#include <array>

#include "tests/gpu/emulation/emulated_handles.h"

struct CUgraph_st {
  zs::test::EmulatedGraph graph;
};
struct CUgraphExec_st {
  std::shared_ptr<const zs::test::EmulatedGraph> graph;
};

namespace zs::test {

int EmulatedGraphs::begin(CUstream_st& stream) {
  if (capture_) return kUnmatched;
  capture_.emplace(Capture{&stream, std::this_thread::get_id()});
  capture_->last[&stream] = {};
  ++captures_;
  return 0;
}

/// Whether all that was captured comes before the end of the stream where the capture began.
bool EmulatedGraphs::is_joined() const {
  std::set<std::size_t> reached;
  std::vector<std::size_t> next(capture_->last.at(capture_->origin).begin(), capture_->last.at(capture_->origin).end());
  while (!next.empty()) {
    const std::size_t node = next.back();
    next.pop_back();
    if (!reached.insert(node).second) continue;
    const auto& after = capture_->graph.nodes[node].after;
    next.insert(next.end(), after.begin(), after.end());
  }
  return reached.size() == capture_->graph.nodes.size();
}

int EmulatedGraphs::end(CUstream_st* stream, CUgraph_st** graph) {
  *graph = nullptr;
  if (!capture_ || capture_->origin != stream || capture_->thread != std::this_thread::get_id()) return kUnmatched;
  const int status = capture_->is_broken ? kInvalidated : is_joined() ? 0 : kUnjoined;
  if (status == 0) *graph = *graphs_.insert(new CUgraph_st{std::move(capture_->graph)}).first;
  capture_.reset();
  return status;
}

int EmulatedGraphs::instantiate(CUgraphExec_st** made, CUgraph_st* graph) {
  if (graphs_.count(graph) == 0) return 1;
  *made = *executables_.insert(new CUgraphExec_st{std::make_shared<const EmulatedGraph>(graph->graph)}).first;
  return 0;
}

int EmulatedGraphs::launch(CUgraphExec_st* graph, CUstream_st& stream) {
  if (executables_.count(graph) == 0 || captures(stream)) return 1;
  const auto run = std::make_shared<Run>(Run{graph->graph, {}});
  run->is_done.resize(graph->graph->nodes.size());
  stream.queue.push_back({nullptr, [this, run] {
                            *run->has_ended = run->is_done.empty();
                            runs_.erase(std::remove_if(runs_.begin(), runs_.end(), [](const auto& old) { return *old->has_ended; }),
                                        runs_.end());
                            runs_.push_back(run);
                          }});
  stream.queue.push_back({run->has_ended, [] {}});
  return 0;
}

int EmulatedGraphs::destroy(CUgraph_st* graph) {
  if (graphs_.erase(graph) == 0) return 1;
  delete graph;
  return 0;
}

int EmulatedGraphs::destroy(CUgraphExec_st* graph) {
  if (executables_.erase(graph) == 0) return 1;
  delete graph;
  return 0;
}

void EmulatedGraphs::add(CUstream_st& stream, std::function<void()> run) {
  std::set<std::size_t>& last = capture_->last.at(&stream);
  capture_->graph.nodes.push_back({std::move(last), std::move(run)});
  last = {capture_->graph.nodes.size() - 1};
}

int EmulatedGraphs::record(CUstream_st& stream, CUevent_st& event) {
  event.latest = nullptr;
  event.captured_in = captures_;
  event.after = capture_->last.at(&stream);
  return 0;
}

bool EmulatedGraphs::concerns(const CUstream_st& stream, const CUevent_st& event) const {
  return captures(stream) || event.captured_in != 0;
}

int EmulatedGraphs::wait(CUstream_st& stream, const CUevent_st& event) {
  if (!capture_) return kCapturedEvent;
  if (event.captured_in != captures_) {
    capture_->is_broken = true;
    return kIsolation;
  }
  capture_->last[&stream].insert(event.after.begin(), event.after.end());
  return 0;
}

int EmulatedGraphs::refuse() {
  capture_->is_broken = true;
  return kUnsupported;
}

int EmulatedGraphs::forbid(const std::string& function) {
  constexpr std::array kUnsafe = {"cuMemAlloc",    "cuMemFree",    "cuMemHostAlloc",   "cuMemFreeHost",
                                  "cuStreamQuery", "cuEventQuery", "cuModuleLoadData", "cuEventElapsedTime"};
  constexpr std::array kCaptured = {"cuMemcpyAsync",  "cuMemsetD8Async", "cuMemsetD32Async",
                                    "cuLaunchKernel", "cuEventRecord",   "cuStreamWaitEvent"};
  if (!capture_ || capture_->thread != std::this_thread::get_id()) return 0;
  const auto is_in = [&](const auto& names) { return std::find(names.begin(), names.end(), function) != names.end(); };
  if (capture_->is_broken && is_in(kCaptured)) return kInvalidated;
  return is_in(kUnsafe) ? refuse() : 0;
}

std::vector<std::function<void()>> EmulatedGraphs::ready() const {
  std::vector<std::function<void()>> found;
  for (const auto& run : runs_) {
    for (std::size_t i = 0; i < run->is_done.size(); ++i) {
      const EmulatedGraph::Node& node = run->graph->nodes[i];
      if (run->is_done[i] || !std::all_of(node.after.begin(), node.after.end(), [&](std::size_t j) { return run->is_done[j]; })) continue;
      found.emplace_back([run, i] {
        run->graph->nodes[i].run();
        run->is_done[i] = true;
        *run->has_ended = std::all_of(run->is_done.begin(), run->is_done.end(), [](bool is_done) { return is_done; });
      });
    }
  }
  return found;
}

}  // namespace zs::test
