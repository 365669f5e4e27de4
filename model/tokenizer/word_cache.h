#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zs {

/// The ids of words seen before. It forgets everything when it is full, so its memory is bounded (some MiB). One thread
/// uses it.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 64, kMostIds = 255;  // bytes, ids of one word

  /// None (a null pointer) if the word is not here. Until the next insert.
  struct Ids {
    const std::int32_t* data = nullptr;
    std::size_t size = 0;
  };
  Ids find(std::string_view word, std::uint64_t hash) const {
    for (std::size_t at = hash & kMask; slots_[at].size != 0; at = (at + 1) & kMask) {
      const Slot& slot = slots_[at];
      if (slot.hash == static_cast<std::uint32_t>(hash >> 32) && slot.size == word.size() &&
          std::memcmp(words_.data() + slot.word, word.data(), word.size()) == 0)
        return {slot.count <= slot.own.size() ? slot.own.data() : ids_.data() + slot.own[0], slot.count};
    }
    return {};
  }
  /// A word that is not here, of 1 to kLongestWord bytes, with at most kMostIds ids.
  void insert(std::string_view word, std::uint64_t hash, std::span<const std::int32_t> ids) {
    if (used_ == kMostWords) clear();
    std::size_t at = hash & kMask;
    while (slots_[at].size != 0) at = (at + 1) & kMask;
    Slot& slot = slots_[at];
    slot = {static_cast<std::uint32_t>(hash >> 32),
            static_cast<std::uint32_t>(words_.size()),
            static_cast<std::uint16_t>(word.size()),
            static_cast<std::uint16_t>(ids.size()),
            {}};
    words_.append(word);
    if (ids.size() <= slot.own.size()) {
      std::copy(ids.begin(), ids.end(), slot.own.begin());
    } else {
      slot.own[0] = static_cast<std::int32_t>(ids_.size());
      ids_.insert(ids_.end(), ids.begin(), ids.end());
    }
    ++used_;
  }

 private:
  static constexpr std::size_t kSlots = 1 << 17, kMask = kSlots - 1, kMostWords = kSlots / 2;
  struct Slot {
    std::uint32_t hash = 0, word = 0;   // the upper half; where its bytes begin
    std::uint16_t size = 0, count = 0;  // bytes (0: empty), ids
    std::array<std::int32_t, 5> own{};  // the ids, or where they begin
  };
  void clear() {
    slots_.assign(kSlots, Slot());
    words_.clear();
    ids_.clear();
    used_ = 0;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
  std::string words_;
  std::vector<std::int32_t> ids_;
  std::size_t used_ = 0;
};

}  // namespace zs
