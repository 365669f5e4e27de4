#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/cuda_times.h"

namespace zs {

/// Choices of the cuBLASLt algorithms by which a GPU computes its products, where they are chosen by time
/// (ProductOptions::are_timed). A product is timed once, by the GPU's own events; until `settle` the library's first
/// candidate computes it all the same, so that ranks whose times differ have the same bits. What an earlier run chose
/// is adopted, and not timed. What was timed is text, for other ranks and for later runs: NVIDIA says that an
/// algorithm's bytes hold for the same version of the library. Owned by the context; the device's host thread only.
class ProductChoices {
 public:
  static constexpr int kCandidates = 8;
  /// Enqueues the product once, by this candidate; the library's status.
  using Run = std::function<int(const CublasLt::Candidate& candidate)>;

  explicit ProductChoices(const CudaContext& context) : context_(context), events_(context) {}

  /// True until the choices are settled: products are to be timed.
  bool are_open() const { return events_.has_value(); }
  /// Runs each candidate some times, unless the product is known. `product`: a line's text that says all that
  /// algorithms depend on. Candidates that fail are left out.
  void time(const std::string& product, std::span<const CublasLt::Candidate> candidates, CUstream_st* stream,
            const Run& run);
  /// The fastest candidates, once the streams have ended, with what was adopted and is still of use: a line that says
  /// what they are for, another that names the columns, and one a product. If nothing was timed, what was adopted.
  std::string measured();
  /// First line of the text.
  std::string made_for() const;
  /// Adopts a text: from now on its products are computed by its algorithms, and not timed. Lines that cannot be read
  /// are skipped.
  void adopt(const std::string& text);
  /// Adopts the choices as above, and no others are timed: the library's first candidates compute them.
  void settle(const std::string& text);
  /// Null: the library's first candidate. Else measured() keeps it.
  const CublasLt::Candidate* chosen(const std::string& product);

  /// Summary of all choices.
  struct Summary {
    int products = 0, changed = 0;  ///< these are not the library's first candidates
    double saved_ms = 0;            ///< time saved where each product is computed once
  };
  const Summary& summary() const { return summary_; }

 private:
  struct Timed {
    CublasLt::Candidate candidate;
    int number;  // from 1, as the library has them
    std::vector<CUevent_st*> events;
  };
  struct Chosen {
    CublasLt::Candidate candidate;
    std::string line;
    bool is_used = false;
  };
  double least_ms(const Timed& timed) const;

  const CudaContext& context_;
  std::optional<CudaTimedEvents> events_;  // until it is settled
  std::map<std::string, std::vector<Timed>> timed_;
  std::map<std::string, Chosen> chosen_;
  std::string adopted_;
  Summary summary_;
};

}  // namespace zs
