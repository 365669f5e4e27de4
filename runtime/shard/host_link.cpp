#include "runtime/shard/host_link.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "kernels/kernels.h"

namespace zs {

HostLink::Window HostLink::make(const std::string& unit, const std::vector<Buffer>& host, Stream& stream, Pool& pool) {
  const MemoryOwner owner(context_.device().memory(), unit);
  Window window{.unit = unit, .parts = {}, .arrived = {}};
  for (const Buffer& buffer : host)
    window.parts.push_back({buffer, pool.acquire(buffer.bytes(), stream, "host_window")});
  return window;
}

/// A CPU device is held to the bandwidth that was asked for: the copy ends when such a link would have moved it.
void HostLink::copy(const char* name, const std::string& unit, const Buffer& out, const Buffer& in) {
  if (in.elems == 0) return;
  const double link_gbs = context_.device().kind() == DeviceKind::cpu ? cpu_link_gbs_ : 0;
  offload().enqueue({fmt::format("{}:{}", name, unit), {in}, {out}}, [&kernels = context_.kernels(), out, in,
                                                                      link_gbs](ExecContext& exec) {
    const auto begin = std::chrono::steady_clock::now();
    kernels.copy(exec, out, in);
    if (link_gbs > 0)
      std::this_thread::sleep_until(
          begin + std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(in.bytes()) / link_gbs)));
  });
}

HostLink::Window HostLink::load(const std::string& unit, const std::vector<Buffer>& host, Pool* pool) {
  Window window = make(unit, host, offload(), pool != nullptr ? *pool : context_.pool());
  for (const Window::Part& part : window.parts) copy("load_from_host", unit, part.here(), part.host);
  if (!host.empty()) offload().record(window.arrived);
  return window;
}

HostLink::Window HostLink::open(const std::string& unit, const std::vector<Buffer>& host) {
  return make(unit, host, context_.stream(), context_.pool());
}

HostLink::Window HostLink::open(const std::string& unit, const std::vector<Buffer>& host, Stream& stream, Pool& pool) {
  return make(unit, host, stream, pool);
}

void HostLink::store(Window window) {
  if (window.parts.empty()) return;
  Event written;
  context_.stream().record(written);
  store(std::move(window), written);
}

void HostLink::store(Window window, const Event& written) {
  const bool has_written =
      std::any_of(window.parts.begin(), window.parts.end(), [](const Window::Part& part) { return part.is_written; });
  if (!has_written) return drop(std::move(window), context_.stream());
  offload().wait(written);
  for (Window::Part& part : window.parts) {
    if (part.is_written) copy("store_to_host", window.unit, part.host, part.here());
    part.is_written ? part.memory.release(offload()) : part.memory.release(context_.stream(), written);
  }
  offload().record(last_store_);
}

void HostLink::drop(Window window, Stream& last_user) {
  for (Window::Part& part : window.parts) part.memory.release(last_user);
}

}  // namespace zs
