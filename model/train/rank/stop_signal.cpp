#include "model/train/rank/stop_signal.h"

#include <array>
#include <atomic>
#include <csignal>

#include "runtime/base/check.h"

namespace zs {
namespace {

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): a signal handler has nothing else
std::atomic<bool> stop_requested{false}, interrupted{false};
std::atomic<int> first_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

struct Taken {
  int signal;
  struct sigaction before;
};
std::array stops = {Taken{SIGINT, {}}, Taken{SIGTERM, {}}, Taken{SIGUSR1, {}}, Taken{SIGUSR2, {}}, Taken{SIGHUP, {}}};
std::array ignored = {Taken{SIGXFSZ, {}}, Taken{SIGPIPE, {}}};
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

void on_signal(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal, std::memory_order_relaxed);
  stop_requested.store(true, std::memory_order_relaxed);
  if (signal == SIGINT || signal == SIGTERM) std::signal(signal, SIG_DFL);
}

void set_mask(int how) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const Taken& stop : stops) sigaddset(&signals, stop.signal);
  ZS_CHECK(pthread_sigmask(how, &signals, nullptr) == 0, "signals {}", how);
}

void take(Taken& taken, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ZS_CHECK(sigaction(taken.signal, &action, &taken.before) == 0, "signal {}", taken.signal);
}

void give_back(const Taken& taken) {
  ZS_CHECK(sigaction(taken.signal, &taken.before, nullptr) == 0, "signal {}", taken.signal);
}

}  // namespace

void hold_stop_signals() { set_mask(SIG_BLOCK); }

void install_stop_signals() {
  for (Taken& stop : stops) {
    take(stop, on_signal);
    if (stop.signal == SIGHUP && stop.before.sa_handler == SIG_IGN) give_back(stop);
  }
  // A full disk quota and a closed pipe are errors of the write, not the end of the process.
  for (Taken& one : ignored) take(one, SIG_IGN);
  set_mask(SIG_UNBLOCK);
}

void release_stop_signals() {
  for (const Taken& stop : stops) give_back(stop);
  for (const Taken& one : ignored) give_back(one);
  if (const int signal = first_signal.load(std::memory_order_relaxed); signal != 0) std::raise(signal);
}

void interrupt_by_sigint() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(true, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ZS_CHECK(sigaction(SIGINT, &action, nullptr) == 0, "signal {}", SIGINT);
}

bool take_interrupt() { return interrupted.exchange(false, std::memory_order_relaxed); }

bool is_stop_requested() { return stop_requested.load(std::memory_order_relaxed); }

}  // namespace zs
