#pragma once

#include <string>

namespace zs {

/// Rewrites the library's advice in the words of the program: its keys and flags in place of the library's options.
std::string in_program_words(std::string advice);

}  // namespace zs
