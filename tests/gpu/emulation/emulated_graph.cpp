#include "tests/gpu/emulation/emulated_graph.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tests/gpu/emulation/emulated_handles.h"

struct CUgraph_st {
  zs::test::EmulatedGraph graph;
};
struct CUgraphExec_st {
  std::shared_ptr<const zs::test::EmulatedGraph> graph;
};

namespace zs::test {

EmulatedGraphs::Captures::const_iterator EmulatedGraphs::find(const CUstream_st& stream) const {
  return std::find_if(captures_.begin(), captures_.end(),
                      [&](const Capture& capture) { return capture.last.count(&stream) != 0; });
}

EmulatedGraphs::Captures::iterator EmulatedGraphs::find(const CUstream_st& stream) {
  const auto found = std::as_const(*this).find(stream);
  return captures_.erase(found, found);  // the same, not const
}

EmulatedGraphs::Captures::iterator EmulatedGraphs::own() {
  return std::find_if(captures_.begin(), captures_.end(),
                      [](const Capture& capture) { return capture.thread == std::this_thread::get_id(); });
}

int EmulatedGraphs::begin(CUstream_st& stream) {
  if (own() != captures_.end() || captures(stream)) return kUnmatched;
  captures_.push_back({&stream, std::this_thread::get_id(), ++captures_made_});
  captures_.back().last[&stream] = {};
  return 0;
}

/// Whether all that was captured comes before the end of the stream where the capture began.
bool EmulatedGraphs::is_joined(const Capture& capture) {
  std::set<std::size_t> reached;
  std::vector<std::size_t> next(capture.last.at(capture.origin).begin(), capture.last.at(capture.origin).end());
  while (!next.empty()) {
    const std::size_t node = next.back();
    next.pop_back();
    if (!reached.insert(node).second) continue;
    const auto& after = capture.graph.nodes[node].after;
    next.insert(next.end(), after.begin(), after.end());
  }
  return reached.size() == capture.graph.nodes.size();
}

int EmulatedGraphs::end(CUstream_st* stream, CUgraph_st** graph) {
  *graph = nullptr;
  const auto capture = own();
  if (capture == captures_.end() || capture->origin != stream) return kUnmatched;
  const int status = capture->is_broken ? kInvalidated : is_joined(*capture) ? 0 : kUnjoined;
  if (status == 0) *graph = *graphs_.insert(new CUgraph_st{std::move(capture->graph)}).first;
  captures_.erase(capture);
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
                            runs_.push_back(run);
                          }});
  stream.queue.push_back({when(run->has_ended), [] {}});
  return 0;
}

void EmulatedGraphs::forget_what_ended() {
  runs_.erase(std::remove_if(runs_.begin(), runs_.end(), [](const auto& run) { return *run->has_ended; }), runs_.end());
}

int EmulatedGraphs::destroy(CUgraph_st* graph) {
  if (graphs_.erase(graph) == 0) return 1;
  delete graph;
  return 0;
}

int EmulatedGraphs::destroy(CUgraphExec_st* graph) {
  if (executables_.erase(graph) == 0) return 1;
  delete graph;
  forget_what_ended();
  return 0;
}

void EmulatedGraphs::add(CUstream_st& stream, std::function<void()> run, std::function<bool()> may_run) {
  Capture& capture = *find(stream);
  std::set<std::size_t>& last = capture.last.at(&stream);
  capture.graph.nodes.push_back({std::move(last), std::move(run), std::move(may_run)});
  last = {capture.graph.nodes.size() - 1};
}

int EmulatedGraphs::record(CUstream_st& stream, CUevent_st& event) {
  const Capture& capture = *find(stream);
  event.latest = nullptr;
  event.captured_in = capture.number;
  event.after = capture.last.at(&stream);
  return 0;
}

bool EmulatedGraphs::concerns(const CUstream_st& stream, const CUevent_st& event) const {
  return captures(stream) || event.captured_in != 0;
}

int EmulatedGraphs::wait(CUstream_st& stream, const CUevent_st& event) {
  auto capture = find(stream);
  if (capture == captures_.end()) {  // which the event may bring in
    capture = std::find_if(captures_.begin(), captures_.end(),
                           [&](const Capture& any) { return any.number == event.captured_in; });
    if (capture == captures_.end()) return kCapturedEvent;
  }
  if (event.captured_in != capture->number) {
    capture->is_broken = true;
    return kIsolation;
  }
  capture->last[&stream].insert(event.after.begin(), event.after.end());
  return 0;
}

int EmulatedGraphs::refuse(const CUstream_st& stream) {
  find(stream)->is_broken = true;
  return kUnsupported;
}

int EmulatedGraphs::forbid(const std::string& function) {
  constexpr std::array kUnsafe = {"cuMemAlloc",    "cuMemFree",    "cuMemHostAlloc",   "cuMemFreeHost",
                                  "cuStreamQuery", "cuEventQuery", "cuModuleLoadData", "cuEventElapsedTime"};
  constexpr std::array kCaptured = {"cuMemcpyAsync",  "cuMemsetD8Async", "cuMemsetD32Async",
                                    "cuLaunchKernel", "cuEventRecord",   "cuStreamWaitEvent"};
  const auto capture = own();
  if (capture == captures_.end()) return 0;
  const auto is_in = [&](const auto& names) { return std::find(names.begin(), names.end(), function) != names.end(); };
  if (capture->is_broken && is_in(kCaptured)) return kInvalidated;
  if (!is_in(kUnsafe)) return 0;
  capture->is_broken = true;
  return kUnsupported;
}

std::vector<std::function<void()>> EmulatedGraphs::ready() {
  forget_what_ended();
  std::vector<std::function<void()>> found;
  for (const auto& run : runs_) {
    for (std::size_t i = 0; i < run->is_done.size(); ++i) {
      const EmulatedGraph::Node& node = run->graph->nodes[i];
      if (run->is_done[i] ||
          !std::all_of(node.after.begin(), node.after.end(), [&](std::size_t j) { return run->is_done[j]; }))
        continue;
      if (node.may_run && !node.may_run()) continue;
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
