#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/health/diagnosis.h"
#include "comm/health/peer_processes.h"

namespace zs {

/// The other ranks of a job on this host, as far as their processes are found. A rank that is known stays so when it
/// has ended, since what its page says still counts. Owned by a Watchdog; any thread.
class PeerTable {
 public:
  /// `host_ranks`: how many ranks of the job there are on the host. `job`: Launch::job; empty: there are no others.
  PeerTable(int own_rank, int host_ranks, std::string job)
      : own_rank_(own_rank), host_ranks_(host_ranks), job_(std::move(job)) {}

  /// Looks for processes until the page of every rank is known.
  void find();
  int host_ranks() const { return host_ranks_; }
  void set_host_ranks(int ranks) { host_ranks_ = ranks; }
  /// `still_s`: of a rank that has no page.
  std::vector<RankView> views(double still_s) const;
  const StatusPage* page_of(int rank) const;
  /// A rank that has ended, neither at the end of its part nor with a report; -1: none has. One without a page counts
  /// only if it is a child of `launcher`: of other processes that have a rank's environment nothing is known. Launcher
  /// 0: none of these counts.
  int find_dead(int launcher) const;
  /// The ranks of this host of which no process was ever found, "1" or "1, 3"; "one" where they may be any of more;
  /// empty: none. `world_size`: of the job.
  std::string absent(int world_size) const;
  /// True if a page of a peer says that a rank has reported.
  bool report_seen() const noexcept;
  bool reporter_has_ended() const;
  /// True if one of them lives in which MPI has not ended.
  bool has_finalizing() const;
  /// Marks of the peers, by rank.
  std::vector<std::pair<int, std::atomic<bool>*>> report_marks() const;
  void kill_stopped() const;

 private:
  bool has_all() const;

  int own_rank_;
  std::atomic<int> host_ranks_;
  std::string job_;
  mutable std::mutex mutex_;  // guards what follows; held for moments
  std::vector<std::unique_ptr<PeerProcess>> peers_;
};

}  // namespace zs
