#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/data/text_documents.h"

namespace zs {

/// The two documents of a line of preference data, a JSON object: what is chosen, and what is rejected, each behind
/// what they have in common, `prompt`, which counts for nothing. All three are texts, or lists of messages, where
/// `prompt` may be left out. Throws Error(dataset) that names `where`.
std::vector<TextDocument> preference_documents(std::string_view line, const std::string& where);

}  // namespace zs
