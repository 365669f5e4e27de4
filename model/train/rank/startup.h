#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/world.h"
#include "model/job/rank_gpus.h"
#include "model/train/config/config.h"
#include "runtime/device/device.h"

namespace zs {

/// Facts that a rank compares with the first rank's before it allocates anything.
struct StartupFacts {
  std::string build;    ///< build ids of the program and the library by their linkers, hashed where there are two
  std::string isa;      ///< instruction set of the kernels
  std::string floats;   ///< byte order, rounding, what becomes of denormal numbers
  std::string config;   ///< resolved, as TOML; before it, how the rank was started
  std::string host;     ///< "node7: 4 ranks, 16 CPUs"
  double free_gib = 0;  ///< free memory of the host, now
};
StartupFacts startup_facts(const World& world, const Config& config);

/// Collective, of ranks with one configuration: what `device = "auto"` comes to is written there. "cuda" where no rank
/// lacks anything, else "cpu", and where some rank sees a GPU rank 0 says in one line why it is not used. Where some
/// rank lacks nothing but a library: an error that says so, and its code. `look`: in place of look_for_gpu, for tests.
int choose_device(World& world, Config& config, const std::function<GpuLook()>& look = {});
/// Device kind that the configuration's `device` comes to, once it is chosen.
DeviceKind device_kind(const Config& config);
/// Library that computes attention on this rank's GPU.
struct GpuAttention {
  bool is_by_cudnn = false;
  std::string text;  ///< for people: "attention by cuDNN 9.19.0"; empty where there was nothing to choose
};
/// Attention as the configuration says, and as what is found here allows. Error(config) where it asks for cuDNN, and
/// there is none.
GpuAttention gpu_attention(const Config& config);
/// Options that the configuration has for a rank's GPU, `gpu` of those that the driver shows.
DeviceOptions gpu_options(const Config& config, int gpu);
/// Error(config) where `device` of the configuration cannot be had: the back end is not in this build, there is no
/// driver, no cuBLASLt, no GPU, or somebody else has it.
void check_device(const Config& config, int gpu);

/// Difference between `own` and the first rank's in what must be the same: "build 12ab, rank 0 has 34cd". Nothing when
/// there is none.
std::optional<std::string> difference(const StartupFacts& own, const StartupFacts& first);
/// Difference between the host of `rank` and the first rank's, where that is worth a line: in shape, in free memory,
/// one of them having less than half of the other's. Empty: none.
std::string uneven_hosts(int rank, const StartupFacts& own, const StartupFacts& first);
/// The first line in which two configurations differ: "train.lr = 0.01, rank 0 has 0.001".
std::string config_difference(std::string_view own, std::string_view first);

/// Collective, before anything is allocated: 0, or 72 where ranks differ in program, instruction set, floating-point
/// behaviour or configuration, or were started otherwise; the lowest such rank prints the first difference. Hosts that
/// differ in shape or free memory are worth one line, no more. `started`: what else must be the same, a line each,
/// "--resume = latest".
int agree_at_start(World& world, const Config& config, const std::string& started);

}  // namespace zs
