#include "runtime/shard/offload/link_copy.h"

#include <chrono>
#include <thread>
#include <utility>

#include "kernels/kernels.h"

namespace zs {

/// Enqueues a copy that ends when a link of that bandwidth would have moved it.
void enqueue_link_copy(Context& context, double cpu_link_gbs, std::string name, const Buffer& out, const Buffer& in) {
  const double link_gbs = context.device().kind() == DeviceKind::cpu ? cpu_link_gbs : 0;
  const auto copy = [&kernels = context.kernels(), out, in, link_gbs](ExecContext& exec) {
    const auto begin = std::chrono::steady_clock::now();
    kernels.copy(exec, out, in);
    if (link_gbs > 0)
      std::this_thread::sleep_until(
          begin + std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(in.bytes()) / link_gbs)));
  };
  context.device().stream(StreamRole::offload).enqueue({std::move(name), {in}, {out}}, copy);
}

}  // namespace zs
