#include "runtime/device/nvtx.h"

#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>

namespace zs {
namespace {

using nvtx::Function;

/// Slots that tools point at their functions. The one mutable object of its kind: a tool is told where to write by a
/// function that gets no argument to say whose it is, writes for as long as the process lives, and there is one for all
/// of it. Written while it attaches.
struct Slots {
  Slots() {
    for (std::size_t module = 1; module < functions.size(); ++module) {
      for (unsigned i = 1; i < nvtx::kCounts[module]; ++i) tables[module][i] = &functions[module][i];
    }
  }
  std::array<std::array<Function, nvtx::kMostFunctions>, nvtx::kModules> functions{};
  std::array<std::array<Function*, nvtx::kMostFunctions + 1>, nvtx::kModules> tables{};
};
Slots& slots() {
  static Slots slots;
  return slots;
}

int module_functions(int module, Function*** table, unsigned* count) {
  if (module < 1 || module >= nvtx::kModules) return 0;
  if (count != nullptr) *count = nvtx::kCounts[module];
  if (table != nullptr) *table = slots().tables[static_cast<std::size_t>(module)].data();
  return 1;
}

const void* export_table(std::uint32_t id) {
  static constexpr nvtx::Callbacks kCallbacks{.module_functions = module_functions};
  static constexpr nvtx::VersionInfo kVersion{.set_tool_version = [](std::uint32_t) {}};
  if (id == nvtx::kCallbacks) return &kCallbacks;
  return id == nvtx::kVersionInfo ? &kVersion : nullptr;
}

template <class Signature>
Signature slot(int module, unsigned function) {
  return reinterpret_cast<Signature>(slots().functions[static_cast<std::size_t>(module)][function]);
}

const Nvtx* refuse(const char* path, const char* why) {
  std::fprintf(stderr, "zshard: note: no ranges for the tool that NVTX_INJECTION64_PATH names: %s (%s)\n", why, path);
  return nullptr;
}

}  // namespace

const Nvtx* Nvtx::of_process() {
  static const Nvtx* const tool = attach(std::getenv("NVTX_INJECTION64_PATH"));
  return tool;
}

const Nvtx* Nvtx::attach(const char* path) {
  if (path == nullptr || *path == 0) return nullptr;
  // Never closed: a tool has threads, and handlers for the end of the process.
  void* const library = dlopen(path, RTLD_LAZY);
  if (library == nullptr) return refuse(path, dlerror());
  const auto initialize = reinterpret_cast<nvtx::Initialize>(dlsym(library, nvtx::kInitialize));
  if (initialize == nullptr) return refuse(path, "it is no library for NVTX");
  if (initialize(export_table) == 0) return refuse(path, "it does not attach");
  static const Nvtx tool(slot<nvtx::RangePush>(nvtx::kCore, nvtx::kRangePush),
                         slot<nvtx::RangePop>(nvtx::kCore, nvtx::kRangePop),
                         slot<nvtx::NameStream>(nvtx::kCuda, nvtx::kNameStream));
  return &tool;
}

}  // namespace zs
