#include "comm/together.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <vector>

namespace zs {
namespace {

constexpr char kSeparator = '\x1f';

AgreedError decode(const std::string& message, int code) {
  std::vector<std::string> fields(1);
  for (const char c : message) {
    if (c == kSeparator) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  fields.resize(3);
  return AgreedError(static_cast<ExitCode>(code), fields[0], fields[1], fields[2]);
}

}  // namespace

void together(World& world, const std::function<void()>& body) {
  int code = 0;
  std::string message;
  const auto report = [&](ExitCode exit_code, const std::string& what, const std::string& where,
                          const std::string& todo) {
    constexpr std::size_t kMostWhere = 400;  // the end of a path says the most, and messages between ranks are short
    code = static_cast<int>(exit_code);
    message = what + kSeparator + (where.size() > kMostWhere ? where.substr(where.size() - kMostWhere) : where) +
              kSeparator + todo;
  };
  try {
    body();
  } catch (const Error& error) {
    report(error.code(), error.what_happened(), error.where(), error.what_to_do());
  } catch (const std::bad_alloc&) {
    report(ExitCode::out_of_memory, "out of memory", fmt::format("rank {}", world.rank()), "");
  } catch (const std::exception& error) {
    report(ExitCode::internal, error.what(), fmt::format("rank {}", world.rank()), "this is a defect of zshard");
  }
  const World::Agreement agreement = world.agree(code, message);
  if (agreement.code != 0) throw decode(agreement.message, agreement.code);
}

std::string Difference::str() const {
  return fmt::format("rank {} {}, rank {} {}", first.rank, first.message, other.rank, other.message);
}

std::optional<Difference> difference(World& world, const std::string& own) {
  Difference found{world.agree(1, own), {}};
  found.other = world.agree(own == found.first.message ? 0 : 1, own);
  if (found.other.code == 0) return std::nullopt;
  return found;
}

std::string from_owner(World& world, bool is_owner, const std::string& text) {
  constexpr std::size_t kMessageBytes = 1000;  // bytes that World::agree carries
  std::string whole;
  for (;;) {
    const std::string part =
        world.agree(is_owner ? 1 : 0, text.substr(std::min(whole.size(), text.size()), kMessageBytes)).message;
    whole += part;
    if (part.size() < kMessageBytes) return whole;
  }
}

std::string from_first(World& world, const std::string& text) { return from_owner(world, world.rank() == 0, text); }

}  // namespace zs
