#include "model/train/plan/gpu_ranks.h"

#include <algorithm>

#include "comm/nccl/nccl_memory.h"
#include "kernels/kernels.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/startup.h"
#include "model/train/rank/step_agreement.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/units.h"

namespace zs {
namespace {

void check_graph(const GpuRanks& found, const Config::Cuda& cuda) {
  if (cuda.graph && found.transport == Transport::staged) throw graphs_are_refused(found.why_staged);
}

}  // namespace

GpuOptions gpu_options_of(const Config::Cuda& cuda) {
  return {.transport = cuda.transport, .share_gpu = cuda.share_gpu, .libraries = cuda.libraries};
}

GpuRanks choose_gpu_transport(std::span<const RankGpu> ranks, const Config::Cuda& wanted) {
  GpuRanks found = choose_gpu_transport(ranks, gpu_options_of(wanted));
  check_graph(found, wanted);
  return found;
}

int find_gpus(World& world, const Config& config, int planned_ranks, GpuRanks& found, std::string_view program) {
  if (device_kind(config) != DeviceKind::cuda) return 0;
  const GpuSearch search{.cuda = gpu_options_of(config.cuda),
                         .planned_ranks = planned_ranks,
                         .check = [&](const GpuRanks& ranks) { check_graph(ranks, config.cuda); }};
  const int code = agreed_together(
      world, [&](const RunTogether& together) { found = find_rank_gpus(world, search, together); }, program);
  if (code == 0 && world.rank() == 0 && !found.note().empty())
    print_to_stderr("{}: {}: {}\n", program, found.is_warning ? "warning" : "note", found.note());
  return code;
}

PlanOptions on_gpus(PlanOptions plan, const Config& config, const GpuRanks& gpus) {
  plan.device = DeviceKind::cuda;
  plan.transport = gpus.transport;
  plan.sums_in_rank_order = config.train.deterministic;
  plan.cudnn_attention = gpu_attention(config).is_by_cudnn;
  return plan;
}

MemoryDemand on_gpus(MemoryDemand demand, const GpuRanks& gpus) {
  demand.plan = on_gpus(demand.plan, demand.config, gpus);
  const int used = (demand.local_ranks + gpus.ranks_a_gpu - 1) / gpus.ranks_a_gpu;
  demand.gpus = gpus.ranks_a_gpu > 1 ? used : std::max(gpus.gpus, used);
  return demand;
}

std::string describe_transport(const World& base, const GpuRanks& gpus) {
  const std::string name = describe_transport(base);
  if (gpus.transport == Transport::nccl) return "nccl, started over " + name;
  return gpus.transport == Transport::staged ? fmt::format("staged over {}", name) : name;
}

RankDeviceOptions rank_device_options(const Config& config, const GpuRanks& gpus, const TrainPlan& plan,
                                      const CpuShare& share) {
  RankDeviceOptions options{.kind = plan.device,
                            .device = gpu_options(config, gpus.gpu),
                            .timeout_s = config.comm.timeout_s,
                            .transport = gpus.transport,
                            .registers_memory = config.cuda.registration == "auto",
                            .create = [&plan](const DeviceOptions& device) { return plan.create_device(device); }};
  options.device.threads = share.threads;
  options.device.cpus = share.cpus;
  if (plan.device == DeviceKind::cuda) options.nccl = nccl_options(config);
  return options;
}

NcclOptions nccl_options(const Config& config) {
  return {.timeout_s = config.comm.timeout_s,
          .arithmetic = GpuArithmetic::of(cuda_kernels()),
          .sums_in_rank_order = config.train.deterministic,
          .folders = config.cuda.libraries};
}

void register_memory(NcclOptions& nccl, const Config& config, Transport transport) {
  if (transport == Transport::nccl && config.cuda.registration == "auto") nccl.memory = make_nccl_memory(nccl);
}

std::string describe_registration(const World& world, const Config& config) {
  if (transport_of(world) != Transport::nccl || config.cuda.registration != "auto") return {};
  const NcclRegistration found = registration_of(world);
  if (!found.refusal.empty()) return fmt::format("nccl: no memory registered: {} (cuda.register)", found.refusal);
  return fmt::format("nccl: {} registered with {}", format_bytes(found.bytes),
                     format_number(found.communicators, "communicator"));
}

}  // namespace zs
