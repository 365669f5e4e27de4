#include "bench/kernels/kernel_bench.h"

#include <algorithm>
#include <cmath>

#include "bench/common/cache_size.h"
#include "bench/common/clock.h"

namespace zs::bench {
namespace {

/// A call on operands that other calls have pushed out of the caches: as many sets as are this often the last-level
/// cache together.
constexpr std::int64_t kCaches = 4;
/// What arrays that a case does not count may take.
constexpr std::int64_t kSlack = std::int64_t{8} << 20;
constexpr int kFirstCeilingRounds = 5, kCeilingRounds = 1;
/// Calls shorter than this are timed several at once.
constexpr double kShortestSampleMs = 0.02;

struct Samples {
  std::vector<double> ms;
  std::int64_t calls = 0;
};

/// Runs on the stream's thread. The first round touches every operand and lets libraries make what they keep.
void sample(ExecContext& exec, std::vector<Work>& calls, double min_time_s, Samples& samples) {
  for (Work& call : calls) call(exec);
  const auto before = Clock::now();
  for (Work& call : calls) call(exec);
  const double call_ms = ms_since(before) / static_cast<double>(calls.size());
  const auto batch =
      static_cast<std::int64_t>(std::clamp(std::ceil(kShortestSampleMs / std::max(call_ms, 1e-6)), 1.0, 1e4));
  for (const auto start = Clock::now(); ms_since(start) < 1e3 * min_time_s || samples.ms.size() < kFewestSamples;) {
    const auto sample_start = Clock::now();
    for (std::int64_t i = 0; i < batch; ++i) calls[static_cast<std::size_t>(samples.calls++) % calls.size()](exec);
    samples.ms.push_back(ms_since(sample_start) / static_cast<double>(batch));
  }
}

std::int64_t sets_of(const KernelCase& kernel_case, std::int64_t cache_bytes) {
  if (kernel_case.bound == Bound::latency) return 1;
  return std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(kCaches * cache_bytes) / kernel_case.bytes));
}

}  // namespace

ColdCalls::ColdCalls(Device& device, const KernelCase& kernel_case, std::int64_t cache_bytes)
    : arrays(device, kSlack + sets_of(kernel_case, cache_bytes) * static_cast<std::int64_t>(kernel_case.bytes)) {
  for (std::int64_t set = 0; set < sets_of(kernel_case, cache_bytes); ++set)
    calls.push_back(kernel_case.make(arrays, static_cast<int>(set)));
}

std::vector<KernelCase> selected_cases(const KernelOptions& options) {
  return selected_cases(options, options.device == "cuda" ? gpu_case_sizes() : CaseSizes{});
}

std::vector<KernelCase> selected_cases(const KernelOptions& options, const CaseSizes& sizes) {
  std::vector<KernelCase> cases = kernel_cases(sizes);
  std::erase_if(cases, [&](const KernelCase& one) {
    return one.text().find(options.filter) == std::string::npos ||
           (!options.dtype.empty() && zs::name_of(one.dtype) != options.dtype);
  });
  if (cases.empty())
    throw Error(ExitCode::usage, fmt::format("no kernel's text contains '{}'", options.filter), "--filter",
                "bench_kernels --list shows what there is");
  return cases;
}

KernelBench::KernelBench(const KernelOptions& options)
    : options_(options),
      cases_(selected_cases(options)),
      share_(cpu_share(0, 1)),
      cache_bytes_(last_level_cache_bytes(share_.cpus)),
      world_(make_single_world({})) {
  if (options_.threads.empty()) options_.threads = {1, share_.threads};
  std::sort(options_.threads.begin(), options_.threads.end());
  options_.threads.erase(std::unique(options_.threads.begin(), options_.threads.end()), options_.threads.end());
}

KernelReport KernelBench::run() {
  bind_this_thread(share_.cpus);
  KernelReport report{.isa = cpu_isa(), .cache_bytes = cache_bytes_};
  for (const int threads : options_.threads) measure_all(threads, report);
  return report;
}

void KernelBench::measure_all(int threads, KernelReport& report) {
  const DeviceOptions options{.threads = threads, .cpus = share_.cpus, .sync_timeout_s = kKernelTimeoutS};
  const auto device = Device::create(DeviceKind::cpu, options);
  KernelReport::Ceilings& ceilings = report.ceilings[threads];
  for (const KernelCase& one : cases_) {
    report.rows.push_back(measure(*device, one));
    measure_ceiling(options, one);
  }
  if (copies_) {
    ceilings.copy_gb_per_s = copies_->gb_per_s();
    ceilings.memcpy_gb_per_s = copies_->memcpy_gb_per_s();
  }
  for (auto& [dtype, ceiling] : products_) ceilings.product_gflops[dtype] = ceiling.measure(kCeilingRounds);
  copies_.reset();
  products_.clear();
}

void KernelBench::measure_ceiling(const DeviceOptions& options, const KernelCase& kernel_case) {
  if (kernel_case.bound == Bound::memory) {
    const bool is_first = !copies_;
    if (is_first) copies_ = std::make_unique<CopyCeiling>(options, cache_bytes_);
    copies_->measure(is_first ? kFirstCeilingRounds : kCeilingRounds);
  } else if (kernel_case.bound == Bound::products) {
    const auto [place, is_first] = products_.try_emplace(kernel_case.dtype, *world_, options, kernel_case.dtype);
    place->second.measure(is_first ? kFirstCeilingRounds : kCeilingRounds);
  }
}

KernelReport::Row KernelBench::measure(Device& device, const KernelCase& kernel_case) const {
  ColdCalls cold(device, kernel_case, cache_bytes_);
  Samples samples;
  const std::int64_t scratch = device.options().threads * kScratchBytes;
  device.stream(StreamRole::compute)
      .enqueue({kernel_case.text(), {}, {}, scratch}, [&, min_time_s = options_.min_time_s](ExecContext& exec) {
        sample(exec, cold.calls, min_time_s, samples);
      });
  device.synchronize();
  return row_of(kernel_case, device.options().threads, samples.calls, samples.ms);
}

}  // namespace zs::bench
