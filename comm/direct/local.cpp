#include <algorithm>
#include <exception>
#include <thread>

#include "comm/direct/direct.h"
#include "comm/group_place.h"
#include "comm/health/watchdog.h"
#include "comm/world.h"

namespace zs {
namespace {

/// State that all groups of one local world share.
struct LocalWorldState {
  LocalWorldState(const WorldOptions& chosen, int ranks) : options(chosen), watched(ranks) {}

  WorldOptions options;
  Watchdog::Threads watched;
  AbortFlag abort_flag;
  std::unique_ptr<Allocator> arena = make_cpu_allocator();
};

struct LocalGroup;
struct HostPost {
  int first = 0, second = 0;  // color and key of a split; code of an agreement
  std::string message;
  std::shared_ptr<LocalGroup> group;
  std::shared_ptr<void> window;
  std::int64_t window_bytes = 0;
  std::exception_ptr window_problem;  // why rank 0 has none
};

/// Shared by its ranks' communicators. Streams meet at `ops`, host threads at `host`. All by rank, written by that rank
/// only.
struct LocalGroup {
  LocalGroup(int size, std::shared_ptr<LocalWorldState> state)
      : world(std::move(state)), ops(size), host(size), op_posts(size), host_posts(size) {}

  DirectGroup view() {
    DirectGroup made{place(ops), {}, std::vector<PeerMemory>(ops.size())};
    for (OpPost& post : op_posts) made.posts.push_back(&post);
    return made;
  }
  Rendezvous place(std::vector<RendezvousSlot>& slots) const {
    std::vector<SlotOf> all;
    for (RendezvousSlot& slot : slots) all.push_back({&slot});
    return {std::move(all), world->abort_flag};
  }

  std::shared_ptr<LocalWorldState> world;
  std::vector<RendezvousSlot> ops, host;
  std::vector<OpPost> op_posts;
  std::vector<HostPost> host_posts;
};

/// Ranks are threads: every buffer can be reached.
class LocalCommunicator final : public DirectCommunicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : DirectCommunicator(rank, group->world->options.timeout_s, group->view()),
        group_(std::move(group)),
        host_(group_->place(group_->host)) {}

  ~LocalCommunicator() override { operations_.await(); }

