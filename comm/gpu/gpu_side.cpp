#include "comm/gpu/gpu_side.h"

#include <algorithm>

#include "comm/backoff.h"
#include "runtime/device/cuda_device.h"

namespace zs {

const CudaContext& context_of(Device& device) {
  const auto* const cuda = dynamic_cast<const CudaDevice*>(&device);
  ZS_CHECK(cuda != nullptr, "communication between GPUs on device {}", name_of(device.kind()));
  return cuda->context();
}

std::string_view unit_of(const OpTag& tag) {
  const std::string_view text = tag.text();
  const auto begin = text.find('(') + 1;
  return text.substr(begin, text.rfind(')') - begin);
}

void await_stream(const CudaContext& gpu, CUstream_st* stream, double timeout_s, std::string_view what) {
  gpu.make_current();
  Backoff backoff(timeout_s);
  for (;;) {
    const int status = gpu.driver().stream_query(stream);
    if (status == cuda_status::kSuccess) return;
    if (status != cuda_status::kNotReady) gpu.check(status, "cuStreamQuery", std::string(what));
    if (!backoff.pause()) {
      throw Error(ExitCode::peer_lost, fmt::format("{} waited {:g} s for this rank's GPU", what, timeout_s),
                  gpu.gpu().describe(), "see what its streams do; WorldOptions::timeout_s limits the wait");
    }
  }
}

std::int64_t staged_bytes(const Buffer& in, const Buffer& out) {
  return Pool::rounded(in.bytes()) + Pool::rounded(out.bytes());
}

PartTable agree_between_hosts(Communicator& hosts, InlineStream& stream, const OpTag& tag,
                              std::span<const std::int64_t> own) {
  const auto elems = std::ssize(own);
  std::vector<std::int64_t> all(static_cast<std::size_t>(hosts.size() * elems));
  const Buffer said{all.data(), std::ssize(all), DType::i64, DeviceKind::cpu},
      mine = said.slice(hosts.rank() * elems, elems);
  std::copy(own.begin(), own.end(), mine.as<std::int64_t>());
  hosts.all_gather(stream, unit_of(tag), mine, said);
  return {all, hosts.size(), tag.text()};
}

}  // namespace zs
