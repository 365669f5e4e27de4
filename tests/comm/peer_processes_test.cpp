#include "comm/health/peer_processes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include <array>
#include <csignal>
#include <cstdlib>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "tests/skip.h"

namespace peer_processes_test {

using namespace zs;

namespace {

constexpr int kNobody = 65534, kWasTold = 7, kRank = 3;
const std::string kRankText = std::to_string(kRank);
const std::string kJob = "rank-processes-test-" + std::to_string(getpid());

enum class Launcher { mpirun, pmix };

enum class User { own, nobody, nobody_with_own_rights };

/// What a process that says it is rank 3 of the job has open under the name of a page.
enum class Offer { page, page_without_seals, part_of_a_page, page_of_another_process, nothing };

/// Another process with the environment of rank 3: this program again, at the case below.
class Claimant {
 public:
  explicit Claimant(Offer offer, User user = User::own, Launcher launcher = Launcher::mpirun) {
    std::array<int, 2> ready{}, done{};
    REQUIRE((pipe(ready.data()) == 0 && pipe2(done.data(), O_CLOEXEC) == 0));
    fcntl(ready[0], F_SETFD, FD_CLOEXEC);
    pid_ = fork();
    if (pid_ == 0) {
      if (user != User::own &&
          setresuid(kNobody, user == User::nobody ? kNobody : 0, user == User::nobody ? kNobody : 0) != 0)
        _exit(1);
      dup2(done[0], STDIN_FILENO);
      const auto ranks = launcher == Launcher::mpirun
                             ? std::array<std::string, 2>{"OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK=" + kRankText}
                             : std::array<std::string, 2>{"PMIX_RANK=" + kRankText, "SLURM_STEP_ID=0"};
      const std::array<std::string, 5> set{"PMIX_NAMESPACE=" + kJob, ranks[0], ranks[1],
                                           "TEST_OFFER=" + std::to_string(static_cast<int>(offer)),
                                           "TEST_READY=" + std::to_string(ready[1])};
      std::array<char*, 6> environment{};
      for (std::size_t i = 0; i < set.size(); ++i) environment[i] = const_cast<char*>(set[i].c_str());
      std::array<char*, 3> arguments{const_cast<char*>("claimant"), const_cast<char*>("[.claimant]"), nullptr};
      execve("/proc/self/exe", arguments.data(), environment.data());
      _exit(1);
    }
    close(ready[1]);
    close(done[0]);
    done_ = done[1];
    char byte = 0;
    const bool is_ready = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
    REQUIRE(is_ready);
  }
  ~Claimant() {
    if (done_ >= 0) end();
  }
  int pid() const { return pid_; }
  /// Its exit code, once nobody needs it.
  int end() {
    close(done_);
    done_ = -1;
    int status = 0;
    return waitpid(pid_, &status, 0) == pid_ && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int pid_ = -1, done_ = -1;
};

int anonymous_file(unsigned flags, std::size_t bytes) {
  const int fd = memfd_create("zshard-flight", flags);
  REQUIRE(fd >= 0);
  REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  return fd;
}

/// A page in a file that may still be cut.
StatusPage& page_in(int fd) {
  void* const memory = mmap(nullptr, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REQUIRE(memory != MAP_FAILED);
  return *new (memory) StatusPage;
}

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

TEST_CASE("a process that says it is a rank", "[.claimant]") {
  const auto offer = static_cast<Offer>(std::atoi(std::getenv("TEST_OFFER")));
  std::unique_ptr<OwnStatusPage> own;
  StatusPage* page = nullptr;
  if (offer == Offer::page || offer == Offer::page_of_another_process)
    page = &(own = std::make_unique<OwnStatusPage>())->page();
  if (offer == Offer::page_without_seals) page = &page_in(anonymous_file(MFD_ALLOW_SEALING, sizeof(StatusPage)));
  if (offer == Offer::part_of_a_page)
    REQUIRE(fcntl(anonymous_file(MFD_ALLOW_SEALING, 4096), F_ADD_SEALS, kAllSeals) == 0);
  if (page != nullptr) {
    page->rank = kRank;
    page->pid = offer == Offer::page ? getpid() : getppid();
    if (offer == Offer::page_without_seals) page->pid = getpid();
    page->magic = StatusPage::kMagic;
  }
  const char ready = 1;
  REQUIRE(write(std::atoi(std::getenv("TEST_READY")), &ready, 1) == 1);
  char nothing = 0;
  REQUIRE(read(STDIN_FILENO, &nothing, 1) == 0);
  std::_Exit(page != nullptr && page->report_seen ? kWasTold : 0);
}

TEST_CASE("a rank of this user is found with its page, and is told through that, also when it is stopped") {
  Claimant claimant(Offer::page, User::own, GENERATE(Launcher::mpirun, Launcher::pmix));
  const auto peers = find_peer_processes(0, kJob);
  REQUIRE(peers.size() == 1);
  CHECK(peers[0]->rank() == kRank);
  CHECK(peers[0]->pid() == claimant.pid());
  CHECK(peers[0]->parent() == getpid());
  REQUIRE(peers[0]->page() != nullptr);
  CHECK(peers[0]->page()->pid == claimant.pid());
  CHECK_FALSE(peers[0]->has_ended());
  kill(claimant.pid(), SIGSTOP);
  for (int i = 0; i < 10000 && peers[0]->state() != 'T'; ++i) usleep(1000);
  CHECK(peers[0]->state() == 'T');
  *peers[0]->report_mark() = true;
  kill(claimant.pid(), SIGCONT);
  CHECK(claimant.end() == kWasTold);
  CHECK(peers[0]->has_ended());
  CHECK(peers[0]->state() == 'X');
  CHECK(peers[0]->page()->rank == kRank);  // what it was about can still be read
  *peers[0]->report_mark() = true;
  CHECK(find_peer_processes(0, kJob).empty());
}

TEST_CASE("a rank is no peer of itself, nor of another job") {
  const Claimant claimant(Offer::page);
  CHECK(find_peer_processes(kRank, kJob).empty());
  CHECK(find_peer_processes(0, kJob + "x").empty());
  CHECK(find_peer_processes(0, "").empty());
}

TEST_CASE("a page that could be cut, is too short, or another process's is not looked at") {
  for (const Offer offer :
       {Offer::page_without_seals, Offer::part_of_a_page, Offer::page_of_another_process, Offer::nothing}) {
    const Claimant claimant(offer);
    const auto peers = find_peer_processes(0, kJob);
    REQUIRE(peers.size() == 1);  // it may be a rank that has not begun
    CHECK(peers[0]->page() == nullptr);
    CHECK(peers[0]->report_mark() == nullptr);
  }
}

TEST_CASE("a process of another user is no rank, whatever it says, nor is one that only has this user's rights") {
  if (geteuid() != 0) return test::skip("only root can start processes of other users");
  for (const User user : {User::nobody, User::nobody_with_own_rights}) {
    for (const Offer offer : {Offer::page, Offer::page_without_seals, Offer::nothing}) {
      const Claimant claimant(offer, user);
      CHECK(find_peer_processes(0, kJob).empty());
    }
  }
}

TEST_CASE("only a whole page in a sealed anonymous file is mapped") {
  const auto maps = [](int fd) {
    StatusPage* const page = map_offered_page(fd);
    if (page != nullptr) munmap(page, sizeof(StatusPage));
    close(fd);
    return page != nullptr;
  };
  const auto sealed = [](std::size_t bytes, int seals) {
    const int fd = anonymous_file(MFD_ALLOW_SEALING, bytes);
    REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
  };
  CHECK(maps(sealed(sizeof(StatusPage), kAllSeals)));
  CHECK_FALSE(maps(sealed(sizeof(StatusPage) - 1, kAllSeals)));
  CHECK_FALSE(maps(sealed(sizeof(StatusPage) + 4096, kAllSeals)));
  CHECK_FALSE(maps(sealed(sizeof(StatusPage), F_SEAL_GROW | F_SEAL_SEAL)));  // it may be cut
  CHECK_FALSE(maps(anonymous_file(MFD_ALLOW_SEALING, sizeof(StatusPage))));
  CHECK_FALSE(maps(anonymous_file(0, sizeof(StatusPage))));
  CHECK_FALSE(maps(-1));
  for (const char* const folder : {"/tmp", "/dev/shm"}) {
    std::string path = std::string(folder) + "/rank-processes-test-XXXXXX";
    const int file = mkstemp(path.data());
    REQUIRE(file >= 0);
    unlink(path.c_str());
    REQUIRE(ftruncate(file, sizeof(StatusPage)) == 0);
    CHECK_FALSE(maps(file));
  }
  if (geteuid() == 0) {
    const int theirs = sealed(sizeof(StatusPage), kAllSeals);
    REQUIRE(fchown(theirs, kNobody, kNobody) == 0);
    CHECK_FALSE(maps(theirs));
  }
}

TEST_CASE("nobody can cut the page of a rank") {
  const OwnStatusPage own;
  const std::string folder = "/proc/self/fd";
  int pages = 0;
  for (int fd = 0; fd < 64; ++fd) {
    std::array<char, 64> name{};
    if (readlink((folder + "/" + std::to_string(fd)).c_str(), name.data(), name.size() - 1) <= 0) continue;
    if (!std::string(name.data()).starts_with("/memfd:zshard-flight")) continue;
    ++pages;
    CHECK(ftruncate(fd, 0) != 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) != 0);
  }
  CHECK(pages == 1);
}

TEST_CASE("of those that set the same marks in the same order one comes to the end") {
  constexpr std::size_t kRanks = 4;
  const bool sees_all = GENERATE(true, false);
  for (int round = 0; round < 2000; ++round) {
    std::array<std::atomic<bool>, kRanks> told{};
    std::atomic<int> first{0};
    std::latch gate(kRanks);
    {
      std::vector<std::jthread> ranks;
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank] {
          std::vector<std::atomic<bool>*> marks;
          for (std::size_t other = 0; other < kRanks; ++other) {
            if (sees_all || other == rank || other == (rank + 1) % kRanks) marks.push_back(&told[other]);
          }
          gate.arrive_and_wait();
          first += set_all(marks) ? 1 : 0;
        });
      }
    }
    REQUIRE(first >= 1);
    REQUIRE(first <= (sees_all ? 1 : 2));
  }
}

}  // namespace peer_processes_test
