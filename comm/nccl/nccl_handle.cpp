#include "comm/nccl/nccl_handle.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

namespace zs {
namespace {

/// Seconds that a communicator waits at its end for peers, which need not come any more.
constexpr double kLongestFarewell_s = 10;

/// Most of a GPU's processors, 132 on Hopper, for one operation; products beside it have the others. NCCL's own choice
/// is up to 64. A variable of NCCL's, NCCL_MAX_CTAS, is stronger.
constexpr int kMostCtas = 16;

void log(const std::string& what) noexcept {
  if (std::fprintf(stderr, "zshard: %s\n", what.c_str()) < 0) return;  // nobody to tell
}

}  // namespace

Error NcclHandle::error_of(int status, const char* name, std::string_view what) const {
  const char* const words = library_->error_text(status);
  const char* const last = library_->last_error(comm_);
  const std::string detail = last != nullptr && *last != '\0' ? fmt::format(" ({})", last) : "";
  const ExitCode code = status == nccl::kRemoteError ? ExitCode::peer_lost : ExitCode::internal;
  return Error(code, fmt::format("{}: NCCL error {}, {}{}", name, status, words == nullptr ? "unknown" : words, detail),
               fmt::format("{}, {}", what, who_), "NCCL_DEBUG=INFO says more");
}

void NcclHandle::init(int ranks, const NcclLibrary::Id& id, int rank) {
  run("ncclCommInitRankConfig", "start", [&](ncclComm*) {
    NcclLibrary::Config config;
    config.blocking = 0;
    config.max_ctas = kMostCtas;
    return library_->init(&comm_, ranks, id, rank, &config);
  });
}

void NcclHandle::split_into(NcclHandle& part, int color, int key) {
  *split_ = nullptr;
  run("ncclCommSplit", "split",
      [&](ncclComm* comm) { return library_->split(comm, color, key, split_.get(), nullptr); });
  if (*split_ == nullptr) throw Error(ExitCode::internal, "ncclCommSplit made no communicator", who_);
  {
    const std::lock_guard lock(part.mutex_);  // the watchdog looks at it already
    part.comm_ = *split_;
  }
  part.await(nccl::kInProgress, "ncclCommSplit", "split");
}

bool NcclHandle::enroll(std::span<const NcclMemory::Block> blocks) {
  const std::lock_guard lock(mutex_);
  if (failure_ || blocks.empty()) return false;
  for (const auto& [address, bytes] : blocks) {
    void* handle = nullptr;
    const int status = library_->enroll(comm_, address, static_cast<std::size_t>(bytes), &handle);
    if (status != nccl::kSuccess || handle == nullptr) {
      discharge_locked();
      return false;
    }
    enrolled_.push_back(handle);
  }
  return true;
}

void NcclHandle::discharge() noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_aborted_) discharge_locked();
}

void NcclHandle::discharge_locked() noexcept {
  for (void* handle : enrolled_) {
    if (const int status = library_->discharge(comm_, handle); status != nccl::kSuccess)
      log(fmt::format("ncclCommDeregister: NCCL error {} ({})", status, who_));
  }
  enrolled_.clear();
}

int NcclHandle::state(ncclComm* comm) const {
  int state = nccl::kSuccess;
  const int status = library_->async_error(comm, &state);
  return status != nccl::kSuccess ? status : state;
}

void NcclHandle::note_locked(int status, const char* name, std::string_view what) {
  if (status != nccl::kSuccess && status != nccl::kInProgress)
    fail_locked(std::make_exception_ptr(error_of(status, name, what)));
}

void NcclHandle::await(int status, const char* name, std::string_view what) {
  Backoff backoff(timeout_s_);
  while (status == nccl::kInProgress) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      status = state(comm_);
      note_locked(status, name, what);
    }
    if (status == nccl::kInProgress && !backoff.pause()) {
      fail(std::make_exception_ptr(Error(ExitCode::peer_lost,
                                         fmt::format("{} waited {:g} s for NCCL in {}", what, timeout_s_, name), who_,
                                         "see whether all ranks still run; WorldOptions::timeout_s limits the wait")));
    }
  }
  check();
}

void NcclHandle::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void NcclHandle::look() noexcept {
  const std::unique_lock lock(mutex_, std::try_to_lock);  // a holder asks NCCL, or ends it
  if (!lock || failure_ || comm_ == nullptr) return;
  try {
    const int status = state(comm_);
    if (status != nccl::kSuccess && status != nccl::kInProgress)
      failure_ = std::make_exception_ptr(error_of(status, "ncclCommGetAsyncError", "while it ran"));
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void NcclHandle::fail(const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  fail_locked(error);
}

void NcclHandle::fail_locked(const std::exception_ptr& error) noexcept {
  if (!failure_) failure_ = error;
  abort_locked();
}

void NcclHandle::abort_locked() noexcept {
  if (comm_ == nullptr || is_aborted_) return;
  is_aborted_ = true;
  const auto abort = [library = library_, comm = comm_, who = who_, split = split_] {
    const int status = library->abort(comm);
    if (status != nccl::kSuccess && status != nccl::kInProgress)
      log(fmt::format("ncclCommAbort: NCCL error {} ({})", status, who));
  };
  if (!is_captured_) return abort();
  try {
    std::packaged_task<void()> task(abort);
    aborted_ = task.get_future();
    std::thread(std::move(task)).detach();
  } catch (const std::exception& error) {
    log(fmt::format("no thread for ncclCommAbort: {} ({})", error.what(), who_));
  }
}

/// True if nothing of it is left under way, here and at the peers.
bool NcclHandle::has_quietly_ended() noexcept {
  int status = library_->finalize(comm_);
  Backoff backoff(std::min(timeout_s_, kLongestFarewell_s));
  while (status == nccl::kInProgress && backoff.pause()) status = state(comm_);
  return status == nccl::kSuccess;
}

NcclHandle::~NcclHandle() {
  if (comm_ == nullptr) return;
  if (!is_aborted_) {
    discharge_locked();
    // During an exception the peers may not come to the end, and the user waits for the reason.
    const bool is_unwinding = std::uncaught_exceptions() > 0;
    if (failure_ || is_unwinding || !has_quietly_ended()) {
      abort_locked();
    } else if (const int status = library_->destroy(comm_); status != nccl::kSuccess) {
      log(fmt::format("ncclCommDestroy: NCCL error {} ({})", status, who_));
    }
  }
  if (aborted_.valid() &&
      aborted_.wait_for(std::chrono::duration<double>(kLongestFarewell_s)) != std::future_status::ready)
    log(fmt::format("ncclCommAbort has not returned after {:g} s, and is left behind ({})", kLongestFarewell_s, who_));
}

}  // namespace zs
