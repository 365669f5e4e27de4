#include <algorithm>
#include <exception>
#include <thread>

#include "comm/fold.h"
#include "comm/rendezvous.h"
#include "comm/world.h"

namespace zs {
namespace {

/// What all groups of one local world share.
struct LocalWorldState {
  WorldOptions options;
  Poison poison;
  std::unique_ptr<Allocator> arena = make_cpu_allocator();
};

struct OpPost {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  OpTag tag;
};

struct LocalGroup;
struct HostPost {
  int first = 0, second = 0;  // color and key of a split; code of an agreement
  std::string message;
  std::shared_ptr<LocalGroup> group;
};

/// Shared by its ranks' communicators. Streams meet at `ops`, host threads at `host`.
struct LocalGroup {
  LocalGroup(int size, std::shared_ptr<LocalWorldState> state)
      : world(std::move(state)), ops(size, world->poison), host(size, world->poison), op_posts(size), host_posts(size) {}

  std::shared_ptr<LocalWorldState> world;
  MeetingPlace ops, host;
  std::vector<OpPost> op_posts;  // by rank; written by that rank only
  std::vector<HostPost> host_posts;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->ops.size(); }
  const char* transport() const override { return "local"; }
  Allocator& arena() override { return *group_->world->arena; }
  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  friend class LocalWorld;
  template <class Move>
  void meet(const OpTag& tag, const Buffer& in, const Buffer& out, Move move);
  Visit::Who who(std::string_view what) const { return {rank_, what, group_->world->options.timeout_s}; }
  const OpPost& post(int rank) const { return group_->op_posts[static_cast<std::size_t>(rank)]; }
  HostPost& host_post(int rank) const { return group_->host_posts[static_cast<std::size_t>(rank)]; }
  /// Every rank's input at `offset` bytes, in rank order.
  std::vector<const std::byte*> inputs(std::int64_t offset) const;

  void do_all_gather(const OpTag& tag, Buffer shard, Buffer full) override;
  void do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, Fold how, void* scratch) override;
  void do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void* scratch) override;
  void do_broadcast(const OpTag& tag, Buffer data, int root) override;
  void do_all_to_all(const OpTag& tag, Buffer in, Buffer out) override;
  void do_barrier(const OpTag& tag) override;

  std::shared_ptr<LocalGroup> group_;
  int rank_;
};

/// The shape of every operation: post, meet, compare, move this rank's part, wait until the others have moved theirs.
template <class Move>
void LocalCommunicator::meet(const OpTag& tag, const Buffer& in, const Buffer& out, Move move) {
  Visit visit(group_->ops, who(tag.text()), group_->op_posts[static_cast<std::size_t>(rank_)],
              OpPost{static_cast<const std::byte*>(in.data), static_cast<std::byte*>(out.data), tag});
  for (int r = 1; r < size(); ++r) {
    if (post(r).tag.hash != post(0).tag.hash) throw ranks_disagree(0, post(0).tag, r, post(r).tag);
  }
  visit.check_alive();
  move();
  visit.finish();
}

std::vector<const std::byte*> LocalCommunicator::inputs(std::int64_t offset) const {
  std::vector<const std::byte*> parts;
  for (int r = 0; r < size(); ++r) parts.push_back(post(r).in + offset);
  return parts;
}

void LocalCommunicator::do_all_gather(const OpTag& tag, Buffer shard, Buffer full) {
  meet(tag, shard, full, [&] {
    for (int r = 0; r < size(); ++r) copy_bytes(static_cast<std::byte*>(full.data) + r * shard.bytes(), post(r).in, shard.bytes());
  });
}

void LocalCommunicator::do_reduce_scatter(const OpTag& tag, Buffer full, Buffer shard, Fold how, void*) {
  meet(tag, full, shard, [&] {
    const auto parts = inputs(rank_ * shard.elems * size_of(full.dtype));
    auto* out = static_cast<std::byte*>(shard.data);
    fold({parts, full.dtype, how == Fold::accumulate ? out : nullptr, out, shard.dtype, shard.elems, ReduceOp::sum});
  });
}

