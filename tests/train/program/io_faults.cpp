// What network file systems may do, for a program that is started with this library in LD_PRELOAD. IO_FILE: a part of
// the names of the files that it happens to. IO_FAULT: "short", half of each write; "eintr", EINTR from every call but
// each third; "eio=N", EIO from the N-th fsync; "signal", SIGUSR1 before main, where the program has started itself
// again.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

bool is_wanted(int descriptor, const char* fault) {
  const char *const wanted = std::getenv("IO_FAULT"), *const file = std::getenv("IO_FILE");
  if (wanted == nullptr || file == nullptr || std::strncmp(wanted, fault, std::strlen(fault)) != 0) return false;
  std::array<char, 64> link{};
  std::array<char, PATH_MAX> name{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  return ::readlink(link.data(), name.data(), name.size() - 1) > 0 && std::strstr(name.data(), file) != nullptr;
}

bool is_interrupted(int descriptor) {
  static int calls = 0;
  if (!is_wanted(descriptor, "eintr") || ++calls % 3 == 0) return false;
  errno = EINTR;
  return true;
}

std::size_t part_of(int descriptor, std::size_t bytes) {
  return is_wanted(descriptor, "short") && bytes > 1 ? bytes / 2 : bytes;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

[[gnu::constructor]] void send_signal() {
  const char* const fault = std::getenv("IO_FAULT");
  if (fault != nullptr && std::strcmp(fault, "signal") == 0 && std::getenv("GOMP_SPINCOUNT") != nullptr)
    std::raise(SIGUSR1);
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* data, std::size_t bytes) {
  if (is_interrupted(descriptor)) return -1;
  return next<ssize_t(int, const void*, std::size_t)>("write")(descriptor, data, part_of(descriptor, bytes));
}

ssize_t pwrite64(int descriptor, const void* data, std::size_t bytes, off64_t offset) {
  if (is_interrupted(descriptor)) return -1;
  using Function = ssize_t(int, const void*, std::size_t, off64_t);
  return next<Function>("pwrite64")(descriptor, data, part_of(descriptor, bytes), offset);
}

ssize_t pread64(int descriptor, void* data, std::size_t bytes, off64_t offset) {
  if (is_interrupted(descriptor)) return -1;
  return next<ssize_t(int, void*, std::size_t, off64_t)>("pread64")(descriptor, data, bytes, offset);
}

int ftruncate64(int descriptor, off64_t bytes) {
  if (is_interrupted(descriptor)) return -1;
  return next<int(int, off64_t)>("ftruncate64")(descriptor, bytes);
}

int fsync(int descriptor) {
  static int calls = 0;
  if (is_interrupted(descriptor)) return -1;
  if (is_wanted(descriptor, "eio=") && ++calls == std::atoi(std::getenv("IO_FAULT") + 4)) {
    errno = EIO;
    return -1;
  }
  return next<int(int)>("fsync")(descriptor);
}

}  // extern "C"
