#include <cstring>
#include <stdexcept>

#include "tests/gpu/emulation/cuda.h"
// Behind it: what is defined here.
#include "kernels/cuda/warp.h"

/// kernels/cuda/warp.h for the host: fragments lie in the lanes exactly as the PTX ISA has them.
namespace zs::cuda {
namespace {

constexpr int kLanes = 32, kRowsOfMatrix = 8;

int lane() { return static_cast<int>(threadIdx.x % kLanes); }

template <class T>
T brought_by(const emulation::Brought& brought, int lane) {
  T value;
  std::memcpy(&value, brought[lane], sizeof(T));
  return value;
}

/// Half `i` of a register: 0 the lower.
float half_of(std::uint32_t word, int i) { return float_of(i == 0 ? word << 16 : word & 0xffff0000u); }

struct Factors {
  std::uint32_t a[4], b[2];
};

/// Element (row, column) of a (16, 16), from the lane that holds it.
float left_element(const emulation::Brought& brought, int row, int column) {
  const Factors holder = brought_by<Factors>(brought, row % 8 * 4 + column % 8 / 2);
  return half_of(holder.a[(column >= 8 ? 2 : 0) + (row >= 8 ? 1 : 0)], column % 2);
}
/// Element (row, column) of b (16, 8).
float right_element(const emulation::Brought& brought, int row, int column) {
  const Factors holder = brought_by<Factors>(brought, column * 4 + row % 8 / 2);
  return half_of(holder.b[row >= 8 ? 1 : 0], row % 2);
}

/// In shared memory, aligned, and the eight rows of a matrix in banks of their own: together they are read at once.
void check_rows(const emulation::Brought& brought) {
  const emulation::SharedMemory shared = emulation::shared_memory();
  for (int matrix = 0; matrix < 4; ++matrix) {
    unsigned banks = 0;
    for (int row = 0; row < kRowsOfMatrix; ++row) {
      const auto* const at = brought_by<const std::byte*>(brought, matrix * kRowsOfMatrix + row);
      if (at < shared.address || at + sizeof(Words) > shared.address + shared.bytes)
        throw std::logic_error("a row of a matrix is not in shared memory");
      const std::ptrdiff_t offset = at - shared.address;
      if (offset % static_cast<std::ptrdiff_t>(sizeof(Words)) != 0)
        throw std::logic_error("a row of a matrix is not aligned");
      banks |= 1u << (offset / static_cast<std::ptrdiff_t>(sizeof(Words)) % 8);
    }
    if (banks != 0xff) throw std::logic_error("rows of a matrix share banks of shared memory");
  }
}

/// Element (row, column) of a matrix whose rows are brought by eight lanes.
std::uint32_t element(const emulation::Brought& brought, int matrix, int row, int column) {
  const auto* const at = brought_by<const std::byte*>(brought, matrix * kRowsOfMatrix + row);
  std::uint16_t bits;
  std::memcpy(&bits, at + 2 * column, sizeof(bits));
  return bits;
}

void begin(void* to, const void* from, std::size_t bytes, bool is_there) {
  const emulation::SharedMemory shared = emulation::shared_memory();
  auto* const at = static_cast<std::byte*>(to);
  if (at < shared.address || at + bytes > shared.address + shared.bytes)
    throw std::logic_error("a copy goes beyond shared memory");
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
    throw std::logic_error("a copy is not aligned");
  emulation::begin_copy({at, is_there ? static_cast<const std::byte*>(from) : nullptr, bytes});
}

}  // namespace

float shuffle_xor(float value, int lanes) {
  const emulation::Brought& brought = emulation::meet_warp("shfl.sync", &value, sizeof(value));
  return brought_by<float>(brought, lane() ^ lanes);
}
std::uint32_t vote(bool value) {
  const emulation::Brought& brought = emulation::meet_warp("vote.sync", &value, sizeof(value));
  std::uint32_t votes = 0;
  for (int other = 0; other < kLanes; ++other) votes |= (brought_by<bool>(brought, other) ? 1u : 0u) << other;
  return votes;
}
void sync_warp() { emulation::sync_warp(); }

void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const Factors mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const emulation::Brought& brought = emulation::meet_warp("mma.sync", &mine, sizeof(mine));
  for (int i = 0; i < 4; ++i) {
    const int row = lane() / 4 + (i >= 2 ? 8 : 0), column = lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) c[i] += left_element(brought, row, k) * right_element(brought, k, column);
  }
}

void load_matrices(std::uint32_t (&out)[4], const Words* row) {
  const emulation::Brought& brought = emulation::meet_warp("ldmatrix.sync", &row, sizeof(row));
  if (lane() == 0) check_rows(brought);
  const int first = lane() % 4 * 2;
  for (int i = 0; i < 4; ++i)
    out[i] = element(brought, i, lane() / 4, first) | element(brought, i, lane() / 4, first + 1) << 16;
}
void load_matrices_transposed(std::uint32_t (&out)[4], const Words* row) {
  const emulation::Brought& brought = emulation::meet_warp("ldmatrix.sync.trans", &row, sizeof(row));
  if (lane() == 0) check_rows(brought);
  const int first = lane() % 4 * 2;
  for (int i = 0; i < 4; ++i)
    out[i] = element(brought, i, first, lane() / 4) | element(brought, i, first + 1, lane() / 4) << 16;
}

void copy_async(Words* to, const Words* from, bool is_there) { begin(to, from, sizeof(Words), is_there); }
void copy_async(float* to, const float* from, bool is_there) { begin(to, from, sizeof(float), is_there); }
void wait_copies() { emulation::finish_copies(); }

float exp2_of(float x) { return exp2f(x); }
std::uint32_t pack_bf16(float low, float high) {
  return from_float<Bf16>(low).bits | static_cast<std::uint32_t>(from_float<Bf16>(high).bits) << 16;
}

Words* dynamic_shared() { return reinterpret_cast<Words*>(emulation::shared_memory().address); }

}  // namespace zs::cuda
