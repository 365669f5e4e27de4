#pragma once

#include <string>

namespace zs {

/// Folder of the newest committed checkpoint below `root`, good or not; empty where there is none. One rank may see
/// another one than the others do while a save ends: call it before the first save, or between two.
std::string latest_checkpoint(const std::string& root);

}  // namespace zs
