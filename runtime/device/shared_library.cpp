#include "runtime/device/shared_library.h"

#include <dlfcn.h>

#include "runtime/base/check.h"

namespace zs {

SharedLibrary::SharedLibrary(std::initializer_list<const char*> names, std::string what, const char* todo) : what_(std::move(what)) {
  std::string reason;
  for (const char* name : names) {
    handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    reason = dlerror();
  }
  throw Error(ExitCode::config, fmt::format("no {} here ({})", what_, reason), "", todo);
}

void* SharedLibrary::address_of(const char* symbol) const { return dlsym(handle_, symbol); }

void SharedLibrary::throw_too_old(const char* symbol) const {
  throw Error(ExitCode::config, fmt::format("the {} is too old: it has no {}", what_, symbol), name_, "install a newer one");
}

}  // namespace zs
