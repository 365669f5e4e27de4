#include "comm/health/peer_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace zs {

void PeerTable::find() {
  if (has_all()) return;
  auto found = find_peer_processes(own_rank_, job_);
  const std::lock_guard lock(mutex_);
  for (auto& peer : found) {
    const auto known =
        std::find_if(peers_.begin(), peers_.end(), [&](const auto& one) { return one->rank() == peer->rank(); });
    if (known == peers_.end()) {
      peers_.push_back(std::move(peer));
    } else if ((*known)->page() == nullptr && (peer->page() != nullptr || !(*known)->has_ended())) {
      *known = std::move(peer);  // else what a rank has started would hide that it has ended
    }
  }
}

bool PeerTable::has_all() const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->page() != nullptr; });
  return found + 1 >= host_ranks_;
}

std::vector<RankView> PeerTable::views(double still_s) const {
  std::vector<RankView> views;
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) {
    if (peer->page() != nullptr) {
      views.push_back(view_of(*peer->page(), peer->state()));
    } else {
      views.push_back({.rank = peer->rank(),
                       .pid = peer->pid(),
                       .state = peer->state(),
                       .still_s = still_s,
                       .host = {},
                       .streams = {},
                       .unfinished = {},
                       .last_started = {}});
    }
  }
  return views;
}

const StatusPage* PeerTable::page_of(int rank) const {
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) {
    if (peer->rank() == rank) return peer->page();
  }
  return nullptr;
}

int PeerTable::find_dead(int launcher) const {
  const std::lock_guard lock(mutex_);
  int dead = -1;
  for (const auto& peer : peers_) {
    if (!peer->has_ended()) continue;
    const StatusPage* const page = peer->page();
    const bool counts =
        page == nullptr ? launcher != 0 && peer->parent() == launcher : !page->has_left && !page->has_reported;
    if (counts) dead = peer->rank();
  }
  return dead;
}

std::string PeerTable::absent(int world_size) const {
  const std::lock_guard lock(mutex_);
  if (std::ssize(peers_) + 1 >= host_ranks_) return {};
  if (host_ranks_ != world_size) return "one";
  std::string ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    const bool is_known = rank == own_rank_ || std::any_of(peers_.begin(), peers_.end(),
                                                           [&](const auto& peer) { return peer->rank() == rank; });
    if (!is_known) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  return ranks;
}

bool PeerTable::report_seen() const noexcept {
  const std::lock_guard lock(mutex_);
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer->page() != nullptr && (peer->page()->has_reported || peer->page()->report_seen);
  });
}

bool PeerTable::reporter_has_ended() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer->page() != nullptr && peer->page()->has_reported && peer->has_ended();
  });
}

bool PeerTable::has_finalizing() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) {
    return peer->page() != nullptr && !peer->page()->has_finalized && !peer->has_ended();
  });
}

std::vector<std::pair<int, std::atomic<bool>*>> PeerTable::report_marks() const {
  std::vector<std::pair<int, std::atomic<bool>*>> marks;
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) {
    if (peer->report_mark() != nullptr) marks.emplace_back(peer->rank(), peer->report_mark());
  }
  return marks;
}

void PeerTable::kill_stopped() const {
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) peer->kill_if_stopped();
}

}  // namespace zs
