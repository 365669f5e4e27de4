#include "comm/health/watchdog.h"

#include <catch2/catch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <latch>
#include <stdexcept>

namespace watchdog_test {

using namespace zs;

namespace {

/// A device that nobody can ask.
class DumbDevice final : public Device {
 public:
  DumbDevice() : Device(DeviceOptions{}) {}
  DeviceKind kind() const override { return DeviceKind::cpu; }
  Stream& stream(StreamRole role) override { return real_->stream(role); }
  Allocator& allocator() override { return real_->allocator(); }
  Pool& pool() override { return real_->pool(); }
  Scratch& scratch() override { return real_->scratch(); }
  PinnedMemory& pinned_memory() override { return real_->pinned_memory(); }
  Profile& profile() override { return real_->profile(); }
  void keep(std::vector<std::shared_ptr<void>> memory) override { real_->keep(std::move(memory)); }
  std::uint64_t completed() const override {
    asked_thrice.count_down(asked_thrice.try_wait() ? 0 : 1);
    throw std::runtime_error("no answer");
  }
  mutable std::latch asked_thrice{3};

 private:
  std::unique_ptr<Device> real_ = Device::create(DeviceKind::cpu, {});
};

WatchOptions options_of_a_step() {
  WatchOptions options;
  options.step_s = 1000;
  return options;
}

}  // namespace

TEST_CASE("a status inside another one does not hide it when it ends") {
  Watchdog::Threads ranks(1);
  Watchdog watchdog({}, 0, ranks);
  const StatusScope work(&watchdog, "writing a checkpoint", StatusScope::Host::works);
  CHECK(watchdog.page().host_waits == 0);
  {
    const StatusScope outer(&watchdog, "outer", StatusScope::Host::waits_for_ranks);
    {
      const StatusScope inner(&watchdog, "inner", StatusScope::Host::waits_for_ranks);
      CHECK(watchdog.page().host.get() == "inner");
      CHECK(watchdog.page().host_waits == 2);
    }
    CHECK(watchdog.page().host.get() == "outer");
  }
  CHECK(watchdog.page().host.get() == "writing a checkpoint");
  CHECK(watchdog.page().host_waits == 0);
}

TEST_CASE("a watchdog whose device cannot be asked looks at everything else") {
  Watchdog::Threads ranks(1);
  Watchdog watchdog(options_of_a_step(), 0, ranks);
  DumbDevice device;
  const StatusScope observed(&watchdog, device);
  watchdog.enter(Phase::step, 1);
  bool looks_on = false;
  for (int i = 0; i < 10000 && !looks_on; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    looks_on = device.asked_thrice.try_wait();
  }
  CHECK(looks_on);
  CHECK(watchdog.cost().polls >= 2);
}

TEST_CASE("a process that a rank has forked may exit") {
  const Watchdog watchdog{WatchOptions{}};
  const int child = fork();
  if (child == 0) std::exit(0);
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK_FALSE(watchdog.page().has_reported);
}

TEST_CASE("a rank that has told does not tell again, nor does one whose page says that another has") {
  Watchdog first{WatchOptions{}};
  CHECK(first.try_claim_report());
  CHECK_FALSE(first.try_claim_report());
  CHECK(first.page().has_reported);
  Watchdog second{WatchOptions{}};
  const_cast<StatusPage&>(second.page()).report_seen = true;
  CHECK_FALSE(second.try_claim_report());
  CHECK_FALSE(second.page().has_reported);
}

TEST_CASE("where records go may change while one is written") {
  Watchdog::Threads ranks(1);
  Watchdog watchdog({}, 0, ranks);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("zshard-watchdog-test-{}", getpid());
  watchdog.record_to(folder / "0");
  std::filesystem::create_directory(folder);
  {
    const std::jthread writes([&] {
      for (int i = 0; i < 20; ++i) watchdog.dump("a test");
    });
    for (int i = 0; i < 1000; ++i) watchdog.record_to(folder / std::to_string(i % 3));
  }
  watchdog.record_to(folder / "last");
  watchdog.dump("a test");
  CHECK(std::filesystem::file_size(folder / "last" / "rank-0.txt") > 0);
  std::filesystem::remove_all(folder);
}

}  // namespace watchdog_test
