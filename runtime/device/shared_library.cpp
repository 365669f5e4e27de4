#include "runtime/device/shared_library.h"

#include <dlfcn.h>

#include <cstdio>

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

SharedLibrary::~SharedLibrary() {
  if (dlclose(handle_) != 0) fmt::print(stderr, "zshard: {} could not be closed: {}\n", name_, dlerror());
}

void* SharedLibrary::address_of(const char* symbol) const {
  if (void* const address = dlsym(handle_, symbol); address != nullptr) return address;
  throw Error(ExitCode::config, fmt::format("the {} is too old: it has no {}", what_, symbol), name_, "install a newer one");
}

}  // namespace zs
