#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/allocator.h"

namespace zs {

class Context;
class Parameter;
class StorageLog;

/// Memory of a tensor, which its handles share. A context that ends before them takes the memory back.
struct TensorStorage {
  TensorStorage(Context& context, Memory memory);
  ~TensorStorage();
  TensorStorage(const TensorStorage&) = delete;
  TensorStorage& operator=(const TensorStorage&) = delete;

  Context* context;  // null: it has ended
  Memory memory;
  std::uint32_t number;  // in the context's StorageLog
};

/// Op whose backward runs. What it has saved is not to have been written to between its record and the beginning of the
/// backward.
struct SavedCheck {
  const std::string& op;
  std::uint64_t recorded, began;  // numbers of ops
};

/// Knowledge of a context about the memory of its tensors and parameters, each of which has a number that its buffers
/// carry: after which op a launch wrote to it last, and from which trained parameters it was computed since an op was
/// recorded for it. Owned by the Context, used by its host thread; a launch allocates nothing here.
class StorageLog {
 public:
  /// A number that nothing else has. 0 is nobody's.
  std::uint32_t add(TensorStorage& storage) { return add({.storage = &storage}); }
  std::uint32_t add(const Parameter& parameter) { return add({.parameter = &parameter}); }
  void remove(std::uint32_t number);

  /// A launch that comes after the op of this number, the last that was recorded. `follows`: what it reads of
  /// parameters goes into what it writes, where that is one tensor. UsageError: it reads what `saved`, which may be
  /// null, does not allow.
  void note(const OpInfo& info, std::uint64_t op, bool follows, const SavedCheck* saved);
  /// UsageError: the backward that runs is not to read that.
  void check_saved(const Buffer& read, const SavedCheck& saved) const;
  /// Notes a write by whoever is no launch.
  void note_write(std::uint32_t number, std::uint64_t op) { entries_[number].written = op; }
  /// The last op that was recorded before the storage was written to last; 0: it was not.
  std::uint64_t written(std::uint32_t number) const { return entries_[number].written; }

  /// A trained parameter that went into the storage and is not among `named`; null: there is none. From now on the
  /// storage comes from no parameter.
  const Parameter* take_unnamed(std::uint32_t number, std::span<Parameter* const> named);

  /// The context ends: takes the memory of tensors that outlive it.
  void end() noexcept;

 private:
  struct Entry {
    TensorStorage* storage = nullptr;
    const Parameter* parameter = nullptr;
    std::uint64_t written = 0;
    std::array<std::uint32_t, 2> from{};  // numbers of parameters; more than there is room for are left out
  };
  std::uint32_t add(const Entry& entry);
  static void add_sources(Entry& to, const Entry& from);

  std::vector<Entry> entries_ = std::vector<Entry>(1);  // by number
  std::vector<std::uint32_t> free_;
};

}  // namespace zs
