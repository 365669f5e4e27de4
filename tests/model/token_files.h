#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "model/data/corpus.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"

namespace zs::test {

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// llm.c's.
inline std::string header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> words(256, 0);
  words[0] = magic, words[1] = version, words[2] = count;
  return raw(words);
}

inline std::vector<std::int32_t> all_of(const Corpus& corpus) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(corpus.tokens()));
  corpus.read(0, corpus.tokens(), tokens.data());
  return tokens;
}

/// Of a corpus that is opened and read.
inline Error refusal(const DataFormat& format, const std::vector<std::string>& files) {
  try {
    all_of(Corpus(format, files));
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::dataset);
    return error;
  }
  FAIL("no error");
  throw 0;
}

constexpr DataFormat kText{.kind = DataKind::text, .vocab = 256};
constexpr DataFormat tokens_below(std::int64_t vocab, std::int64_t bytes = 2) {
  return {DataKind::tokens, vocab, bytes};
}

/// As a tokenizer's might be: `count` ids below `vocab`, the same every time.
template <class Id>
std::vector<Id> ids(std::size_t count, std::uint64_t vocab) {
  std::vector<Id> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<Id>(CounterRng(11).bits(i) % vocab);
  return all;
}

}  // namespace zs::test
