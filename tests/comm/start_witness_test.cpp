#include "comm/start_witness.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <array>
#include <csignal>
#include <functional>
#include <new>
#include <string>

#include "comm/rank_processes.h"

using namespace zs;

namespace {

constexpr const char* kLine = "rank 3 has died in MPI_Init\n";

/// Another one each time: the witnesses of one job keep its name for a while.
std::string name_of_a_job() {
  static int jobs = 0;
  return "start-witness-test-" + std::to_string(getpid()) + "-" + std::to_string(++jobs);
}

/// What a process that does `work` writes to standard error, and whoever it leaves behind.
std::string errors_of(const std::function<void()>& work) {
  std::array<int, 2> ends{};
  REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    work();
    _exit(1);
  }
  REQUIRE(child > 0);
  close(ends[1]);
  std::string text;
  std::array<char, 512> part{};
  for (ssize_t got = 0; (got = read(ends[0], part.data(), part.size())) > 0;) text.append(part.data(), static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 1);
  return text;
}

}  // namespace

TEST_CASE("a process that ends beside its witness is told of, however it ends") {
  OwnPage own;
  const ReportName name(name_of_a_job());
  CHECK(errors_of([&] {
          const StartWitness witness(own.page(), name, kLine);
          _exit(1);
        }) == kLine);
  CHECK(own.page().has_spoken);
}

TEST_CASE("a witness says nothing once MPI has started, and leaves no process") {
  OwnPage own;
  const ReportName name(name_of_a_job());
  CHECK(errors_of([&] {
          { const StartWitness witness(own.page(), name, kLine); }
          if (waitpid(-1, nullptr, 0) != -1) dprintf(STDERR_FILENO, "a child was left\n");
        }).empty());
  CHECK_FALSE(own.page().has_spoken);
}

TEST_CASE("a witness says nothing where the user has been told") {
  const ReportName name(name_of_a_job());
  SECTION("by this rank") {
    OwnPage own;
    CHECK(errors_of([&] {
            const StartWitness witness(own.page(), name, kLine);
            own.page().has_spoken = true;
            _exit(1);
          }).empty());
  }
  SECTION("by another rank") {
    OwnPage own;
    CHECK(errors_of([&] {
            const StartWitness witness(own.page(), name, kLine);
            own.page().is_told = true;
            _exit(1);
          }).empty());
  }
  SECTION("by who has the name now") {
    OwnPage own;
    const int held = name.claim();
    REQUIRE(held >= 0);
    CHECK(name.claim() == ReportName::kTaken);
    CHECK(errors_of([&] {
            close(held);  // a copy: the name is this process's
            const StartWitness witness(own.page(), name, kLine);
            _exit(1);
          }).empty());
    CHECK_FALSE(own.page().has_spoken);
    close(held);
  }
}

TEST_CASE("of several ranks that end at once one is told of") {
  std::array<OwnPage, 4> pages;
  const ReportName name(name_of_a_job());
  const std::string text = errors_of([&] {
    std::array<int, 2> gate{};
    if (pipe(gate.data()) != 0) _exit(2);
    for (OwnPage& own : pages) {
      if (fork() != 0) continue;
      close(gate[1]);
      const StartWitness witness(own.page(), name, kLine);
      char nothing = 0;
      _exit(read(gate[0], &nothing, 1) == 0 ? 1 : 2);  // all at once
    }
  });
  CHECK(text == kLine);
}

TEST_CASE("who has told keeps the name where mpirun kills the rank's process group") {
  OwnPage own;
  const ReportName name(name_of_a_job());
  CHECK(errors_of([&] {
          const pid_t rank = fork();
          if (rank == 0) {
            setpgid(0, 0);
            const StartWitness witness(own.page(), name, kLine);
            _exit(1);
          }
          waitpid(rank, nullptr, 0);
          for (int i = 0; i < 5000 && !own.page().has_spoken; ++i) usleep(1000);
          kill(-rank, SIGKILL);
          int held = ReportName::kTaken;
          for (int i = 0; i < 20 && held == ReportName::kTaken; ++i) {
            usleep(10'000);
            held = name.claim();
          }
          if (held != ReportName::kTaken) dprintf(STDERR_FILENO, "the name is free\n");
        }) == kLine);
}
