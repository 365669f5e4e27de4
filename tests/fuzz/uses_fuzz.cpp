// Uses that are drawn at random, each in a process of its own. Right ones, at up to four ranks, have the bits of one
// rank, or are refused by a UsageError; wrong ones end with an exit code that says whose mistake it is. Usage:
// uses_fuzz right|wrong FIRST COUNT   (seeds FIRST ... FIRST + COUNT - 1; of one alone all output is shown)
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "tests/fuzz/wrong_uses.h"

namespace zs::test {
namespace {

constexpr int kSeconds = 60;  // of one use, on a machine that has other work
/// Codes of the child for what no exit code of zs::run says.
constexpr int kDiffers = 100, kSilent = 101, kForeign = 1, kTimeout = 69, kInternal = 70;

int run_on(int ranks, const std::function<void(Job&)>& body) {
  char name[] = "use", *arguments[] = {name, nullptr};
  return run(1, arguments, body, {.timeout_s = 30, .threads = 1, .local_ranks = ranks, .device = "cpu"});
}

void print_differences(int rank, const Outcome& of, const Outcome& one) {
  for (std::size_t i = 0; i < of.weights.size() && i < one.weights.size(); ++i) {
    const auto& [name, values] = of.weights[i];
    float most = 0;
    for (std::size_t j = 0; j < values.size(); ++j)
      most = std::max(most, std::abs(values[j] - one.weights[i].second[j]));
    if (values != one.weights[i].second) fmt::print("rank {}: error: {} differs by {}\n", rank, name, most);
  }
  for (std::size_t i = 0; i < of.evaluations.size() && i < one.evaluations.size(); ++i)
    if (of.evaluations[i] != one.evaluations[i])
      fmt::print("rank {}: error: evaluation {} is {}, {} plainly\n", rank, i, of.evaluations[i], one.evaluations[i]);
}

std::vector<Outcome> outcomes_of(const Use& use, int& code) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(use.way.ranks));
  code = run_on(use.way.ranks, [&](Job& job) { outcomes[static_cast<std::size_t>(job.rank())] = run_use(job, use); });
  return outcomes;
}

int run_right(const Use& use) {
  int code = 0;
  const Outcome plain = outcomes_of(use.plain(), code)[0];
  if (code != 0) return code;
  const std::vector<Outcome> outcomes = outcomes_of(use, code);
  if (code != 0) return code;
  const bool differs = std::any_of(outcomes.begin(), outcomes.end(), [&](const Outcome& of) { return of != plain; });
  for (std::size_t rank = 0; differs && rank < outcomes.size(); ++rank)
    print_differences(static_cast<int>(rank), outcomes[rank], plain);
  return differs ? kDiffers : 0;
}

const Mistake& mistake_of(std::uint64_t seed) {
  static const std::vector<Mistake> all = [] {
    std::vector<Mistake> some = wrong_ops();
    for (const auto& more : {wrong_calls(), wrong_ranks()}) some.insert(some.end(), more.begin(), more.end());
    return some;
  }();
  return all[seed * 47 % all.size()];  // so that a few seeds have some of each kind
}

/// A right use, which goes well up to a step, and a mistake there.
int run_wrong(Use use) {
  const Mistake& mistake = mistake_of(use.seed);
  if (mistake.is_of_ranks && use.way.ranks == 1) use.way.ranks = 2;
  if (use.way.ranks == 1) use.way.scheme = "zero3";
  use.way.options.residence = {}, use.way.options.resident_units = 0;  // with which some optimizers do not go
  use.way.options.checks_writes = false;
  use.is_in_backward = false;
  const int code = run_on(use.way.ranks, [&](Job& job) {
    Random random(use.seed);
    UseTrainer trainer(job, use);
    for (int step = 1, count = random.below(2); step <= count; ++step) trainer.step(step);
    mistake.make(trainer, random);
    job.context.stream().synchronize();
  });
  return code == 0 ? kSilent : code;
}

std::string describe(bool is_right, const Use& use) {
  return is_right ? use.describe() : fmt::format("\"{}\", {}", mistake_of(use.seed).name, use.describe());
}

/// What is wrong with how a child ended; empty: nothing.
std::string fault_of(bool is_right, int status) {
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGKILL ? "it hung" : fmt::format("signal {}", WTERMSIG(status));
  const int code = WEXITSTATUS(status);
  if (code == kInternal || code == kTimeout || code == kForeign) return fmt::format("exit code {}", code);
  if (code == kDiffers) return "other bits than where it is plain";
  if (code == kSilent) return "nothing was said";
  if (is_right && code != 0 && code != 64 && code != 78) return fmt::format("exit code {}", code);
  return {};
}

int wait_for(pid_t child) {
  for (int i = 0; i < kSeconds * 100; ++i) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(i < 100 ? 2 : 10));
  }
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

struct Tally {
  std::set<std::string> names;
  int faults = 0, refused = 0;
};

void run_one(bool is_right, std::uint64_t seed, bool is_shown, Tally& tally) {
  const Use use = draw_use(seed);
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("zshard-use-{}", getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder.c_str()) != 0) _exit(kInternal);
    const int log = open("log", O_WRONLY | O_CREAT, 0644);
    if (!is_shown) dup2(log, 1), dup2(log, 2);
    _exit(is_right ? run_right(use) : run_wrong(use));
  }
  const int status = wait_for(child);
  const std::string fault = fault_of(is_right, status);
  if (!is_right) tally.names.insert(mistake_of(seed).name);
  if (is_right && status != 0 && fault.empty()) ++tally.refused;
  if (is_shown || !fault.empty()) fmt::print("{}: {}\n", describe(is_right, use), fault.empty() ? "ok" : fault);
  if (!fault.empty()) {
    ++tally.faults;
    std::ifstream log(folder / "log");
    std::string line, last;
    while (std::getline(log, line)) last = line.find("error: ") != std::string::npos || last.empty() ? line : last;
    fmt::print("  {}\n", last);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace zs::test

int main(int argc, char** argv) {
  using namespace zs::test;
  if (argc != 4) return 64;
  const bool is_right = std::string(argv[1]) == "right";
  const auto first = std::strtoull(argv[2], nullptr, 10), count = std::strtoull(argv[3], nullptr, 10);
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed) run_one(is_right, seed, count == 1, tally);
  fmt::print("{} {} uses, {} refused, {} kinds of mistakes: {} wrong\n", count, argv[1], tally.refused,
             tally.names.size(), tally.faults);
  // Uses that are refused show nothing: at most a fifth
  return tally.faults > 0 || static_cast<std::uint64_t>(tally.refused) * 5 > count ? 1 : 0;
}
