#include "runtime/tensor/documents.h"

#include <fmt/format.h>

#include "runtime/base/usage_error.h"

namespace zs {
namespace {

UsageError do_not_fit(const char* op, std::int64_t batch, std::int64_t time, std::int64_t at) {
  return UsageError(
      fmt::format("op {}: the documents do not fit {} sequences of {} tokens, at token {}", op, batch, time, at),
      "give each sequence documents that are together as long as it is");
}

}  // namespace

Documents::Documents(const std::vector<std::int64_t>& lengths) {
  std::vector<Run> runs;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    if (length <= 0) throw UsageError(fmt::format("a document of {} tokens", length), "leave it out");
    if (!runs.empty() && runs.back().length == length) {
      ++runs.back().count;
    } else {
      runs.push_back({first, 1, length});
    }
    first += length;
  }
  runs_ = std::make_shared<const std::vector<Run>>(std::move(runs));
}

std::vector<Documents::Run> Documents::runs(const char* op, std::int64_t batch, std::int64_t time) const {
  if (runs_ == nullptr) return {{0, batch, time}};
  std::int64_t end = 0;
  for (const Run& run : *runs_) {
    for (std::int64_t i = 0; i < run.count; ++i, end += run.length)
      if (run.length > time - end % time) throw do_not_fit(op, batch, time, end);
  }
  if (end != batch * time) throw do_not_fit(op, batch, time, end);
  return runs_->empty() ? std::vector<Run>{{0, batch, time}} : *runs_;
}

}  // namespace zs
