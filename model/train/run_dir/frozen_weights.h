#pragma once

#include <cstdint>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "runtime/shard/placement/frozen_format.h"

namespace zs {

/// Folder of a model whose weights a checkpoint, or a run's final weights, leave out, as these name it. A value.
struct FrozenWeights {
  std::string folder;      ///< absolute
  std::int64_t bytes = 0;  ///< length of its weight files
  std::string hash;        ///< XXH3 of their contents, in the order of their names, as 16 hex digits

  /// Reads all of the folder's weight files. Error(model).
  static FrozenWeights of(const std::string& folder);
  /// Folder that a checkpoint's attributes name; none: it holds all weights.
  static std::optional<FrozenWeights> in(const std::map<std::string, std::string>& attributes);
  void add_to(std::map<std::string, std::string>& attributes) const;

  /// Checks that `other`, or where that is empty the folder that is named, has these weights, and returns it.
  /// Error(model), in one line, where it is not there, or has others. Reads all of it.
  FrozenWeights check(const std::string& other, const std::string& saved) const;
  /// The folder to read: `other`, or where that is empty the one that is named. Error(model) where it is not there.
  /// `saved`: what names it, for the error.
  std::string found(const std::string& other, const std::string& saved) const;
};

/// Format in which the run that has saved a checkpoint with these attributes holds frozen matrices of blocks; null: in
/// none. What reads the folder rounds them to it.
const FrozenFormat* frozen_format_in(const std::map<std::string, std::string>& attributes);
/// Says in attributes that it is the format of this name.
void name_frozen_format(const std::string& name, std::map<std::string, std::string>& attributes);

/// Metadata of the file of a run's final weights: the attributes above, where it leaves frozen ones
/// out. Error(model).
std::map<std::string, std::string> attributes_of_weights(const std::string& path);

/// Frozen weights that a run's checkpoints name, on its first rank. One thread uses it.
class FrozenRecord {
 public:
  void set(FrozenWeights known) { known_ = std::move(known); }
  /// Reads the folder in a thread of its own.
  void read(const std::string& folder);
  /// Names them in a checkpoint's attributes, once they have been read. Error(model) of the reading.
  void add_to(std::map<std::string, std::string>& attributes);

 private:
  std::optional<FrozenWeights> known_;
  std::future<FrozenWeights> reading_;
};

}  // namespace zs
