#pragma once

#include <cstddef>
#include <cstdint>

namespace zs {

/// Limits of depth, size and time that every reader keeps to, so that no file of others takes a process down. Each is
/// many times what published models need (docs/reliability.md lists them).
struct ReaderLimits {
  // JSON of any file
  static constexpr int kJsonDepth = 128;
  static constexpr std::int64_t kJsonTreeBytes = 64 << 20;  ///< in memory, where a text is kept as a tree

  // Folders of models
  static constexpr std::int64_t kModelJsonBytes = 16
                                                  << 20;  ///< config.json, generation_config.json, adapter_config.json
  static constexpr std::int64_t kIndexBytes = 100'000'000;
  static constexpr std::int64_t kHeaderBytes = 100'000'000;      ///< safetensors; what its reference reads
  static constexpr std::size_t kTensors = std::size_t{1} << 20;  ///< one header's or index's
  static constexpr std::size_t kTensorDims = 64;
  static constexpr std::size_t kMetadataEntries = std::size_t{1} << 16;
  static constexpr std::int64_t kCompanionBytes = std::int64_t{1} << 30;  ///< a file that is copied as it is

  // Tokenizers
  static constexpr std::int64_t kTokenizerBytes = 128 << 20;
  static constexpr std::int64_t kTokenizerTreeBytes = 512 << 20;
  static constexpr std::size_t kPieces = std::size_t{1} << 21;  ///< SentencePiece's
  static constexpr std::size_t kTokenBytes = 4096;              ///< a token's or piece's text
  static constexpr std::size_t kAddedTokenBytes = 256;          ///< the text is searched for each of them
  static constexpr std::size_t kAffixBytes = 64;                ///< prefix or suffix of a BPE's symbols
  static constexpr std::int64_t kUnusedIds = 1 << 20;           ///< ids that may lie between those of tokens
  static constexpr std::size_t kFrameIds = 4096;                ///< special tokens around a text
  static constexpr int kTokenizerSteps = 64;                    ///< each kind's
  static constexpr std::size_t kPatternBytes = 64 << 10;
  static constexpr std::size_t kPatternGroups = 100;  ///< one in the other
  /// A text of n bytes may become kTextGrowth * n + kTextGrowthBytes by the steps of its tokenizer, and its expressions
  /// may take kPatternSeconds + n * kPatternSecondsPerByte of a processor's time.
  static constexpr std::int64_t kTextGrowth = 64, kTextGrowthBytes = 1 << 20;
  static constexpr double kPatternSeconds = 4, kPatternSecondsPerByte = 2e-6;

  // Chat templates
  static constexpr std::int64_t kTemplateBytes = 1 << 20;
  static constexpr int kTemplateDepth = 100;                     ///< nesting of blocks, brackets and calls
  static constexpr int kTemplateValueDepth = 256;                ///< nesting of lists and dictionaries
  static constexpr std::int64_t kTemplateSteps = 4'000'000;      ///< expressions and statements of one rendering
  static constexpr std::int64_t kTemplateTextBytes = 256 << 20;  ///< sum of all texts of one rendering

  static constexpr std::size_t kChatLineBytes = std::size_t{1} << 20;  ///< a line of standard input

  // Runs
  static constexpr std::size_t kTomlBytes = std::size_t{1} << 20;
  static constexpr int kTomlDepth = 16;  ///< brackets, and parts of a dotted name
  static constexpr std::size_t kMetricsLineBytes = 16384;
  static constexpr std::int64_t kDamagedLineBytes = 64 << 20;  ///< a line of metrics.jsonl that is passed over
  static constexpr std::size_t kDamagedLines = 1'000'000;
  static constexpr std::int64_t kRunMarkBytes = 64 << 20;
  static constexpr std::int64_t kManifestBytes = std::int64_t{1} << 30;
  static constexpr std::size_t kManifestAttributes = std::size_t{1} << 16;
  static constexpr std::size_t kManifestPartNumbers = 4096;  ///< dim, index, count and blocks of one
};

}  // namespace zs
