#include "runtime/tensor/einsum.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "runtime/base/usage_error.h"
#include "runtime/tensor/layout.h"
#include "runtime/tensor/op_arguments.h"
#include "runtime/tensor/reduction.h"

namespace zs {
namespace {

bool has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

std::string only(const std::string& letters, const std::function<bool(char)>& is_kept) {
  std::string kept;
  std::copy_if(letters.begin(), letters.end(), std::back_inserter(kept), is_kept);
  return kept;
}

[[noreturn]] void refuse(const std::string& pattern, const std::string& what) {
  throw UsageError(fmt::format("op einsum \"{}\": {}", pattern, what),
                   "write letters for the dims of each operand and of the result, as in \"bqd,bkd->bqk\"");
}

/// Letters of each operand, and of the result at the end.
std::vector<std::string> letters_of(const std::string& pattern, std::size_t operands) {
  std::string letters = only(pattern, [](char c) { return c != ' '; });
  const std::size_t arrow = letters.find("->");
  if (arrow == std::string::npos) refuse(pattern, "there is no \"->\"");
  letters.replace(arrow, 2, ",");
  std::vector<std::string> parts{""};
  for (const char c : letters) {
    if (c == ',') {
      parts.emplace_back();
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      if (has(parts.back(), c)) refuse(pattern, fmt::format("'{}' comes twice in one part", c));
      parts.back() += c;
    } else {
      refuse(pattern, fmt::format("'{}' is no letter", c));
    }
  }
  if (parts.size() != operands + 1) refuse(pattern, fmt::format("{} operands for {}", operands, parts.size() - 1));
  return parts;
}

/// A tensor whose dims have letters.
struct Lettered {
  Tensor x;
  std::string letters;

  std::int64_t size(const std::string& of) const {
    std::int64_t n = 1;
    for (const char c : of) n *= x.shape()[static_cast<int>(letters.find(c))];
    return n;
  }
  /// With dims in this order, which is of the same letters.
  Tensor in_order(const std::string& order) const {
    if (order == letters) return x;
    std::vector<int> dims;
    for (const char c : order) dims.push_back(static_cast<int>(letters.find(c)));
    return permute(x, dims);
  }
  /// Summed over what neither others nor the result have.
  Lettered without_lonely(const std::string& others) const {
    const std::string kept = only(letters, [&](char c) { return has(others, c); });
    std::vector<int> dims;
    for (std::size_t d = 0; d < letters.size(); ++d)
      if (!has(others, letters[d])) dims.push_back(static_cast<int>(d));
    return dims.empty() ? *this : Lettered{sum(x, dims), kept};
  }
};

/// Product of two, of which `later` are the letters that are still asked for.
Lettered product(const Lettered& a, const Lettered& b, const std::string& later) {
  const std::string together = only(a.letters, [&](char c) { return has(b.letters, c) && has(later, c); });
  const std::string inner = only(a.letters, [&](char c) { return has(b.letters, c) && !has(later, c); });
  const std::string left = only(a.letters, [&](char c) { return !has(b.letters, c); });
  const std::string right = only(b.letters, [&](char c) { return !has(a.letters, c); });
  const std::int64_t batch = a.size(together), m = a.size(left), k = a.size(inner), n = b.size(right);
  const Tensor c = matmul(a.in_order(together + left + inner).reshape({batch, m, k}),
                          b.in_order(together + inner + right).reshape({batch, k, n}));
  std::vector<std::int64_t> sizes;
  for (const char letter : together + left) sizes.push_back(a.size(std::string(1, letter)));
  for (const char letter : right) sizes.push_back(b.size(std::string(1, letter)));
  if (sizes.size() > Shape::kMaxDims)
    throw UsageError(fmt::format("op einsum: a product of {} dims on the way", sizes.size()),
                     "put the operands into another order");
  return {c.reshape(Shape(std::span<const std::int64_t>(sizes))), together + left + right};
}

void check_sizes(const std::string& pattern, const std::vector<std::string>& letters,
                 const std::vector<Tensor>& operands) {
  std::map<char, std::int64_t> sizes;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    require_float("einsum", "an operand", operands[i]);
    if (!std::cmp_equal(letters[i].size(), operands[i].shape().rank()))
      refuse(pattern, fmt::format("\"{}\" for {}", letters[i], operands[i].describe()));
    for (std::size_t d = 0; d < letters[i].size(); ++d) {
      const std::int64_t size = operands[i].shape()[static_cast<int>(d)];
      if (sizes.emplace(letters[i][d], size).first->second != size)
        refuse(pattern, fmt::format("'{}' is {} and {}", letters[i][d], sizes[letters[i][d]], size));
    }
  }
  for (const char c : letters.back())
    if (sizes.count(c) == 0) refuse(pattern, fmt::format("no operand has the result's '{}'", c));
}

}  // namespace

Tensor einsum(const std::string& pattern, const std::vector<Tensor>& operands) {
  if (operands.empty()) throw UsageError("op einsum of no operands");
  const std::vector<std::string> letters = letters_of(pattern, operands.size());
  check_sizes(pattern, letters, operands);
  const auto after = [&](std::size_t i) {
    return std::accumulate(letters.begin() + static_cast<std::ptrdiff_t>(i), letters.end(), std::string());
  };
  Lettered result = Lettered{operands[0], letters[0]}.without_lonely(after(1));
  for (std::size_t i = 1; i < operands.size(); ++i) {
    const Lettered next = Lettered{operands[i], letters[i]}.without_lonely(result.letters + after(i + 1));
    result = product(result, next, after(i + 1));
  }
  return result.in_order(letters.back());
}

}  // namespace zs
