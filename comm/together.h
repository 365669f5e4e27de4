#pragma once

#include <functional>
#include <optional>
#include <string>

#include "comm/world.h"
#include "runtime/base/check.h"

namespace zs {

/// An error that every rank throws alike, whichever met it: the group is in good order.
class AgreedError final : public Error {
 public:
  using Error::Error;
};

/// Runs `body` on every rank and waits for all; when it threw on any, every rank throws the AgreedError of the lowest
/// of them. `body` has nothing collective in it.
void together(World& world, const std::function<void()>& body);

/// Two ranks that gave different texts, and these.
struct Difference {
  World::Agreement first, other;
  /// "rank 0 ..., rank 1 ..."
  std::string str() const;
};
/// Collective: whether every rank gives the same text (of at most 1000 bytes); else two of the ranks, the same on all.
std::optional<Difference> difference(World& world, const std::string& own);

/// Collective: the text of the rank that owns it, the lowest of several, on every rank, however long.
std::string from_owner(World& world, bool is_owner, const std::string& text);
/// Collective: what only the first rank has, on every rank.
std::string from_first(World& world, const std::string& text);

}  // namespace zs
