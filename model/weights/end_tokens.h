#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zs {

/// The tokens that end a text by a model's folder: eos_token_id, a number or several, of its generation_config.json, or
/// where there is no such file of its config.json. None where neither names any. Error(model) for a file that is no
/// JSON object, or an id that is none.
std::vector<std::int32_t> end_tokens_of(const std::string& folder);

}  // namespace zs
