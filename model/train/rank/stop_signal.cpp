#include "model/train/rank/stop_signal.h"

#include <atomic>
#include <csignal>

#include "runtime/base/check.h"

namespace zs {
namespace {

std::atomic<bool> stop_requested{
    false};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): a signal handler has nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  stop_requested.store(true, std::memory_order_relaxed);
  if (signal == SIGINT || signal == SIGTERM) std::signal(signal, SIG_DFL);
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  struct sigaction before {};
  ZS_CHECK(sigaction(SIGHUP, nullptr, &before) == 0, "signal {}", SIGHUP);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
    ZS_CHECK(sigaction(signal, &action, nullptr) == 0, "signal {}", signal);
  }
  // A full disk quota and a closed pipe are errors of the write, not the end of the process.
  for (const int signal : {SIGXFSZ, SIGPIPE}) ZS_CHECK(std::signal(signal, SIG_IGN) != SIG_ERR, "signal {}", signal);
}

bool is_stop_requested() { return stop_requested.load(std::memory_order_relaxed); }

}  // namespace zs
