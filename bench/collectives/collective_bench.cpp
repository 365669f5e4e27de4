#include "bench/collectives/collective_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>

#include "bench/common/cache_size.h"
#include "bench/common/clock.h"
#include "bench/common/median.h"
#include "bench/kernels/gpu_calls.h"
#include "comm/nccl/nccl_memory.h"
#include "model/train/rank/startup.h"
#include "runtime/device/cpu_topology.h"

namespace zs::bench {
namespace {

constexpr int kRounds = 7, kCopyRounds = 5, kCopies = 2, kGpuCopyRounds = 3;
constexpr std::int64_t kMostSets = 1024;  // each is worked on before the timed calls, however small it is
constexpr std::int64_t kStep = 4;         // sizes grow by this factor
constexpr std::int64_t kGrain = 64;       // bytes: whole lines for every rank

/// A small whole number, so that sums over up to 85 ranks are exact in bf16.
float value(int rank, std::int64_t i) { return static_cast<float>((i + i / 7 + rank * 3) % 7 - 3); }

template <class T>
void fill(T* out, std::int64_t elems, int rank, std::int64_t first) {
  for (std::int64_t i = 0; i < elems; ++i) out[i] = T(value(rank, first + i));
}

template <class T, class Wanted>
std::int64_t count_wrong(const T* data, std::int64_t elems, const Wanted& wanted) {
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < elems; ++i) wrong += static_cast<float>(data[i]) != wanted(i);
  return wrong;
}

template <class Use>
auto with_type(DType dtype, std::vector<std::byte>& image, const Use& use) {
  return dtype == DType::f32 ? use(reinterpret_cast<float*>(image.data()))
                             : use(reinterpret_cast<BFloat16*>(image.data()));
}

/// Those that the ranks of this host compute on.
std::vector<int> cpus_of_ranks(int local_size) {
  std::set<int> cpus;
  for (int rank = 0; rank < local_size; ++rank) {
    const CpuShare share = cpu_share(rank, local_size);
    cpus.insert(share.cpus.begin(), share.cpus.end());
  }
  return {cpus.begin(), cpus.end()};
}

CollectiveOptions with_all(CollectiveOptions options) {
  if (options.ops.empty())
    options.ops = {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce, Collective::all_to_all,
                   Collective::broadcast};
  if (options.dtypes.empty()) options.dtypes = {DType::f32, DType::bf16};
  return options;
}

}  // namespace

CollectiveBench::CollectiveBench(World& world, const CollectiveOptions& options, const Config& config,
                                 const Machine& machine)
    : world_(world),
      options_(with_all(options)),
      machine_(machine),
      nccl_(machine_.nccl_options(config)),
      device_(make_device(config)),
      host_device_(is_on_gpus() ? Device::create(DeviceKind::cpu, {}) : nullptr),
      ranks_(world, is_on_gpus() ? *host_device_ : *device_),
      room_(make_room()),
      gpu_world_(machine.connect(world, *device_, nccl_)),
      comm_(measured_world().communicator()) {
  if (options_.messages && measured_world().transport() != "mpi") messages_ = world.message_communicator();
  if (options_.compare) library_.emplace();
  report_.ranks = world.size();
  if (!is_on_gpus()) return;
  report_.gpu = gpu_of(*device_).name;
  report_.ranks_a_gpu = machine.gpus.ranks_a_gpu;
}

/// Where NCCL registers memory, the room is the device's slab, whose size depends on the GPU: one device is made to ask
/// for that.
std::unique_ptr<Device> CollectiveBench::make_device(const Config& config) const {
  if (device_kind(config) != DeviceKind::cuda) return Device::create(DeviceKind::cpu, {});
  DeviceOptions options = machine_.device_options(config, cpu_share(world_.local_rank(), world_.local_size()));
  if (nccl_.memory != nullptr) {
    options.slab_bytes = Pool::rounded(room_bytes(gpu_of(*machine_.make_device(DeviceKind::cuda, options))));
    options.memory = nccl_.memory.get();
  }
  return machine_.make_device(DeviceKind::cuda, options);
}

std::int64_t CollectiveBench::room_bytes(const CudaGpu& gpu) const {
  const bool has_two = std::count(options_.ops.begin(), options_.ops.end(), Collective::all_to_all) > 0;
  return (has_two ? 2 : 1) * (2 * gpu.l2_bytes + options_.max_bytes + kGrain * world_.size());
}

