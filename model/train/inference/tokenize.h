#pragma once

#include <string>
#include <vector>

#include "model/tokenizer/document_encoder.h"

namespace zs {

/// Request of `train tokenize`.
struct TokenizeJob {
  std::string tokenizer;            // a folder
  std::vector<std::string> inputs;  // files, patterns, folders
  std::string out;
  SpecialTokens special = SpecialTokens::automatic;
};

/// Writes the token ids of text files, in the order in which they are named, to one token file (data.kind = "tokens"):
/// uint16 without a header where the tokenizer's vocabulary allows, else uint32 with llm.c's (uint16 has one too where
/// a reader would take the ids for something else). Each file is a document: it gets the special tokens that the
/// tokenizer puts around a text, and the end-of-text token, if the tokenizer has one, stands between two documents,
/// unless the first ends with it anyhow. Files without a token are passed over. Files are encoded by as many threads as
/// OMP_NUM_THREADS or the CPUs allow; each has one file in memory. Prints a line to stdout. The output appears whole or
/// not at all. Throws Error: model for the tokenizer, dataset for the texts, cannot_create and io for the output.
void tokenize_files(const TokenizeJob& job);

}  // namespace zs