void LocalCommunicator::do_all_reduce(const OpTag& tag, Buffer data, ReduceOp op, void*) {
  meet(tag, data, data, [&] {
    // This rank folds its part of everybody's data and hands the result round; nobody else touches that part.
    const std::int64_t begin = data.elems * rank_ / size(), end = data.elems * (rank_ + 1) / size();
    const std::int64_t offset = begin * size_of(data.dtype), bytes = (end - begin) * size_of(data.dtype);
    auto* out = static_cast<std::byte*>(data.data) + offset;
    fold({inputs(offset), data.dtype, nullptr, out, data.dtype, end - begin, op});
    for (int r = 0; r < size(); ++r) copy_bytes(post(r).out + offset, out, bytes);
  });
}

void LocalCommunicator::do_broadcast(const OpTag& tag, Buffer data, int root) {
  meet(tag, data, data, [&] { copy_bytes(data.data, post(root).in, data.bytes()); });
}

void LocalCommunicator::do_all_to_all(const OpTag& tag, Buffer in, Buffer out) {
  meet(tag, in, out, [&] {
    const std::int64_t bytes = in.bytes() / size();
    for (int r = 0; r < size(); ++r) copy_bytes(static_cast<std::byte*>(out.data) + r * bytes, post(r).in + rank_ * bytes, bytes);
  });
}

void LocalCommunicator::do_barrier(const OpTag& tag) {
  meet(tag, {}, {}, [] {});
}

std::unique_ptr<Communicator> LocalCommunicator::split(int color, int key) {
  std::vector<std::pair<int, int>> members;  // (key, rank) of this rank's color
  {
    Visit visit(group_->host, who("split"), host_post(rank_), HostPost{color, key, {}, {}});
    for (int r = 0; r < size(); ++r) {
      if (host_post(r).first == color) members.emplace_back(host_post(r).second, r);
    }
    visit.finish();
  }
  std::sort(members.begin(), members.end());
  const int leader = members.front().second;
  const auto self = std::find(members.begin(), members.end(), std::pair(key, rank_));
  HostPost made;
  if (leader == rank_) made.group = std::make_shared<LocalGroup>(static_cast<int>(members.size()), group_->world);
  std::shared_ptr<LocalGroup> group;
  {
    Visit visit(group_->host, who("split"), host_post(rank_), std::move(made));
    group = host_post(leader).group;
    visit.finish();
  }
  host_post(rank_).group.reset();
  return std::make_unique<LocalCommunicator>(std::move(group), static_cast<int>(self - members.begin()));
}

class LocalWorld final : public World {
 public:
  LocalWorld(std::shared_ptr<LocalGroup> group, int rank) : root_(std::move(group), rank) {}

  int rank() const override { return root_.rank(); }
  int size() const override { return root_.size(); }
  int local_rank() const override { return root_.rank(); }
  int local_size() const override { return root_.size(); }
  std::string transport() const override { return "local"; }
  std::unique_ptr<Communicator> communicator() override { return root_.split(0, rank()); }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    const auto self = std::find(ranks.begin(), ranks.end(), rank());
    ZS_CHECK(self != ranks.end(), "rank {} is not in the group it names", rank());
    return root_.split(ranks[0], static_cast<int>(self - ranks.begin()));
  }
  Agreement agree(int code, const std::string& message) override {
    Agreement result;
    Visit visit(root_.group_->host, root_.who("agree"), root_.host_post(rank()), HostPost{code, 0, message.substr(0, 1000), {}});
    for (int r = 0; r < size() && result.code == 0; ++r) {
      const HostPost& post = root_.host_post(r);
      if (post.first != 0) result = {post.first, post.message, r};
    }
    visit.finish();
    return result;
  }
  void abort(int) noexcept override { root_.group_->world->poison.set.store(true); }

 private:
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
  auto state = std::make_shared<LocalWorldState>();
  state->options = options;
  auto group = std::make_shared<LocalGroup>(ranks, state);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  const auto run_rank = [&](int rank) {
    try {
      LocalWorld world(group, rank);
      body(world);
    } catch (...) {
      errors[static_cast<std::size_t>(rank)] = std::current_exception();
      state->poison.set.store(true);
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
    } catch (...) {
      state->poison.set.store(true);  // a thread could not start: the others must not wait for it
      throw;
    }
  }
  std::erase(errors, nullptr);
  if (errors.empty()) return;
  std::rethrow_exception(*std::min_element(errors.begin(), errors.end(),
                                           [](const auto& a, const auto& b) { return distance_from_cause(a) < distance_from_cause(b); }));
}

}  // namespace zs
