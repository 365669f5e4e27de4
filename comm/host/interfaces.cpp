#include "comm/host/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/parse_integer.h"

namespace zs {
namespace {

struct Address {
  int family = AF_UNSPEC;
  std::array<unsigned char, 16> bytes{};

  int bits() const { return family == AF_INET ? 32 : 128; }
};

struct Interface {
  std::string name;
  Address address;  ///< one of its addresses; an interface is listed once for each
};

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    throw Error(ExitCode::io, fmt::format("the network interfaces cannot be listed: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    Interface& next = found.emplace_back(Interface{one->ifa_name, {}});
    if (one->ifa_addr == nullptr) continue;
    next.address.family = one->ifa_addr->sa_family;
    if (next.address.family == AF_INET)
      std::memcpy(next.address.bytes.data(), &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, 4);
    if (next.address.family == AF_INET6)
      std::memcpy(next.address.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr, 16);
  }
  return found;
}

struct Range {
  Address first;
  int bits;

  bool has(const Address& address) const {
    if (address.family != first.family) return false;
    for (int bit = 0; bit < bits; ++bit) {
      const auto byte = static_cast<std::size_t>(bit / 8);
      if (((address.bytes[byte] ^ first.bytes[byte]) >> (7 - bit % 8) & 1) != 0) return false;
    }
    return true;
  }
};

/// Reads a range of addresses, "10.1.0.0/16".
std::optional<Range> read_range(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  Range range{{}, parse_integer<int>(std::string_view(text).substr(slash + 1)).value_or(-1)};
  const std::string address = text.substr(0, slash);
  for (const int family : {AF_INET, AF_INET6})
    if (inet_pton(family, address.c_str(), range.first.bytes.data()) == 1) range.first.family = family;
  const bool is_good = range.first.family != AF_UNSPEC && range.bits >= 0 && range.bits <= range.first.bits();
  return is_good ? std::optional(range) : std::nullopt;
}

}  // namespace

std::string name_of_host() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

std::string interfaces_of_host(std::string_view wanted) {
  if (wanted.empty()) return {};
  const std::vector<Interface> all = interfaces();
  std::vector<std::string> known, names;
  const auto add = [](std::vector<std::string>& to, const std::string& name) {
    if (std::find(to.begin(), to.end(), name) == to.end()) to.push_back(name);
  };
  for (const Interface& one : all) add(known, one.name);
  std::istringstream words{std::string(wanted)};
  for (std::string word; std::getline(words, word, ',');) {
    const std::optional<Range> range = read_range(word);
    bool is_found = false;
    for (const Interface& one : all) {
      if (range ? !range->has(one.address) : one.name != word) continue;
      is_found = true;
      add(names, one.name);
    }
    if (!is_found)
      throw Error(ExitCode::config,
                  fmt::format("host {} has no network interface or address \"{}\": its interfaces are {}",
                              name_of_host(), word, fmt::join(known, ", ")),
                  "comm.interface", "give names, or addresses as in \"10.1.0.0/16\"");
  }
  return fmt::format("{}", fmt::join(names, ","));
}

}  // namespace zs
