#include "runtime/tensor/host_op.h"

#include <cstddef>
#include <utility>

#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// Fills memory of the host, and uploads it.
void fill_through_host(ExecContext& exec, const KernelTable& kernels, const std::vector<Buffer>& reads,
                       const std::vector<Buffer>& writes, const HostFill& fill) {
  std::vector<std::vector<std::byte>> memory;
  std::vector<Buffer> on_host = writes;
  for (Buffer& buffer : on_host) {
    buffer.data = memory.emplace_back(static_cast<std::size_t>(buffer.bytes())).data();
    buffer.device = DeviceKind::cpu;
  }
  fill(reads, on_host);
  for (std::size_t i = 0; i < writes.size(); ++i) kernels.upload(exec, writes[i], on_host[i].data);
}

}  // namespace

void fill_on_host(const Context& context, OpInfo info, HostFill fill) {
  std::vector<Buffer> writes = info.writes;
  launch_on_host(
      context, std::move(info),
      [&kernels = context.kernels(), is_gpu = context.device().kind() == DeviceKind::cuda, writes = std::move(writes),
       fill = std::move(fill)](ExecContext& exec, const std::vector<Buffer>& reads) {
        is_gpu ? fill_through_host(exec, kernels, reads, writes, fill) : fill(reads, writes);
      });
}

}  // namespace zs
