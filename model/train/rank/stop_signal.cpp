#include "model/train/rank/stop_signal.h"

#include <array>
#include <atomic>
#include <csignal>
#include <utility>

#include "runtime/base/check.h"

namespace zs {
namespace {

std::atomic<bool> stop_requested{
    false};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): a signal handler has nothing else
static_assert(std::atomic<bool>::is_always_lock_free);

std::atomic<int> first_signal{0};  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
// Errors of the write instead: what was to become of them before.
std::array ignored = {
    std::pair<int, sighandler_t>{SIGXFSZ, SIG_DFL},  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
    std::pair<int, sighandler_t>{SIGPIPE, SIG_DFL}};

void on_signal(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal, std::memory_order_relaxed);
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
  for (auto& [signal, handler] : ignored) {
    handler = std::signal(signal, SIG_IGN);
    ZS_CHECK(handler != SIG_ERR, "signal {}", signal);
  }
}

void release_stop_signals() {
  struct sigaction now {};
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP}) {
    const bool is_ours = sigaction(signal, nullptr, &now) == 0 && now.sa_handler == on_signal;
    if (is_ours) ZS_CHECK(std::signal(signal, SIG_DFL) != SIG_ERR, "signal {}", signal);
  }
  for (const auto& [signal, handler] : ignored) std::signal(signal, handler);
  if (const int signal = first_signal.load(std::memory_order_relaxed); signal != 0) std::raise(signal);
}

bool is_stop_requested() { return stop_requested.load(std::memory_order_relaxed); }

}  // namespace zs
