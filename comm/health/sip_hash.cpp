#include "comm/health/sip_hash.h"

#include <bit>
#include <cstring>

namespace zs {
namespace {

struct State {
  std::uint64_t v0, v1, v2, v3;

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  }
  void absorb(std::uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }
};

}  // namespace

std::uint64_t sip_hash(const SipKey& key, std::span<const std::byte> message) noexcept {
  State state{key.first ^ 0x736f6d6570736575, key.second ^ 0x646f72616e646f6d, key.first ^ 0x6c7967656e657261,
              key.second ^ 0x7465646279746573};
  const std::uint64_t length = message.size();
  std::uint64_t word = 0;
  for (; message.size() >= sizeof word; message = message.subspan(sizeof word)) {
    std::memcpy(&word, message.data(), sizeof word);
    state.absorb(word);
  }
  word = length << 56;
  for (std::size_t i = 0; i < message.size(); ++i) word |= std::to_integer<std::uint64_t>(message[i]) << (8 * i);
  state.absorb(word);
  state.v2 ^= 0xff;
  state.rounds(4);
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace zs
