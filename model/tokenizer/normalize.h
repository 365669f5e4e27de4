#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/tokenizer_spec.h"

namespace zs {

/// The text after all steps: `text` itself where nothing changes, else `buffer`, which is overwritten. `lost_front` is
/// set where a step has taken away what it began with.
std::string_view normalize_text(const std::vector<NormalizerStep>& steps, std::string_view text, std::string& buffer,
                                Regex::Scratch& scratch, bool* lost_front = nullptr);

/// Every match of `pattern` in the valid UTF-8 of `text` becomes `content`; appended to `out`.
void replace_matches(const Regex& pattern, std::string_view text, std::string_view content, Regex::Scratch& scratch,
                     std::string& out);

}  // namespace zs
