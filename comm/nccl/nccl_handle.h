#pragma once

#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/backoff.h"
#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_memory.h"
#include "runtime/base/buffer.h"

namespace zs {

/// A communicator of NCCL's, which never blocks: every call is polled to its success, with a deadline, before anything
/// else is done with the stream. The first failure, of whatever kind, ends it: what runs on the GPU ends too, and every
/// later call throws the same. Owned by what communicates; any thread, one call at a time.
class NcclHandle {
 public:
  using Library = std::shared_ptr<const NcclLibrary>;
  /// `who`: "rank 1 of 4, GPU 0 (NVIDIA H200)", for errors. Makes nothing yet.
  NcclHandle(Library library, std::string who, double timeout_s)
      : library_(std::move(library)), who_(std::move(who)), timeout_s_(timeout_s) {}
  ~NcclHandle();
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  const NcclLibrary& library() const { return *library_; }
  /// Collective, of all that have the same `id`.
  void init(int ranks, const NcclLibrary::Id& id, int rank);
  /// Collective: `part` becomes the communicator of those that name the same color, ordered by key. Nothing may be
  /// under way here.
  void split_into(NcclHandle& part, int color, int key);
  /// NCCL uses such memory without a copy, where it can. False where it refuses, which leaves nothing registered; what
  /// has failed is for the next call to say.
  bool enroll(std::span<const NcclMemory::Block> blocks);
  /// An operation has become part of a graph, which dies before this: until then NCCL's abort waits for it, so that it
  /// is a thread's own.
  void note_captured() {
    const std::lock_guard lock(mutex_);
    is_captured_ = true;
  }
  /// Takes back what is registered; nothing of it may be in use.
  void discharge() noexcept;

  /// `call(comm)` returns NCCL's status; on return it is enqueued. `what`: the operation, for errors.
  template <class Call>
  void run(const char* name, std::string_view what, const Call& call) {
    int status = nccl::kSuccess;
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      status = call(comm_);
      note_locked(status, name, what);
    }
    await(status, name, what);
  }

  /// Throws what has failed.
  void check() const;
  /// Any thread: asks NCCL whether something has failed that nobody waits for. Ends nothing: for a thread that may not
  /// wait.
  void look() noexcept;
  /// Any thread: ends the communicator because of `error`, if nothing has ended it before.
  void fail(const std::exception_ptr& error) noexcept;

 private:
  int state(ncclComm* comm) const;
  void await(int status, const char* name, std::string_view what);
  Error error_of(int status, const char* name, std::string_view what) const;
  void note_locked(int status, const char* name, std::string_view what);
  void fail_locked(const std::exception_ptr& error) noexcept;
  void abort_locked() noexcept;
  void discharge_locked() noexcept;
  bool has_quietly_ended() noexcept;

  const Library library_;
  const std::string who_;
  const double timeout_s_;
  mutable std::mutex mutex_;
  ncclComm* comm_ = nullptr;
  /// Place where NCCL's thread writes what a split makes. Lives as long as that may still write: whoever ends this
  /// communicator holds it too.
  const std::shared_ptr<ncclComm*> split_ = std::make_shared<ncclComm*>(nullptr);
  bool is_captured_ = false, is_aborted_ = false;
  std::future<void> aborted_;  // by a thread
  std::exception_ptr failure_;
  std::vector<void*> enrolled_;
};

}  // namespace zs
