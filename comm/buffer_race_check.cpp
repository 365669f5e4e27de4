#include "comm/buffer_race_check.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "comm/communicator.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"

namespace zs {
namespace {

constexpr auto kPattern = std::byte{0xff};
constexpr std::size_t kAlignment = 64;

void move_bytes(std::byte* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

void BufferRaceCheck::Free::operator()(std::byte* memory) const { std::free(memory); }

BufferRaceCheck::Bytes BufferRaceCheck::allocate(std::int64_t bytes) {
  const std::size_t whole = (static_cast<std::size_t>(bytes) / kAlignment + 1) * kAlignment;
  Bytes memory(static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole)));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

BufferRaceCheck::BufferRaceCheck(std::string_view what, double longest_ms, std::uint64_t draw)
    : what_(what), delay_ms_(longest_ms * (0.5 + static_cast<double>(mix64(draw) % 1024) / 2048)) {}

BufferRaceCheck::~BufferRaceCheck() {
  if (is_finished_) return;
  for (const Result& result : results_) move_bytes(result.user, result.before.get(), result.bytes);
}

Buffer BufferRaceCheck::copy_of(const Buffer& user) {
  copies_.push_back(allocate(user.bytes()));
  move_bytes(copies_.back().get(), user.data, user.bytes());
  return {copies_.back().get(), user.elems, user.dtype, user.device};
}

void BufferRaceCheck::watch_input(const std::byte* user, std::int64_t bytes) {
  if (bytes == 0) return;
  Bytes expected = allocate(bytes);
  move_bytes(expected.get(), user, bytes);
  watched_.push_back({user, std::move(expected), bytes, "input"});
}

void BufferRaceCheck::watch_output(std::byte* user, std::int64_t bytes) {
  if (bytes == 0) return;
  hide({user, bytes, DType::u8, DeviceKind::cpu});
  watched_.push_back({user, nullptr, bytes, "output"});
}

Buffer BufferRaceCheck::input(const Buffer& user) {
  const Buffer made = copy_of(user);
  watch_input(static_cast<const std::byte*>(user.data), user.bytes());
  return made;
}

Buffer BufferRaceCheck::output(const Buffer& user, const Buffer& spared) {
  const Buffer made = copy_of(user);
  auto* const begin = static_cast<std::byte*>(user.data);
  Bytes before = allocate(user.bytes());
  move_bytes(before.get(), user.data, user.bytes());
  results_.push_back({begin, static_cast<const std::byte*>(made.data), user.bytes(), std::move(before)});
  if (spared.empty()) {
    watch_output(begin, user.bytes());
    return made;
  }
  auto* const kept = static_cast<std::byte*>(spared.data);
  watch_input(kept, spared.bytes());
  watch_output(begin, kept - begin);
  watch_output(kept + spared.bytes(), user.bytes() - spared.bytes() - (kept - begin));
  return made;
}

Buffer BufferRaceCheck::same_place(const Buffer& slice, const Buffer& user, const Buffer& copy) {
  const std::ptrdiff_t offset = static_cast<const std::byte*>(slice.data) - static_cast<const std::byte*>(user.data);
  return {static_cast<std::byte*>(copy.data) + offset, slice.elems, slice.dtype, slice.device};
}

void BufferRaceCheck::hide(const Buffer& buffer) {
  std::fill_n(static_cast<std::byte*>(buffer.data), buffer.bytes(), kPattern);
}

void BufferRaceCheck::check(const Watched& watched) const {
  for (std::int64_t i = 0; i < watched.bytes; ++i) {
    if (watched.user[i] == (watched.expected ? watched.expected.get()[i] : kPattern)) continue;
    throw Error(ExitCode::internal,
                fmt::format("an {} of {} was written while the operation used it, at byte {}", watched.kind, what_, i),
                "", "let the writer wait for the operation's event");
  }
}

void BufferRaceCheck::finish() {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(delay_ms_));
  for (const Watched& watched : watched_) check(watched);
  is_finished_ = true;
  for (const Result& result : results_) move_bytes(result.user, result.copy, result.bytes);
}

// The operations of a Communicator on private copies.

void Communicator::checked_all_gather(const Ticket& ticket, Buffer shard, Buffer full, const Exchange& gather) {
  BufferRaceCheck race_check = make_race_check(ticket);
  const bool in_place = full.slice(rank() * shard.elems, shard.elems).data == shard.data;
  const Buffer whole = race_check.output(full, in_place ? shard : Buffer{});
  gather(in_place ? BufferRaceCheck::same_place(shard, full, whole) : race_check.input(shard), whole);
  race_check.finish();
}

void Communicator::checked_reduce_scatter(const Ticket& ticket, Buffer full, Buffer shard, const Exchange& reduce) {
  BufferRaceCheck race_check = make_race_check(ticket);
  const bool in_place = full.slice(rank() * shard.elems, shard.elems).data == shard.data;
  if (!in_place) {
    const Buffer out = race_check.output(shard);
    reduce(race_check.input(full), out);
  } else {
    // Slices of other ranks are inputs only.
    const Buffer whole = race_check.copy_of(full), result = race_check.output(shard);
    race_check.input(full.slice(0, rank() * shard.elems));
    race_check.input(full.slice((rank() + 1) * shard.elems, full.elems - (rank() + 1) * shard.elems));
    const Buffer slice = BufferRaceCheck::same_place(shard, full, whole);
    reduce(whole, slice);
    move_bytes(static_cast<std::byte*>(result.data), slice.data, slice.bytes());
  }
  race_check.finish();
}

void Communicator::checked_all_reduce(const Ticket& ticket, Buffer data, ReduceOp op, void* scratch) {
  BufferRaceCheck race_check = make_race_check(ticket);
  do_all_reduce(ticket.tag, race_check.output(data), op, scratch);
  race_check.finish();
}

void Communicator::checked_broadcast(const Ticket& ticket, Buffer data, int root) {
  BufferRaceCheck race_check = make_race_check(ticket);
  do_broadcast(ticket.tag, root == rank() ? race_check.input(data) : race_check.output(data), root);
  race_check.finish();
}

void Communicator::checked_exchange(const Ticket& ticket, Buffer in, Buffer out, const Exchange& exchange) {
  BufferRaceCheck race_check = make_race_check(ticket);
  const Buffer results = race_check.output(out);
  exchange(race_check.input(in), results);
  race_check.finish();
}

/// The window is everybody's: all that can be watched there is this rank's own slice. A shard that lies elsewhere is
/// put there at the end, before the others may read it.
void Communicator::checked_publish(const Ticket& ticket, Buffer shard, Buffer slice) {
  BufferRaceCheck race_check = make_race_check(ticket);
  const Buffer input = race_check.input(shard);
  if (slice.data == shard.data) {
    do_barrier(ticket.tag);
    return race_check.finish();
  }
  move_bytes(static_cast<std::byte*>(race_check.output(slice).data), input.data, input.bytes());
  race_check.finish();
  do_barrier(ticket.tag);
}

BufferRaceCheck Communicator::make_race_check(const Ticket& ticket) const {
  return {ticket.tag.text(), race_check_delay_ms_,
          ticket.sequence ^ group_name_.name << 8 ^ static_cast<std::uint64_t>(rank())};
}

}  // namespace zs