/// Before communicators are made: NCCL knows it before the first call, as it knows a training's. And what is staged
/// lies in page-locked memory that is there before anything is measured.
Memory CollectiveBench::make_room() {
  if (!is_on_gpus()) return {};
  Stream& compute = device_->stream(StreamRole::compute);
  if (machine_.gpus.transport == Transport::staged)
    device_->pinned_memory().staging().reserve(compute, 2 * Pool::rounded(options_.max_bytes + kGrain * world_.size()));
  return device_->pool().acquire(room_bytes(gpu_of(*device_)), compute, "bench");
}

CollectiveReport CollectiveBench::run() { return is_on_gpus() ? run_on_gpus() : run_on_cpus(); }

CollectiveReport CollectiveBench::run_on_cpus() {
  const std::vector<int> cpus = cpus_of_ranks(world_.local_size());
  report_.cache_bytes = last_level_cache_bytes(cpus);
  sets_bytes_ = std::llround(ranks_.max(static_cast<double>(2 * report_.cache_bytes / world_.local_size())));
  // All ranks copy at once, and the arrays of as many as have a CPU are together what one process would take: those of
  // all together would let ranks that take turns find theirs in the cache again.
  const std::int64_t at_once = std::min<std::int64_t>(world_.local_size(), std::ssize(cpus));
  CopyCeiling copy({}, std::max<std::int64_t>(report_.cache_bytes / at_once, 1 << 20));
  measure_copy(copy);
  measure_all();
  measure_copy(copy);
  return report_;
}

CollectiveReport CollectiveBench::run_on_gpus() {
  report_.cache_bytes = gpu_of(*device_).l2_bytes;
  // The fewest where GPUs differ: each has room for its own.
  sets_bytes_ = -std::llround(ranks_.max(-static_cast<double>(2 * report_.cache_bytes / report_.ranks_a_gpu)));
  GpuCopyCeiling copy(*device_, ranks_, machine_.gpu_ceilings);
  for (int i = 0; i < kGpuCopyRounds; ++i) copy.measure();
  measure_all();
  for (int i = 0; i < kGpuCopyRounds; ++i) copy.measure();
  report_.copy_gb_per_s = copy.gb_per_s();
  return report_;
}

void CollectiveBench::measure_all() {
  for (const Collective op : options_.ops) {
    for (const DType dtype : options_.dtypes) {
      for (std::int64_t bytes = options_.min_bytes; bytes <= options_.max_bytes; bytes *= kStep)
        measure({op, bytes, dtype});
    }
  }
}

/// The best rate of all ranks together, from the moment when all begin to the moment when the last one ends: with fewer
/// cores than ranks each rank alone may be faster.
void CollectiveBench::measure_copy(CopyCeiling& copy) {
  copy.copy(false, 1);  // the pages are there, and the caches as they will be
  for (int i = 0; i < 2 * kCopyRounds; ++i) {
    ranks_.line_up();
    device_->synchronize();
    const auto start = Clock::now();
    copy.copy(i % 2 == 1, kCopies);
    const double seconds = ranks_.max(std::chrono::duration<double>(Clock::now() - start).count());
    const auto bytes = static_cast<double>(kCopies * copy.touched_bytes() * world_.size());
    report_.copy_gb_per_s = std::max(report_.copy_gb_per_s, 1e-9 * bytes / seconds);
  }
}

void CollectiveBench::measure(const Case& asked) {
  const std::int64_t grain = kGrain * world_.size();
  const Case one{asked.op, (asked.bytes + grain - 1) / grain * grain, asked.dtype};
  const std::int64_t set_bytes = CollectiveSets::bytes_of_one(one);
  const std::int64_t count = std::clamp<std::int64_t>((sets_bytes_ + set_bytes - 1) / set_bytes, 1, kMostSets);
  CollectiveSets sets(*device_, is_on_gpus() ? parts_of(room_) : bytes_from(comm_->arena()), one, count),
      ordinary(*device_, bytes_from(device_->allocator()), one, library_ || messages_ ? count : 0);
  std::vector<Candidate> all = candidates(one, sets, ordinary);
  for (Candidate& candidate : all) {
    candidate.wrong = wrong_elements(candidate, one);
    const double once_us = std::max(time_calls(candidate, one, count + 1), 0.1);  // touches every set
    candidate.calls_a_round =
        std::max<std::int64_t>(static_cast<std::int64_t>(options_.min_time_s * 1e6 / kRounds / once_us), 1);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Candidate& candidate : all) candidate.rounds_us.push_back(time_calls(candidate, one, candidate.calls_a_round));
  }
  for (Candidate& candidate : all) {
    candidate.wrong += wrong_elements(candidate, one);
    report_.rows.push_back({.op = one.op,
                            .bytes = one.bytes,
                            .dtype = one.dtype,
                            .transport = candidate.transport,
                            .sets = static_cast<int>(count),
                            .calls = kRounds * candidate.calls_a_round,
                            .time_us = median(candidate.rounds_us),
                            .time_us_min = *std::min_element(candidate.rounds_us.begin(), candidate.rounds_us.end()),
                            .wrong = candidate.wrong});
  }
}

