#include "runtime/device/product_choices.h"

#include <algorithm>
#include <limits>
#include <sstream>

namespace zs {
namespace {

/// Number of timed runs, after one that is not timed, in which the library loads what it needs. The least counts: other
/// work may get in the way of some.
constexpr int kRepeats = 3;
/// Share of the first candidate's time that is worth another choice. Less than that is not told from chance, above all
/// where the host takes longer to launch a product than the GPU to compute it.
constexpr double kWorthwhile = 0.98;
constexpr const char* kColumns = "product: candidate, its ms, the first one's ms, bytes of workspace, algorithm";
constexpr const char* kBeforeNumbers = ": ";

std::string hex_of(const CublasLt::Algorithm& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) text += fmt::format(" {:x}", word);
  return text;
}

}  // namespace

void ProductChoices::time(const std::string& product, std::span<const CublasLt::Candidate> candidates,
                          CUstream_st* stream, const Run& run) {
  const auto [place, is_new] = timed_.try_emplace(product);
  if (!is_new) return;
  int number = 0;
  for (const CublasLt::Candidate& candidate : candidates) {
    ++number;
    if (candidate.status != cublas::kSuccess || run(candidate) != cublas::kSuccess) continue;
    Timed timed{candidate, number, {events_->record(stream)}};
    bool has_run = true;
    for (int i = 0; i < kRepeats && has_run; ++i) {
      has_run = run(candidate) == cublas::kSuccess;
      timed.events.push_back(events_->record(stream));
    }
    if (has_run) place->second.push_back(std::move(timed));
  }
}

double ProductChoices::least_ms(const Timed& timed) const {
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t i = 1; i < timed.events.size(); ++i) {
    float ms = 0;
    context_.check(context_.driver().event_elapsed(&ms, timed.events[i - 1], timed.events[i]), "cuEventElapsedTime");
    least = std::min<double>(least, ms);
  }
  return least;
}

std::string ProductChoices::made_for() const {
  return fmt::format("{}, cuBLASLt {}", context_.gpu().name, context_.cublas().version());
}

std::string ProductChoices::measured() {
  if (timed_.empty() && !adopted_.empty()) return adopted_;
  context_.make_current();
  std::map<std::string, std::string> found;
  for (const auto& [product, chosen] : chosen_)
    if (chosen.is_used) found[product] = chosen.line;
  for (const auto& [product, candidates] : timed_) {
    if (candidates.empty()) continue;
    std::vector<double> ms;
    for (const Timed& timed : candidates) ms.push_back(least_ms(timed));
    auto best = std::min_element(ms.begin(), ms.end());
    if (*best > kWorthwhile * ms.front()) best = ms.begin();
    const Timed& timed = candidates[static_cast<std::size_t>(best - ms.begin())];
    found[product] = fmt::format("{}{}{} {:.4f} {:.4f} {}{}", product, kBeforeNumbers, timed.number, *best, ms.front(),
                                 timed.candidate.workspace_bytes, hex_of(timed.candidate.algorithm));
  }
  std::string text = made_for() + '\n' + kColumns + '\n';
  for (const auto& [product, line] : found) text += line + '\n';
  return text;
}

void ProductChoices::settle(const std::string& text) {
  adopt(text);
  timed_.clear();
  events_.reset();
}

void ProductChoices::adopt(const std::string& text) {
  adopted_ = text;
  chosen_.clear();
  summary_ = {};
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.find(kBeforeNumbers);
    if (end == line.npos) continue;
    std::istringstream numbers(line.substr(end + 1));
    int number = 0;
    double ms = 0, first_ms = 0;
    CublasLt::Candidate candidate{};
    numbers >> number >> ms >> first_ms >> candidate.workspace_bytes >> std::hex;
    for (std::uint64_t& word : candidate.algorithm.data) numbers >> word;
    if (!numbers) continue;
    chosen_[line.substr(0, end)] = {candidate, line};
    ++summary_.products;
    summary_.changed += number == 1 ? 0 : 1;
    summary_.saved_ms += first_ms - ms;
  }
}

const CublasLt::Candidate* ProductChoices::chosen(const std::string& product) {
  const auto found = chosen_.find(product);
  if (found == chosen_.end()) return nullptr;
  found->second.is_used = true;
  return &found->second.candidate;
}

}  // namespace zs
