#pragma once

#include <string>

#include "model/train/inference/sample_run.h"

namespace zs {

/// Request of `train sample --chat`.
struct ChatRequest {
  std::string system;         ///< message before all others; empty: none
  SampleRequest sample = {};  ///< drawing of answers, of 1024 tokens at most unless it says otherwise
};

/// Collective: answers what the first rank reads from standard input, a turn a line, by the chat template of the
/// model's tokenizer, until there is no more or a line says /exit. On a terminal Ctrl-C ends an answer. The exit code.
int chat(Inference& inference, const ChatRequest& request);

}  // namespace zs