/// Messages are on ordinary memory, as transport mpi has it: shared memory makes Open MPI several times slower.
std::vector<CollectiveBench::Candidate> CollectiveBench::candidates(const Case& one, CollectiveSets& own,
                                                                    CollectiveSets& ordinary) {
  std::vector<Candidate> all{{.transport = measured_world().transport(), .comm = comm_.get(), .sets = &own}};
  if (messages_) all.push_back({.transport = messages_->transport(), .comm = messages_.get(), .sets = &ordinary});
  if (library_ && MpiLibrary::has(one.op, one.dtype)) all.push_back({.transport = "openmpi", .sets = &ordinary});
  return all;
}

/// Of one call, on the slowest rank.
double CollectiveBench::time_calls(const Candidate& candidate, const Case& one, std::int64_t calls) {
  ranks_.line_up();
  device_->synchronize();
  const auto start = Clock::now();
  for (std::int64_t i = 0; i < calls; ++i) call(candidate, one, candidate.sets->take_turn());
  device_->synchronize();
  return ranks_.max(std::chrono::duration<double, std::micro>(Clock::now() - start).count()) /
         static_cast<double>(calls);
}

void CollectiveBench::call(const Candidate& candidate, const Case& one, std::size_t set) {
  const CollectiveSets& sets = *candidate.sets;
  const Buffer data = sets.data[set];
  if (candidate.comm == nullptr) return library_->call(one.op, data, sets.out[set]);
  Stream& stream = device_->stream(StreamRole::compute);
  const Buffer own = data.slice(world_.rank() * (data.elems / world_.size()), data.elems / world_.size());
  switch (one.op) {
    case Collective::all_gather: return candidate.comm->all_gather(stream, "bench", own, data);
    case Collective::reduce_scatter:
      return candidate.comm->reduce_scatter(stream, "bench", data, own, ReduceInto::overwrite);
    case Collective::all_reduce: return candidate.comm->all_reduce(stream, "bench", data, ReduceOp::sum);
    case Collective::all_to_all: return candidate.comm->all_to_all(stream, "bench", data, sets.out[set]);
    case Collective::broadcast: return candidate.comm->broadcast(stream, "bench", data, 0);
  }
}

/// One call on known inputs, in the last set.
std::int64_t CollectiveBench::wrong_elements(const Candidate& candidate, const Case& one) {
  const CollectiveSets& sets = *candidate.sets;
  const Buffer data = sets.data.back();
  const int rank = world_.rank(), size = world_.size();
  const std::int64_t part = data.elems / size;
  std::vector<std::byte> image(static_cast<std::size_t>(data.bytes()));
  with_type(one.dtype, image, [&](auto* in) {
    // Before a gather the others' parts hold something else; before a broadcast, everything but the root's.
    fill(in, data.elems, rank, one.op == Collective::all_gather ? 1 : 0);
    if (one.op == Collective::all_gather) fill(in + rank * part, part, rank, 0);
  });
  put(*device_, data, image);
  call(candidate, one, sets.data.size() - 1);
  device_->synchronize();
  const auto sum = [&](std::int64_t i) {
    float total = 0;
    for (int r = 0; r < size; ++r) total += value(r, i);
    return total;
  };
  image = get(*device_, one.op == Collective::all_to_all ? sets.out.back() : data);
  const std::int64_t wrong = with_type(one.dtype, image, [&](const auto* out) -> std::int64_t {
    switch (one.op) {
      case Collective::all_gather:
        return count_wrong(out, data.elems,
                           [&](std::int64_t i) { return value(static_cast<int>(i / part), i % part); });
      case Collective::reduce_scatter:
        return count_wrong(candidate.comm == nullptr ? out : out + rank * part, part,
                           [&](std::int64_t i) { return sum(rank * part + i); });
      case Collective::all_reduce: return count_wrong(out, data.elems, sum);
      case Collective::all_to_all:
        return count_wrong(out, data.elems,
                           [&](std::int64_t i) { return value(static_cast<int>(i / part), rank * part + i % part); });
      case Collective::broadcast: return count_wrong(out, data.elems, [&](std::int64_t i) { return value(0, i); });
    }
    return data.elems;
  });
  return std::llround(ranks_.sum(static_cast<double>(wrong)));
}

}  // namespace zs::bench
