#pragma once

#include <string>

namespace zs {

/// All that a file of /proc holds. Empty where it cannot be opened, or where its process ends before all is read:
/// whoever asks about other processes must expect that at any time.
std::string read_proc_file(const std::string& path);

/// The rest of an open file; empty where reading fails.
std::string read_rest_of(int descriptor);

}  // namespace zs
