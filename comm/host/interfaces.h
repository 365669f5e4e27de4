#pragma once

#include <string>
#include <string_view>

namespace zs {

/// Name of this host, as the system has it, or "unknown host".
std::string name_of_host();

/// Names of this host's network interfaces that `wanted` means, separated by commas: it names them ("eth0") or ranges
/// of addresses ("10.1.0.0/16", "fd00::/8"), likewise separated. Empty where it is. Error(config) where one means none.
std::string interfaces_of_host(std::string_view wanted);

}  // namespace zs
