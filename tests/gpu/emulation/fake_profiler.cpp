// A profiler's library for tests, as NVTX 3 loads one: it notes what it is told. With FAKE_PROFILER_REFUSES set it does
// not attach.
#include <cstdlib>
#include <cstring>
#include <string>

#include "runtime/device/nvtx.h"

namespace {

std::string& notes() {
  static std::string notes;
  return notes;
}

int push(const char* name) {
  notes() += std::string("push ") + name + "\n";
  return 0;
}
int pop() {
  notes() += "pop\n";
  return 0;
}
void name_stream(void* stream, const char* name) {
  notes() += std::string(stream == nullptr ? "no " : "") + "stream " + name + "\n";
}

/// Points the program's functions at its own, as long as the program has that many.
bool hook(const zs::nvtx::Callbacks& callbacks, int module, unsigned number, zs::nvtx::Function own) {
  zs::nvtx::Function** table = nullptr;
  unsigned count = 0;
  if (callbacks.module_functions(module, &table, &count) != 1 || number >= count) return false;
  if (table[0] != nullptr || table[count] != nullptr) return false;
  for (unsigned i = 1; i < count; ++i) {
    if (table[i] == nullptr) return false;
  }
  *table[number] = own;
  return true;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(zs::nvtx::ExportTable tables) {
  if (std::getenv("FAKE_PROFILER_REFUSES") != nullptr) return 0;
  const auto* const version = static_cast<const zs::nvtx::VersionInfo*>(tables(zs::nvtx::kVersionInfo));
  const auto* const callbacks = static_cast<const zs::nvtx::Callbacks*>(tables(zs::nvtx::kCallbacks));
  if (tables(99) != nullptr || version == nullptr || version->bytes != sizeof(*version) || version->version != 3)
    return 0;
  if (callbacks == nullptr || callbacks->bytes != sizeof(*callbacks) ||
      callbacks->module_functions(99, nullptr, nullptr) != 0)
    return 0;
  version->set_tool_version(1);
  using zs::nvtx::Function;
  return hook(*callbacks, zs::nvtx::kCore, zs::nvtx::kRangePush, reinterpret_cast<Function>(push)) &&
         hook(*callbacks, zs::nvtx::kCore, zs::nvtx::kRangePop, reinterpret_cast<Function>(pop)) &&
         hook(*callbacks, zs::nvtx::kCuda, zs::nvtx::kNameStream, reinterpret_cast<Function>(name_stream));
}

extern "C" const char* fake_profiler_notes() { return notes().c_str(); }
