#include "runtime/shard/host_link.h"

#include <algorithm>
#include <utility>

#include "runtime/shard/link_copy.h"

namespace zs {

HostLink::Window HostLink::make(const std::string& unit, const std::vector<Buffer>& host, Stream& stream, Pool& pool) {
  const MemoryOwner owner(context_.device().memory(), unit);
  Window window{.unit = unit, .parts = {}, .arrived = {}};
  for (const Buffer& buffer : host)
    window.parts.push_back({buffer, pool.acquire(buffer.bytes(), stream, "host_window")});
  return window;
}

void HostLink::copy(const char* name, const std::string& unit, const Buffer& out, const Buffer& in) {
  if (in.elems > 0) enqueue_link_copy(context_, cpu_link_gbs_, fmt::format("{}:{}", name, unit), out, in);
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
