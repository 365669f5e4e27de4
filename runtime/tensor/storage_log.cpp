#include "runtime/tensor/storage_log.h"

#include <algorithm>
#include <utility>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/context.h"
#include "runtime/tensor/parameter.h"

namespace zs {
namespace {

void add_once(std::array<std::uint32_t, 2>& numbers, std::uint32_t number) {
  for (std::uint32_t& known : numbers) {
    if (known == number) return;
    if (known != 0) continue;
    known = number;
    return;
  }
}

}  // namespace

void Context::refuse_thread(std::string_view call) {
  throw UsageError(fmt::format("{} on another thread than the one whose micro-batch is open in this context", call),
                   "use a context, and the model in it, from one thread at a time");
}

TensorStorage::TensorStorage(Context& of, Memory held)
    : context(&of), memory(std::move(held)), number(of.storages().add(*this)) {}

TensorStorage::~TensorStorage() {
  if (context != nullptr) context->storages().remove(number);
}

std::uint32_t StorageLog::add(const Entry& entry) {
  if (free_.empty()) {
    entries_.push_back(entry);
    return static_cast<std::uint32_t>(entries_.size() - 1);
  }
  const std::uint32_t number = free_.back();
  free_.pop_back();
  entries_[number] = entry;
  return number;
}

void StorageLog::remove(std::uint32_t number) {
  entries_[number] = {};
  free_.push_back(number);
}

void StorageLog::add_sources(Entry& to, const Entry& from) {
  if (from.parameter == nullptr) {
    for (const std::uint32_t number : from.from)
      if (number != 0) add_once(to.from, number);
  } else if (from.parameter->is_trainable()) {
    add_once(to.from, from.parameter->number_);
  }
}

void StorageLog::check_saved(const Buffer& read, const SavedCheck& saved) const {
  if (read.number == 0 || read.number >= entries_.size()) return;
  if (entries_[read.number].storage == nullptr) return;  // a parameter's value: see ShardOptions::checks_writes
  const std::uint64_t written = entries_[read.number].written;
  if (written < saved.recorded || written >= saved.began) return;
  throw UsageError(fmt::format("the backward of op {} reads a tensor of {} x {} that was written to after the op",
                               saved.op, read.elems, name_of(read.dtype)),
                   "write to a tensor of its own, or once backward has been");
}

void StorageLog::note(const OpInfo& info, std::uint64_t op, bool follows, const SavedCheck* saved) {
  for (const Buffer& in : info.reads) {
    if (saved == nullptr) break;
    const auto is_it = [&](const Buffer& out) { return out.number == in.number; };
    if (std::none_of(info.writes.begin(), info.writes.end(), is_it)) check_saved(in, *saved);  // else a sum grows
  }
  const auto is_numbered = [](const Buffer& out) { return out.number != 0; };
  // A launch of two results does not say which parameter goes into which
  follows = follows && std::count_if(info.writes.begin(), info.writes.end(), is_numbered) == 1;
  for (const Buffer& out : info.writes) {
    if (out.number == 0 || out.number >= entries_.size()) continue;  // no tensor's, or of another context's
    Entry& to = entries_[out.number];
    to.written = op;
    if (!follows || to.storage == nullptr) continue;
    for (const Buffer& in : info.reads)
      if (in.number != 0 && in.number != out.number && in.number < entries_.size())
        add_sources(to, entries_[in.number]);
  }
}

const Parameter* StorageLog::take_unnamed(std::uint32_t number, std::span<Parameter* const> named) {
  for (const std::uint32_t from : std::exchange(entries_[number].from, {})) {
    const Parameter* const parameter = entries_[from].parameter;
    if (parameter == nullptr || !parameter->is_trainable()) continue;
    if (std::find(named.begin(), named.end(), parameter) == named.end()) return parameter;
  }
  return nullptr;
}

void StorageLog::end() noexcept {
  for (Entry& entry : entries_) {
    if (entry.storage == nullptr) continue;
    entry.storage->memory.reset();
    entry.storage->context = nullptr;
  }
}

}  // namespace zs
