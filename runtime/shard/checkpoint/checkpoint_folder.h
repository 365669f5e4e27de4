#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/buffer.h"
#include "runtime/shard/checkpoint/checkpoint_data.h"
#include "runtime/shard/checkpoint/checkpoint_manifest.h"

namespace zs {

/// "step-12" and "ROOT/step-12", and while it is being written or removed "step-12.tmp", "step-12.del".
std::string step_name(std::int64_t step);
std::string step_folder(const std::string& root, std::int64_t step);
inline constexpr const char* kWritingSuffix = ".tmp";
inline constexpr const char* kRemovingSuffix = ".del";
/// Suffix of a checkpoint that was set aside, since its bytes are not those that were written; a number may follow.
inline constexpr const char* kDamagedSuffix = ".damaged";

/// N of "step-N", written as a number is; nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name);

/// The steps of the committed checkpoints below `root`, ascending. The name is enough: it comes with the rename that
/// commits. None where there is no `root`; Error(checkpoint) where it cannot be listed.
std::vector<std::int64_t> list_checkpoints(const std::string& root);
std::vector<std::int64_t> list_checkpoints(const Folder& root);

/// Whose checkpoints may be removed.
struct CheckpointOwner {
  /// The attribute of a manifest that says which run has saved it.
  static constexpr const char* kAttribute = "run.id";

  std::function<bool(std::int64_t step)> has_written = {};  ///< filter of steps; all, where nothing is said
  std::string run = {};                                     ///< id of the run; empty: any
};

/// Why the checkpoint of `step` is not to be removed: `owner` has not written it, it holds another step, or something
/// that no save has written. Nothing: it may be.
std::optional<Error> why_kept(const Folder& root, std::int64_t step, const CheckpointOwner& owner = {});
/// True where the folder `name` has a manifest that says it is another run's.
bool is_of_another_run(const Folder& root, const std::string& name, const CheckpointOwner& owner);

/// Removes the oldest checkpoints until `keep` are left (0: keeps all), and what saves and removals that were killed
/// left behind. What is kept (`why_kept`) does not count. The newest is never removed, and nothing is unless the newest
/// is the owner's and has a manifest that verifies. The checkpoint of step `best` stays beside the newest. On one rank
/// only. Error(cannot_create) where a link is in the place of `root`.
void prune_checkpoints(const Folder& root, std::int64_t keep, FileWatch* watch = nullptr,
                       const CheckpointOwner& owner = {}, std::optional<std::int64_t> best = {});

/// Removes the checkpoints of later steps than `step`, the latest first; none of them where one is to be kept:
/// Error(cannot_create).
void remove_later_checkpoints(const Folder& root, std::int64_t step, FileWatch* watch = nullptr,
                              const CheckpointOwner& owner = {});
/// Removes a checkpoint. It is renamed first, so that a removal which is killed leaves no half of one under a good
/// name.
void remove_checkpoint(const Folder& root, std::int64_t step, const FolderIo& io);

/// One committed checkpoint, for reading: by parameter name and element, however it was cut. Reads nothing outside its
/// folder, and no byte that its checksum does not cover. Owns the open files; one thread uses it. Throws
/// DamagedCheckpoint, and Error(checkpoint) for what says nothing of the bytes.
class CheckpointReader {
 public:
  /// Reads the manifest and compares the folder with it: a folder step-N that holds another step is refused.
  explicit CheckpointReader(std::string folder);

  const std::string& folder() const { return folder_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  /// Number of a tensor; of one in parts, of the first, which stands for the whole.
  std::optional<std::int64_t> find(const std::string& parameter, const std::string& kind) const;
  /// Elements [begin, begin + out.elems) of a whole tensor, into host memory unless they are stored otherwise.
  struct Request {
    std::int64_t tensor, begin;
    Buffer out;
  };
  /// Takes elements that were read for `out`, which is as many of them, to memory that the host does not write to, or
  /// that holds them in another dtype.
  using Store = std::function<void(const Buffer& out, const void* elements)>;
  /// Each file is opened once and read from its begin to its end. With `store` it gets what `out` should, piece by
  /// piece.
  void read(const std::vector<Request>& requests, const Store& store = {});
  /// Reads every byte.
  void verify();

 private:
  DataFileReader& file(int number);
  struct Part;
  void find_parts(const Request& request, std::vector<Part>& parts) const;
  void check_folder() const;

  std::string folder_;
  CheckpointManifest manifest_;
  SegmentIndex index_;
  std::map<std::pair<std::string, std::string>, std::vector<std::int64_t>> numbers_;  // parts in their order
  std::unique_ptr<DataFileReader> open_;  // one at a time: a job of thousands of ranks has more files than descriptors
  int open_number_ = -1;
};

}  // namespace zs
