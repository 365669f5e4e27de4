#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/health/flight_recorder.h"
#include "comm/health/watch_options.h"

namespace zs {

/// An operation that a rank has started and not finished, or the last that it has started in a group.
struct OpView {
  std::uint64_t group = 0, sequence = 0;
  int size = 0;
  std::string text;
  bool operator==(const OpView&) const = default;
};

/// Seconds after which a host that has sent before counts as silent: messages get lost.
inline constexpr double kSilentAfter_s = 3;

/// State that is known of one rank at a moment.
struct RankView {
  int rank = 0;
  int pid = 0;
  char state = '?';  ///< state in /proc/PID/stat; 'X': there is no such process; '?': not known
  bool has_page = false;
  Phase phase = Phase::idle;
  bool has_left = false;
  std::int64_t step = 0;
  double heartbeat_age_s = 0, still_s = 0;
  bool host_waits = false;
  bool only_waits = false;                ///< nothing runs but operations, and the host thread waits
  std::string host = {}, streams = {};    ///< activity of its host thread and its streams
  std::vector<OpView> unfinished = {};    ///< oldest first
  std::vector<OpView> last_started = {};  ///< one a group
  bool lacks_groups = false;              ///< there were more of the largest size than a message has room for
  std::string host_name = {};             ///< name of another host; empty: on this one
  double silent_s = 0;                    ///< since another host sent this
};
RankView view_of(const StatusPage& page, char state);

/// Diagnosis of who keeps the others waiting.
struct Diagnosis {
  enum class Kind : std::uint8_t {
    nobody,      ///< whoever is waited for moves, or cannot be seen from here
    died,        ///< its process has ended
    stopped,     ///< its process does not run: stopped, or hanging in the system
    stands,      ///< its process runs, but does nothing that others wait for
    left_early,  ///< the rank has come to the end of its part, and others wait for it in an operation
    disagree,    ///< ranks wait for each other in different operations
    silent,      ///< its host, another one, is not heard any more
    absent,      ///< no process of it was ever seen on this host; `rank` is the one that says so
    unseen,  ///< MPI itself does not go on, and it is no rank that can be seen from here; `rank` is the one that says
             ///< so
  };
  Kind kind = Kind::nobody;
  int rank = -1;          ///< the culprit
  int waiting_rank = -1;  ///< one that waits for it; -1: none is known
};

/// Limit of a phase, in seconds; 0: it has none.
double limit_of(const WatchOptions& limits, Phase phase);
/// Diagnoses what the ranks that can be seen here tell together, once a rank that waits has not moved for the limit of
/// its `phase`: those that do not run before those that run and do nothing, and these before those that wait
/// themselves. A rank in a phase that has a longer limit has that long, and in one without a limit for ever, but in
/// `idle`.
Diagnosis diagnose(std::span<const RankView> ranks, int world_size, Phase phase, const WatchOptions& limits);
/// True if a rank that can be seen here has moved within the limit, so that those that wait do well to.
bool somebody_moves(std::span<const RankView> ranks, double limit_s);
/// Diagnoses what needs no limit: a rank that has ended its part, while another waits for it.
Diagnosis diagnose_early_end(std::span<const RankView> ranks, int world_size);
/// Diagnoses what needs no limit either: ranks that have stood still for `still_s`, do nothing but wait, and wait for
/// each other in different operations, in each of which some rank is missing.
Diagnosis diagnose_deadlock(std::span<const RankView> ranks, int world_size, double still_s);
/// "all_gather(blocks.3) #918", or what else it is known to do; may be empty.
std::string doing(const RankView& rank);
/// "in step 41, in all_gather(blocks.3) #918"
std::string when_of(const RankView& rank);

}  // namespace zs
