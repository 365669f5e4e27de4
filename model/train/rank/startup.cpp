#include "model/train/rank/startup.h"

#include <fmt/format.h>

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfenv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "kernels/cudnn.h"
#include "model/job/version.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/error_line.h"
#include "runtime/base/random.h"
#include "runtime/base/standard_streams.h"

namespace zs {
namespace {

constexpr const char* kTodo = "start every rank with the same program, configuration, options and environment";
/// A host with less than this part of another's free memory is worth a line.
constexpr double kLittleMemory = 0.5;

/// The build id among an object's notes (ELF: words of name length, descriptor length and type, then both, in words).
std::string build_id(std::uintptr_t notes, std::size_t bytes) {
  constexpr std::uint32_t kBuildId = 3;
  for (std::size_t at = 0; at + 12 <= bytes;) {
    std::array<std::uint32_t, 3> head{};
    std::memcpy(head.data(), reinterpret_cast<const void*>(notes + at), sizeof head);
    const auto words = [](std::uint32_t length) { return (std::size_t{length} + 3) / 4 * 4; };
    const std::size_t name = at + 12, content = name + words(head[0]);
    if (content + head[1] > bytes) break;
    if (head[2] == kBuildId && head[0] == 4 &&
        std::memcmp(reinterpret_cast<const void*>(notes + name), "GNU", 4) == 0) {
      std::string text;
      for (std::uint32_t i = 0; i < head[1]; ++i)
        text += fmt::format("{:02x}", *reinterpret_cast<const unsigned char*>(notes + content + i));
      return text;
    }
    at = content + words(head[1]);
  }
  return "";
}

/// Callback for dl_iterate_phdr: the program itself, which has no name, and this project's library.
int add_build_id(dl_phdr_info* object, std::size_t, void* text) {
  const std::string_view name = object->dlpi_name;
  if (!name.empty() && name.find("libzshard") == name.npos) return 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type == PT_NOTE)
      *static_cast<std::string*>(text) += build_id(object->dlpi_addr + part.p_vaddr, part.p_memsz);
  }
  return 0;
}

std::string build() {
  std::string text;
  dl_iterate_phdr(add_build_id, &text);
  constexpr std::size_t kOne = 40;
  if (text.empty()) return fmt::format("zshard {} without a build id", version());
  return text.size() <= kOne ? text : fmt::format("{:016x}", hash_name(text));
}

std::string floats() {
  volatile float smallest = 1e-40f;
  const volatile float same = smallest * 1.0f;
  return fmt::format("{} endian, rounding mode {}, denormal numbers {}",
                     std::endian::native == std::endian::little ? "little" : "big", std::fegetround(),
                     same != 0 ? "kept" : "flushed to zero");
}

double free_gib() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) return std::stod(line.substr(13)) / (1 << 20);
  }
  return 0;
}

/// Packs the facts without the configuration, which may be long: its hash.
std::string pack(const StartupFacts& facts) {
  return fmt::format("{}\n{}\n{}\n{:016x}\n{}\n{}", facts.build, facts.isa, facts.floats, hash_name(facts.config),
                     facts.host, facts.free_gib);
}

StartupFacts unpack(const std::string& text) {
  StartupFacts facts;
  std::istringstream lines(text);
  std::string free;
  for (std::string* field : {&facts.build, &facts.isa, &facts.floats, &facts.config, &facts.host, &free})
    std::getline(lines, *field);
  facts.free_gib = free.empty() ? 0 : std::stod(free);
  return facts;
}

void tell_of_uneven_hosts(World& world, const StartupFacts& own, const StartupFacts& first) {
  const std::string note = uneven_hosts(world.rank(), own, first);
  const World::Agreement agreement = world.agree(note.empty() ? 0 : 1, note);
  if (agreement.rank == world.rank()) print_note(agreement.message);
}

std::string_view line_of(std::string_view& text) {
  const auto end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  return line;
}

}  // namespace

StartupFacts startup_facts(const World& world, const Config& config) {
  return {.build = build(),
          .isa = cpu_isa(),
          .floats = floats(),
          .config = to_toml(config),
          .host = fmt::format("{} ranks on {} CPUs", world.local_size(), std::thread::hardware_concurrency()),
          .free_gib = free_gib()};
}

int choose_device(World& world, Config& config, const std::function<GpuLook()>& look) {
  if (config.device != "auto") return 0;
  GpuLook own = look ? look() : look_for_gpu(config.cuda.libraries);
  if (config.model.experts > 0 && own.lacks.empty()) own.lacks = "mixtures of experts have no kernels for GPUs yet";
  DeviceChoice choice;
  const int code =
      agreed_together(world, [&](const RunTogether& together) { choice = choose_device(world, own, together); });
  if (code != 0) return code;
  config.device = choice.kind == DeviceKind::cuda ? "cuda" : "cpu";
  if (world.rank() == 0 && !choice.note.empty()) print_note(choice.note);
  return 0;
}

