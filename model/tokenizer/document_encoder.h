#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"

namespace zs {

/// All of a file. Throws Error(dataset).
std::string read_text_file(const std::string& path);

/// The ids of texts as one sequence, in the order of the files, handed to `take` piece by piece. Each file is a
/// document: it gets the special tokens that the tokenizer puts around a text, and the end-of-text token, if the
/// tokenizer has one, stands between two documents, unless the first ends with it anyhow. Files without a token are
/// passed over. Returns how many bytes of text there were.
///
/// `threads` threads of its own encode, each with one file in memory. Throws Error(dataset) that names the file and the
/// place, and what `take` throws. The ids do not depend on the number of threads.
std::int64_t encode_documents(const Tokenizer& tokenizer, const std::vector<std::string>& files, int threads,
                              const std::function<void(const std::vector<std::int32_t>& ids)>& take);

}  // namespace zs
