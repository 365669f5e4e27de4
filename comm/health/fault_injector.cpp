#include "comm/health/fault_injector.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "runtime/base/check.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

constexpr const char* kVariable = "TRAIN_FAULT";

/// Cuts `text` at the first `separator`, which is left out; all of it where there is none.
std::string_view take(std::string_view& text, char separator) {
  const auto at = text.find(separator);
  const std::string_view head = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + 1);
  return head;
}

long number(std::string_view text) {
  const auto value = parse_integer<long>(text);
  if (!value)
    throw Error(ExitCode::usage, fmt::format("\"{}\" is not a number", text), kVariable,
                "write POINT@rank=R,hit=N:ACTION");
  return *value;
}

void act(std::string_view action, long value) {
  if (action == "delay") return std::this_thread::sleep_for(std::chrono::milliseconds(value));
  if (action == "throw") throw std::runtime_error("an exception that TRAIN_FAULT asked for");
  if (action == "exit") std::exit(static_cast<int>(value));
  const int signal = action == "kill" ? SIGKILL : action == "stop" ? SIGSTOP : action == "segv" ? SIGSEGV : SIGABRT;
  ZS_CHECK(kill(getpid(), signal) == 0, "signal {}", signal);
  // A signal to a process goes to any of its threads, a moment later.
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace

FaultInjector::FaultInjector(std::string_view text, int rank) {
  while (!text.empty()) {
    std::string_view action = take(text, ';');
    std::string_view conditions = take(action, ':');
    Point point{.name = std::string(take(conditions, '@'))};
    bool is_here = true;
    while (!conditions.empty()) {
      std::string_view value = take(conditions, ',');
      const std::string_view key = take(value, '=');
      if (key != "rank" && key != "hit")
        throw Error(ExitCode::usage, fmt::format("no condition is called \"{}\"", key), kVariable);
      if (key == "rank") is_here = number(value) == rank;
      if (key == "hit") point.wanted_hit = number(value);
    }
    point.action = std::string(take(action, '='));
    point.value = action.empty() ? 0 : number(action);
    constexpr std::string_view kActions[] = {"kill", "stop", "abort", "segv", "throw", "exit", "delay", "return"};
    if (std::find(std::begin(kActions), std::end(kActions), point.action) == std::end(kActions))
      throw Error(ExitCode::usage, fmt::format("no action is called \"{}\"", point.action), kVariable);
    if (is_here) points_.push_back(std::move(point));
  }
}

FaultInjector FaultInjector::from_environment(int rank) {
  const char* const text = std::getenv(kVariable);
  return {text != nullptr ? text : "", rank};
}

bool FaultInjector::has(std::string_view point) const {
  return std::any_of(points_.begin(), points_.end(), [&](const Point& p) { return p.name == point; });
}

bool FaultInjector::do_hit(std::string_view name) {
  bool returns = false;
  for (Point& point : points_) {
    if (point.name != name) continue;
    const long hits = point.hits->fetch_add(1) + 1;
    if (point.wanted_hit != 0 && point.wanted_hit != hits) continue;
    returns = returns || point.action == "return";
    if (point.action != "return") act(point.action, point.value);
  }
  return returns;
}

}  // namespace zs