  const char* transport() const override { return "local"; }
  Allocator& arena() override { return *group_->world->arena; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::shared_ptr<void> shared_window(std::int64_t bytes) override;

 private:
  friend class LocalWorld;
  std::byte* staging() override { ZS_CHECK(false, "a buffer out of reach of a thread of the same process"); }
  HostPost& host_post(int rank) const { return group_->host_posts[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<LocalGroup> group_;
  Rendezvous host_;
};

std::unique_ptr<Communicator> LocalCommunicator::split(int color, int key) {
  ZS_CHECK(color >= 0, "a split by color {}", color);
  const StatusScope status(recorder(), "split", StatusScope::Host::waits_for_ranks);
  std::vector<std::pair<int, int>> members;  // (key, rank) of this rank's color
  {
    RendezvousGuard guard(host_, who("split"), host_post(rank()), HostPost{color, key, {}, {}, {}, 0, {}});
    for (int r = 0; r < size(); ++r) {
      if (host_post(r).first == color) members.emplace_back(host_post(r).second, r);
    }
    guard.finish();
  }
  std::sort(members.begin(), members.end());
  const int leader = members.front().second;
  const auto self = std::find(members.begin(), members.end(), std::pair(key, rank()));
  HostPost made;
  if (leader == rank()) made.group = std::make_shared<LocalGroup>(static_cast<int>(members.size()), group_->world);
  std::shared_ptr<LocalGroup> group;
  {
    RendezvousGuard guard(host_, who("split"), host_post(rank()), std::move(made));
    group = host_post(leader).group;
    guard.finish();
  }
  host_post(rank()).group.reset();
  return recorded_like_this(
      std::make_unique<LocalCommunicator>(std::move(group), static_cast<int>(self - members.begin())), color);
}

/// One allocation for all; whoever holds it last gives it back.
std::shared_ptr<void> LocalCommunicator::shared_window(std::int64_t bytes) {
  const StatusScope status(recorder(), "shared window", StatusScope::Host::waits_for_ranks);
  HostPost made;
  made.window_bytes = bytes;
  if (rank() == 0) {
    try {
      made.window = {arena().allocate(bytes),
                     [world = group_->world, bytes](void* address) { world->arena->deallocate(address, bytes); }};
    } catch (...) {
      made.window_problem = std::current_exception();
    }
  }
  std::shared_ptr<void> window;
  std::exception_ptr problem;
  {
    RendezvousGuard guard(host_, who("shared_window"), host_post(rank()), std::move(made));
    for (int r = 1; r < size(); ++r) {
      if (host_post(r).window_bytes != host_post(0).window_bytes)
        throw windows_disagree(0, host_post(0).window_bytes, r, host_post(r).window_bytes);
    }
    window = host_post(0).window;
    problem = host_post(0).window_problem;
    guard.finish();
  }
  host_post(rank()).window.reset();
  host_post(rank()).window_problem = nullptr;
  if (problem) std::rethrow_exception(problem);
  return window;
}

class LocalWorld final : public World {
 public:
  LocalWorld(std::shared_ptr<LocalGroup> group, int rank)
      : watchdog_(group->world->options.watch, rank, group->world->watched), root_(std::move(group), rank) {
    root_.record_by(&watchdog_.recorder(), root_.group_->world->options.race_check_delay_ms, {});
  }

  int rank() const override { return root_.rank(); }
  int size() const override { return root_.size(); }
  int local_rank() const override { return root_.rank(); }
  int local_size() const override { return root_.size(); }
  std::string transport() const override { return "local"; }
  std::unique_ptr<Communicator> communicator() override { return root_.split(0, rank()); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const int place = place_in_group(ranks, rank(), size());
    return root_.split(ranks[0], place);
  }
  Agreement agree(int code, const std::string& message) override {
    const StatusScope status(&watchdog_, "agreement of all ranks", StatusScope::Host::waits_for_ranks);
    Agreement result;
    RendezvousGuard guard(root_.host_, root_.who("agree"), root_.host_post(rank()),
                          HostPost{code, 0, message.substr(0, 1000), {}, {}, 0, {}});
    for (int r = 0; r < size() && result.code == 0; ++r) {
      const HostPost& post = root_.host_post(r);
      if (post.first != 0) result = {post.first, post.message, r};
    }
    guard.finish();
    return result;
  }
  void abort(int) noexcept override {
    watchdog_.stand_down();
    root_.group_->world->abort_flag.set.store(true);
  }
  bool has_ended() const noexcept override { return root_.group_->world->abort_flag.set.load(); }
  Watchdog* watchdog() override { return &watchdog_; }

 private:
  Watchdog watchdog_;
  LocalCommunicator root_;
};

/// 0: a cause. 1: a lost peer, which another rank's cause explains. 2: woken because another rank failed.
int distance_from_cause(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const GroupEnded&) {
    return 2;
  } catch (const Error& e) {
    return e.code() == ExitCode::peer_lost ? 1 : 0;
  } catch (...) {
    return 0;
  }
}

}  // namespace

void run_local_world(int ranks, const WorldOptions& options, const std::function<void(World&)>& body) {
  ZS_CHECK(ranks >= 1, "a local world of {} ranks", ranks);
  auto state = std::make_shared<LocalWorldState>(options, ranks);
  auto group = std::make_shared<LocalGroup>(ranks, state);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  const auto run_rank = [&](int rank) {
    try {
      LocalWorld world(group, rank);
      body(world);
    } catch (...) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      state->abort_flag.set.store(true);
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
    } catch (...) {
      state->abort_flag.set.store(true);  // a thread could not start: the others must not wait for it
      throw;
    }
  }
  std::erase(errors, nullptr);
  if (errors.empty()) return;
  std::rethrow_exception(*std::min_element(errors.begin(), errors.end(), [](const auto& a, const auto& b) {
    return distance_from_cause(a) < distance_from_cause(b);
  }));
}

}  // namespace zs
