#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/flight_recorder.h"

namespace zs {

/// A flight page in anonymous memory (memfd) that other processes of the host find by its name in /proc, before there is any connection
/// between them, and that leaves nothing behind.
class OwnPage {
 public:
  /// Throws Error(out_of_memory).
  OwnPage();
  ~OwnPage();
  OwnPage(const OwnPage&) = delete;
  OwnPage& operator=(const OwnPage&) = delete;
  FlightPage& page() { return *page_; }

 private:
  int fd_ = -1;
  FlightPage* page_ = nullptr;
};

/// Another rank of this job on this host: its process, and its page where it has one. Owns a descriptor and a mapping, which last when the
/// process has ended.
class PeerProcess {
 public:
  PeerProcess(int rank, int pid);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  int rank() const { return rank_; }
  int pid() const { return pid_; }
  /// Its parent's, as it was found.
  int parent() const { return parent_; }
  const FlightPage* page() const { return page_; }
  bool has_ended() const;
  /// Sets `is_told` in its page, also while it is stopped. Nothing where it has ended or has no page.
  void note_told() const;
  /// SIGKILL for a process that no other signal reaches.
  void kill_if_stopped() const;
  /// The letter of /proc/PID/stat, 'X' once the process has ended.
  char state() const;

 private:
  int rank_, pid_, parent_ = 0;
  int process_ = -1;  // pidfd
  const FlightPage* page_ = nullptr;
};

/// The processes of this host whose environment says that they are ranks of `job`; not this one. A rank without a page is
/// in there too: it has not begun, or waits in a wrapper. Nothing without a job.
std::vector<std::unique_ptr<PeerProcess>> find_peer_processes(int own_rank, std::string_view job);

/// What tells this job from others on this host, for names; empty without one. From the environment, which MPI changes as it starts: asked
/// before that.
std::string job_name();

}  // namespace zs