DeviceKind device_kind(const Config& config) { return config.device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu; }

GpuAttention gpu_attention(const Config& config) {
  const bool may_be = config.precision.param == "bf16" && !config.train.deterministic;
  if (device_kind(config) != DeviceKind::cuda || config.cuda.attention == "own" ||
      (config.cuda.attention == "auto" && !may_be))
    return {};
  try {
    return {true, "attention by cuDNN " + open_cudnn(config.cuda.libraries)};
  } catch (const Error& error) {
    if (config.cuda.attention == "cudnn") throw;
    return {false, fmt::format("attention by own kernels: {}", error.what_happened())};
  }
}

DeviceOptions gpu_options(const Config& config, int gpu) {
  DeviceOptions options;
  if (device_kind(config) != DeviceKind::cuda) return options;
  options.gpu = gpu;
  options.libraries = config.cuda.libraries;
  options.tf32 = config.cuda.tf32;
  options.fuses_gelu = config.cuda.fused_gelu;
  options.times_products = config.cuda.tune_products;
  options.cudnn_attention = gpu_attention(config).is_by_cudnn;
  options.shares_gpu = config.cuda.share_gpu;
  return options;
}

void check_device(const Config& config, int gpu) {
  if (device_kind(config) == DeviceKind::cuda) Device::create(DeviceKind::cuda, gpu_options(config, gpu));
}

std::optional<std::string> difference(const StartupFacts& own, const StartupFacts& first) {
  if (own.build != first.build) return fmt::format("program build {:.12}, rank 0 has {:.12}", own.build, first.build);
  if (own.isa != first.isa)
    return fmt::format("kernels for {}, rank 0 has {} (ZSHARD_ISA chooses)", own.isa, first.isa);
  if (own.floats != first.floats) return fmt::format("{}, rank 0 has {}", own.floats, first.floats);
  if (own.config != first.config) return config_difference(own.config, first.config);
  return std::nullopt;
}

std::string uneven_hosts(int rank, const StartupFacts& own, const StartupFacts& first) {
  std::vector<std::string> notes;
  if (own.host != first.host)
    notes.push_back(fmt::format("the hosts are not alike: rank {} has {}, rank 0 {}", rank, own.host, first.host));
  const auto [least, most] = std::minmax(own.free_gib, first.free_gib);
  if (least > 0 && least < kLittleMemory * most)  // 0: the system does not say
    notes.push_back(fmt::format("rank {}'s host has {:.1f} GiB of memory free, rank 0's {:.1f}", rank, own.free_gib,
                                first.free_gib));
  return fmt::format("{}", fmt::join(notes, "; "));
}

std::string config_difference(std::string_view own, std::string_view first) {
  std::string table;
  while (!own.empty() || !first.empty()) {
    const std::string_view a = line_of(own), b = line_of(first);
    if (a.starts_with('[') && a.ends_with(']')) table = std::string(a.substr(1, a.size() - 2)) + ".";
    if (a == b) continue;
    const auto value = b.find(" = ");
    return fmt::format("{}{}, rank 0 has {}", table, a, value == b.npos ? b : b.substr(value + 3));
  }
  return "another configuration";
}

int agree_at_start(World& world, const Config& config, const std::string& started) {
  StartupFacts own = startup_facts(world, config);
  own.config.insert(0, started);
  const std::string config_text = std::exchange(own.config, fmt::format("{:016x}", hash_name(own.config)));
  StartupFacts packed = own;
  packed.config = config_text;
  StartupFacts first = unpack(world.agree(world.rank() == 0 ? 1 : 0, pack(packed)).message);
  if (world.agree(difference(own, first) ? 1 : 0, "").code == 0) {
    tell_of_uneven_hosts(world, own, first);
    return 0;
  }
  own.config = config_text;
  first.config = from_first(world, config_text);
  const auto found = difference(own, first);
  const int code = found ? static_cast<int>(ExitCode::ranks_disagree) : 0;
  const Error error(ExitCode::ranks_disagree,
                    fmt::format("the ranks differ: rank {} has {}", world.rank(), found.value_or("")), "", kTodo);
  const World::Agreement agreement = world.agree(code, error_line(error));
  if (agreement.rank == world.rank()) print_to_stderr("{}\n", agreement.message);
  return agreement.code;
}

}  // namespace zs
