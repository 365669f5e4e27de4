#pragma once

#include <string>

namespace zs {

/// Expands, as a shell does, `~`, `~user`, `$NAME` and `${NAME}` where a part of a path begins with them (`~`: the
/// first part). Error(config), without a place, where there is no such user, or the variable is empty, or unset while
/// nothing of that very name exists there.
std::string expand_path(const std::string& path);

}  // namespace zs
