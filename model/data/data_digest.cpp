#include "model/data/data_digest.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "runtime/base/check.h"

namespace zs {

std::string digest_of(const Corpus& corpus, std::int64_t first, std::int64_t count) {
  constexpr std::int64_t kBlocks = 64, kBlock = std::int64_t{1} << 16;
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), &XXH3_freeState);
  ZS_CHECK(state != nullptr && XXH3_64bits_reset_withSeed(state.get(), static_cast<std::uint64_t>(count)) == XXH_OK,
           "no hash state");
  std::vector<std::int32_t> block(static_cast<std::size_t>(std::min(kBlock, count)));
  const bool is_whole = count <= kBlocks * kBlock;
  const std::int64_t blocks = is_whole ? (count + kBlock - 1) / kBlock : kBlocks;
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t begin =
        is_whole ? i * kBlock
                 : (count - kBlock) / (kBlocks - 1) * i + (count - kBlock) % (kBlocks - 1) * i / (kBlocks - 1);
    const std::int64_t here = std::min(kBlock, count - begin);
    corpus.read_unchecked(first + begin, here, block.data());
    ZS_CHECK(
        XXH3_64bits_update(state.get(), block.data(), static_cast<std::size_t>(here) * sizeof(std::int32_t)) == XXH_OK,
        "hash");
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

std::string describe_names(const std::vector<std::string>& files) {
  std::string all;
  const auto name_of = [](const std::string& path) { return std::filesystem::path(path).filename().string(); };
  for (const std::string& path : files) all += name_of(path) + '\0';
  if (files.size() <= 1) return files.empty() ? "none" : name_of(files.front());
  return fmt::format("{} to {} ({} files, names {:08x})", name_of(files.front()), name_of(files.back()), files.size(),
                     static_cast<std::uint32_t>(XXH3_64bits(all.data(), all.size())));
}

}  // namespace zs
