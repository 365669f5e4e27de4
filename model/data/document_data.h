#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/data/dataset.h"

namespace zs {

/// Error(config) where the vocabulary has no room for the tokenizer's ids.
void check_vocab(const DatasetOptions& options);
/// "FILE and 3 more", for an error.
std::string where_of(const std::vector<std::string>& files);
/// The documents of these files, in sequences of `options.sequence`. Throws what open_dataset throws.
EncodedDocuments encoded_documents(const DatasetOptions& options, const std::vector<std::string>& patterns);
/// As the longest document, of training and validation, within `options.most_sequence`.
std::int64_t sequence_of_documents(const DatasetOptions& options);

}  // namespace zs
