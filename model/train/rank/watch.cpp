#include "model/train/rank/watch.h"

#include "model/train/rank/error_line.h"

namespace zs {
namespace {

const char* fault_point(FileOp op) {
  switch (op) {
    case FileOp::make_folder: return "ckpt.make_folder";
    case FileOp::create: return "ckpt.create";
    case FileOp::reserve: return "ckpt.reserve";
    case FileOp::write: return "ckpt.write";
    case FileOp::sync: return "ckpt.sync";
    case FileOp::close: return "ckpt.close";
    case FileOp::sync_folder: return "ckpt.sync_folder";
    case FileOp::rename: return "ckpt.rename";
    case FileOp::remove: return "ckpt.remove";
  }
  return "ckpt";
}

}  // namespace

WatchOptions watch_options(const Config& config) {
  const Config::Watch& limits = config.watchdog;
  return {.init_s = limits.init_s,
          .first_step_s = limits.first_step_s,
          .step_s = limits.step_s,
          .checkpoint_s = limits.checkpoint_s,
          .exchanges_heartbeats = limits.hosts,
          .program = std::string(program_name()),
          .line = [](const Error& error, const std::string& place) { return error_line(error, place); }};
}

void RankWatch::run_in(const std::string& run_dir, const std::string& resume_hint) const {
  if (watchdog_ == nullptr) return;
  watchdog_->record_to(run_dir + "/flight");
  watchdog_->advise("no checkpoint is saved yet: " + resume_hint);
}

void RankWatch::finished() const {
  if (watchdog_ != nullptr) watchdog_->advise("the training is done and its weights are saved");
}

void RankWatch::saved(std::int64_t step) const {
  if (watchdog_ != nullptr) watchdog_->advise(fmt::format("--resume latest goes on after step {}", step));
}

void CheckpointWatch::before(FileOp op, const std::string& /*path*/) {
  const StatusScope status(in_background_ ? nullptr : watch_.watchdog(), "writing a checkpoint",
                           StatusScope::Host::works);
  ++changes_;
  watch_.hit(fault_point(op));
}

}  // namespace zs
