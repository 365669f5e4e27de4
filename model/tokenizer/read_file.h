#pragma once

#include <string>

namespace zs {

/// All of a file of at most 128 MiB. Throws Error(model).
std::string read_tokenizer_file(const std::string& path);

}  // namespace zs
