#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/health/flight_recorder.h"

namespace zs {

/// A flight page in anonymous memory (memfd) that other processes of the host find by its name in /proc, before there
/// is any connection between them, and that leaves nothing behind. It is sealed: nobody can make it shorter.
class OwnStatusPage {
 public:
  /// Throws Error(out_of_memory).
  OwnStatusPage();
  ~OwnStatusPage();
  OwnStatusPage(const OwnStatusPage&) = delete;
  OwnStatusPage& operator=(const OwnStatusPage&) = delete;
  StatusPage& page() { return *page_; }

 private:
  int fd_ = -1;
  StatusPage* page_ = nullptr;
};

/// Maps the page that another process offers, to read and to write. Null unless that is safe (is_safe_to_map).
StatusPage* map_offered_page(int fd);

/// Another rank of this job on this host: its process, and its page where it has one. Owns descriptors and a mapping,
/// which last when the process has ended. A process of another user is none, whatever its environment says.
class PeerProcess {
 public:
  /// Finds the process by what stands under /proc/`pid`, which is read once. Null where the process has ended, is
  /// another user's, or is no rank of `job`.
  static std::unique_ptr<PeerProcess> find(int pid, std::string_view job);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  int rank() const { return rank_; }
  int pid() const { return pid_; }
  /// Parent of the process, as it was found.
  int parent() const { return parent_; }
  const StatusPage* page() const { return page_; }
  bool has_ended() const;
  /// `report_seen` of its page, which can be set also while it is stopped. Null where it has no page.
  std::atomic<bool>* report_mark() const { return page_ != nullptr ? &page_->report_seen : nullptr; }
  /// SIGKILL for a process that no other signal reaches.
  void kill_if_stopped() const;
  /// The letter of /proc/PID/stat, 'X' once the process has ended.
  char state() const;

 private:
  PeerProcess(int pid, int folder) : pid_(pid), folder_(folder) {}
  bool read(std::string_view job);
  void take_page();
  std::string path(std::string_view name) const;

  int rank_ = -1, pid_, parent_ = 0;
  int folder_;        // /proc/PID, of this process alone
  int process_ = -1;  // pidfd
  StatusPage* page_ = nullptr;
};

/// Sets the marks one after the other. False, and the rest stays as it is, from one on that is set already. Of several
/// callers that have the same marks, or parts of them, in the same order, at least one gets to its end, and of those
/// that share one no two do.
bool set_all(std::span<std::atomic<bool>* const> marks) noexcept;

/// This user's processes of this host whose environment says that they are ranks of `job`; not this one. A rank without
/// a page is in there too: it has not begun, or waits in a wrapper. Nothing without a job.
std::vector<std::unique_ptr<PeerProcess>> find_peer_processes(int own_rank, std::string_view job);

}  // namespace zs
