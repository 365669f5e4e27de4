#include "runtime/shard/offload/host_link.h"

#include <algorithm>
#include <utility>

#include "runtime/device/host_call.h"
#include "runtime/shard/offload/link_copy.h"

namespace zs {
namespace {

constexpr const char* kStaging = "disk_window";

}  // namespace

Memory HostLink::acquire(std::int64_t bytes, const std::string& label, const std::string& folder) {
  if (folder.empty()) return context_.device().pinned_memory().acquire(bytes, offload(), label);
  std::unique_ptr<DiskFile>& file = disks_[folder];
  const int number = static_cast<int>(disks_.size()) - 1;
  if (!file) file = std::make_unique<DiskFile>(folder, number, context_.device().kind() != DeviceKind::meta);
  return file->acquire(bytes, disk(), label);
}

DiskFile* HostLink::disk_of(const Buffer& host) const {
  const auto file = std::find_if(disks_.begin(), disks_.end(),
                                 [&](const auto& known) { return known.second && known.second->contains(host); });
  return file == disks_.end() ? nullptr : file->second.get();
}

void HostLink::read(const Buffer& from, void* to) const {
  DiskFile& file = *disk_of(from);
  file.read(file.range_of(from), to);
}

void HostLink::write(const Buffer& to, const void* from) const {
  DiskFile& file = *disk_of(to);
  file.write(file.range_of(to), from);
}

std::map<std::string, std::int64_t> HostLink::disk_bytes() const {
  std::map<std::string, std::int64_t> bytes;
  for (const auto& [folder, file] : disks_)
    if (file) bytes[folder] = file->bytes();
  return bytes;
}

HostLink::Window HostLink::make(const std::string& unit, const std::vector<Buffer>& host, Stream& stream, Pool& pool,
                                const char* label) {
  const MemoryOwner owner(context_.device().memory(), unit);
  Window window{.unit = unit, .parts = {}, .arrived = {}, .mover = &offload()};
  for (const Buffer& buffer : host) {
    window.parts.push_back({buffer, pool.acquire(buffer.bytes(), stream, label)});
    window.parts.back().disk = disk_of(buffer);
  }
  return window;
}

void HostLink::copy(const char* name, const std::string& unit, const Buffer& out, const Buffer& in) {
  if (in.elems > 0) enqueue_link_copy(context_, cpu_link_gbs_, fmt::format("{}:{}", name, unit), out, in);
}

/// Reads a part to the host's memory, from where the offload stream may take it.
void HostLink::read_part(const std::string& unit, Window::Part& part) {
  part.staging = context_.device().pinned_memory().acquire(part.host.bytes(), disk(), kStaging);
  const Buffer to = part.beside();
  disk().enqueue({"read_from_disk:" + unit, {part.host}, {to}},
                 [file = part.disk, from = part.disk->range_of(part.host), to](ExecContext& exec) {
                   call_on_host(exec, [=] { file->read(from, to.data); });
                 });
  Event has_come;
  disk().record(has_come);
  offload().wait(has_come);
}

/// Writes a part from the host's memory, where the offload stream has put it.
void HostLink::write_part(const std::string& unit, Window::Part& part) {
  Event is_there;
  offload().record(is_there);
  disk().wait(is_there);
  disk().enqueue({"write_to_disk:" + unit, {part.beside()}, {part.host}},
                 [file = part.disk, to = part.disk->range_of(part.host), from = part.beside()](ExecContext& exec) {
                   call_on_host(exec, [=] { file->write(to, from.data); });
                 });
  part.staging.release(disk());
}

void HostLink::check() {
  for (const auto& [folder, file] : disks_)
    if (file && file->has_failed()) disk().synchronize();
}

HostLink::Window HostLink::load(const std::string& unit, const std::vector<Buffer>& host, Pool* pool,
                                const char* label) {
  check();
  Window window = make(unit, host, offload(), pool != nullptr ? *pool : context_.pool(), label);
  for (Window::Part& part : window.parts) {
    if (part.disk != nullptr) read_part(unit, part);
    copy("load_from_host", unit, part.here(), part.beside());
  }
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
    if (!part.is_written) {
      if (part.staging) part.staging.release(offload());
      part.memory.release(context_.stream(), written);
      continue;
    }
    if (part.disk != nullptr && !part.staging)
      part.staging = context_.device().pinned_memory().acquire(part.host.bytes(), offload(), kStaging);
    copy("store_to_host", window.unit, part.beside(), part.here());
    part.memory.release(offload());
    if (part.disk != nullptr) write_part(window.unit, part);
  }
  offload().record(last_store_);
}

Event HostLink::send_down(const std::string& what, const Buffer& out, const Buffer& in) {
  Event written, arrived;
  context_.stream().record(written);
  offload().wait(written);
  copy("store_to_host", what, out, in);
  offload().record(arrived);
  return arrived;
}

void HostLink::send_up(const std::string& what, const Buffer& out, const Buffer& in, const Event& made,
                       Event& arrived) {
  offload().wait(made);
  copy("load_from_host", what, out, in);
  offload().record(arrived);
  last_store_ = arrived;
}

void HostLink::drop(Window window, Stream& last_user) {
  for (Window::Part& part : window.parts) {
    part.memory.release(last_user);
    if (part.staging) part.staging.release(*window.mover);
  }
}

}  // namespace zs
