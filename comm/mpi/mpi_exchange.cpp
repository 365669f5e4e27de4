#include "comm/mpi/mpi_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace zs {
namespace {

constexpr int kFirstTag = 1, kChunkTag = 2;  // messages of one pair and tag do not overtake each other
constexpr double kAbandonTimeout_s = 1;
// Bytes of an operation that tells a link's speed; of less the way there and back is a large part.
constexpr std::int64_t kTellsSpeedFrom = std::int64_t{1} << 20;

}  // namespace

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  const bool known = MPI_Error_string(code, text.data(), &length) == MPI_SUCCESS;
  throw Error(ExitCode::peer_lost, fmt::format("{} failed: {}", call, known ? text.data() : "unknown error"));
}

MpiExchange::MpiExchange(MPI_Comm comm, double timeout_s) : comm_(comm), timeout_s_(timeout_s) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  const auto ranks = static_cast<std::size_t>(size_);
  incoming_.resize(ranks * kFirstMessageBytes);
  outgoing_.resize(ranks * kFirstMessageBytes);
  peers_.resize(ranks);
  progress_.resize(ranks);
  requests_.assign(ranks * kLanes, MPI_REQUEST_NULL);
  indices_.resize(ranks * kLanes);
}

MpiExchange::~MpiExchange() {
  // Messages of a failed operation may still be on their way: MPICH would let them into the next communicator, to which
  // it gives the number of one that is freed.
  if (has_failed_) return;
  int finalized = 0;
  // A communicator that cannot be freed any more is MPI's to clean up: nothing to do about either code.
  if (MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized && MPI_Comm_free(&comm_) != MPI_SUCCESS)
    comm_ = MPI_COMM_NULL;
}

MPI_Comm MpiExchange::split_off(int color, int key) const {
  ZS_CHECK(color >= 0, "a split by color {}", color);
  MPI_Comm part = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(comm_, color, key, &part), "MPI_Comm_split");
  return part;
}

std::vector<int> MpiExchange::ranks_of(MPI_Comm part) const {
  MPI_Group whole = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(comm_, &whole), "MPI_Comm_group");
  check_mpi(MPI_Comm_group(part, &some), "MPI_Comm_group");
  int count = 0;
  check_mpi(MPI_Group_size(some, &count), "MPI_Group_size");
  std::vector<int> numbers(static_cast<std::size_t>(count)), ranks(numbers.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  check_mpi(MPI_Group_translate_ranks(some, count, numbers.data(), whole, ranks.data()), "MPI_Group_translate_ranks");
  check_mpi(MPI_Group_free(&some), "MPI_Group_free");
  check_mpi(MPI_Group_free(&whole), "MPI_Group_free");
  return ranks;
}

std::span<MpiExchange::Peer> MpiExchange::prepare() {
  std::fill(peers_.begin(), peers_.end(), Peer{});
  return peers_;
}

void MpiExchange::run(const OpTag& tag, const OrderedReduction* reduction) {
  if (has_failed_) {
    throw Error(ExitCode::peer_lost,
                fmt::format("rank {}: {} on a communicator that has failed before", rank_, tag.text()));
  }
  tag_ = tag;
  reduction_ = reduction;
  chunk_bytes_ = reduction ? reduce_chunk_bytes(size_) : kPlacedChunkBytes;
  reduced_ = 0;
  std::fill(progress_.begin(), progress_.end(), Progress{});
  try {
    start();
    if (reduction_) reduce_what_is_complete();
    poll_to_the_end();
    note_speed();
  } catch (...) {
    has_failed_ = true;
    abandon();
    throw;
  }
}

void MpiExchange::start() {
  missing_ = size_ - 1;
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ - step + size_) % size_;
    check_mpi(MPI_Irecv(first_message(incoming_, peer), kFirstMessageBytes, MPI_BYTE, peer, kFirstTag, comm_,
                        &request(first_in, peer)),
              "MPI_Irecv");
  }
  for (int step = 1; step < size_; ++step) {  // every rank begins with another peer
    const int peer = (rank_ + step) % size_;
    std::byte* message = first_message(outgoing_, peer);
    std::memcpy(message, &tag_, sizeof tag_);
    const bool small = at(peer).send_bytes <= kInlineBytes;
    if (small) copy_bytes(message + sizeof tag_, at(peer).send, at(peer).send_bytes);
    const auto bytes = static_cast<int>(sizeof tag_) + static_cast<int>(small ? at(peer).send_bytes : 0);
    check_mpi(MPI_Isend(message, bytes, MPI_BYTE, peer, kFirstTag, comm_, &request(first_out, peer)), "MPI_Isend");
    sent_bytes_.fetch_add(at(peer).send_bytes, std::memory_order_relaxed);
    if (!small && at(peer).send_bytes <= kEagerBytes) pump_sends(peer);
  }
}

void MpiExchange::poll_to_the_end() {
  Backoff backoff(timeout_s_, busiest_way_bytes() < kTellsSpeedFrom ? Backoff::kLongestSleep : longest_sleep_);
  for (int pauses = 1;; ++pauses) {
    int count = 0;
    check_mpi(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(),
                           MPI_STATUSES_IGNORE),
              "MPI_Testsome");
    if (count == MPI_UNDEFINED) return;  // nothing is under way: every completion has posted what follows it
    for (int i = 0; i < count; ++i) completed(indices_[static_cast<std::size_t>(i)]);
    if (count > 0) {
      backoff.restart();
      pauses = 0;
    } else if (!backoff.pause()) {
      throw waited_in_vain(tag_.text(), rank_, timeout_s_, list_of(waited_for()));
    }
    if (pauses % Backoff::kPausesBetweenChecks == Backoff::kPausesBetweenChecks - 1) check_for_the_dead();
  }
}

/// Bytes that this rank sends, or that it receives: the larger.
std::int64_t MpiExchange::busiest_way_bytes() const {
  std::int64_t sent = 0, received = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    sent += peers_[static_cast<std::size_t>(peer)].send_bytes;
    received += peers_[static_cast<std::size_t>(peer)].receive_bytes;
  }
  return std::max(sent, received);
}

/// Notes the speed from when every peer was there: what one comes late says nothing of the links.
void MpiExchange::note_speed() {
  const std::int64_t bytes = busiest_way_bytes();
  if (bytes >= kTellsSpeedFrom) longest_sleep_ = longest_sleep(bytes, std::chrono::steady_clock::now() - all_came_);
}

void MpiExchange::completed(int index) {
  const int lane = index / size_, peer = index % size_;
  if (lane == first_in) return first_message_came(peer);
  if (lane > first_out) return pump_sends(peer);
  if (lane == first_out) return;
  if (reduction_) reduce_what_is_complete();
  pump_receives(peer);
}

void MpiExchange::first_message_came(int peer) {
  if (--missing_ == 0) all_came_ = std::chrono::steady_clock::now();
  OpTag theirs;
  const std::byte* message = first_message(incoming_, peer);
  std::memcpy(&theirs, message, sizeof theirs);
  if (theirs.hash != tag_.hash) throw ranks_disagree(rank_, tag_, peer, theirs);
  if (at(peer).send_bytes > kEagerBytes) pump_sends(peer);  // before the receives
  if (at(peer).receive_bytes > kInlineBytes) return pump_receives(peer);
  if (at(peer).receive_bytes == 0) return;
  copy_bytes(destination(peer, 0), message + sizeof theirs, at(peer).receive_bytes);
  progress(peer).received = 1;
  if (reduction_) reduce_what_is_complete();
}

void MpiExchange::pump_sends(int peer) {
  std::int64_t& next = progress(peer).sent;
  for (; next * chunk_bytes_ < at(peer).send_bytes; ++next) {
    MPI_Request& lane = chunk_request(out, next, peer);
    if (lane != MPI_REQUEST_NULL) return;
    const std::int64_t offset = next * chunk_bytes_, bytes = std::min(chunk_bytes_, at(peer).send_bytes - offset);
    check_mpi(MPI_Isend(at(peer).send + offset, static_cast<int>(bytes), MPI_BYTE, peer, kChunkTag, comm_, &lane),
              "MPI_Isend");
  }
}

void MpiExchange::pump_receives(int peer) {
  std::int64_t& next = progress(peer).received;
  for (; next * chunk_bytes_ < at(peer).receive_bytes; ++next) {
    if (reduction_ && next >= reduced_ + kMessageSlots) return;  // its scratch still holds a chunk that is not reduced
    MPI_Request& lane = chunk_request(in, next, peer);
    if (lane != MPI_REQUEST_NULL) return;
    const std::int64_t bytes = std::min(chunk_bytes_, at(peer).receive_bytes - next * chunk_bytes_);
    check_mpi(MPI_Irecv(destination(peer, next), static_cast<int>(bytes), MPI_BYTE, peer, kChunkTag, comm_, &lane),
              "MPI_Irecv");
  }
}

void MpiExchange::reduce_what_is_complete() {
  const std::int64_t part_size = size_of(reduction_->part_dtype), out_size = size_of(reduction_->out_dtype);
  const std::int64_t chunk_elems = chunk_bytes_ / part_size, chunks = chunks_in(reduction_->elems, chunk_elems),
                     before = reduced_;
  for (; reduced_ < chunks; ++reduced_) {
    parts_.clear();
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && !chunk_is_complete(r, reduced_)) break;
      parts_.push_back(r == rank_ ? reduction_->own + reduced_ * chunk_bytes_ : destination(r, reduced_));
    }
    if (static_cast<int>(parts_.size()) < size_) break;
    const std::int64_t begin = reduced_ * chunk_elems;
    std::byte* out = reduction_->out + begin * out_size;
    ordered_reduce({parts_, reduction_->part_dtype, reduction_->accumulate ? out : nullptr, out, reduction_->out_dtype,
                    std::min(chunk_elems, reduction_->elems - begin), reduction_->op});
  }
  if (reduced_ == before) return;
  // A chunk was complete, so every peer's first message has come and agrees.
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) pump_receives(r);
  }
}

bool MpiExchange::chunk_is_complete(int peer, std::int64_t chunk) {
  return progress(peer).received > chunk && chunk_request(in, chunk, peer) == MPI_REQUEST_NULL;
}

std::byte* MpiExchange::destination(int peer, std::int64_t chunk) {
  if (!reduction_) return at(peer).receive + chunk * chunk_bytes_;
  // [slot][peer without this rank][room]
  const std::int64_t room = room_for_chunk(reduction_->elems * size_of(reduction_->part_dtype), chunk_bytes_);
  return static_cast<std::byte*>(reduction_->scratch) +
         (chunk % kMessageSlots * (size_ - 1) + peer - (peer > rank_ ? 1 : 0)) * room;
}

void MpiExchange::check_for_the_dead() const {
  if (!has_died_) return;
  for (const int rank : waited_for()) {
    if (!has_died_(rank)) continue;
    throw GroupEnded(ExitCode::peer_lost,
                     fmt::format("{} waited for rank {}, whose process has ended", tag_.text(), rank),
                     fmt::format("rank {}", rank_), kAfterADeath);
  }
}

std::vector<int> MpiExchange::waited_for() const {
  std::vector<int> ranks;
  for (int peer = 0; peer < size_; ++peer) {
    if (is_pending(first_in, first_out, peer)) ranks.push_back(peer);
  }
  if (!ranks.empty()) return ranks;
  for (int peer = 0; peer < size_; ++peer) {
    if (is_pending(first_out, kLanes, peer)) ranks.push_back(peer);
  }
  return ranks;
}

bool MpiExchange::is_pending(int begin, int end, int peer) const {
  for (int lane = begin; lane < end; ++lane) {
    if (requests_[static_cast<std::size_t>(lane * size_ + peer)] != MPI_REQUEST_NULL) return true;
  }
  return false;
}

/// Abandons the exchange after a failure: takes the receives back, so that nothing writes into buffers any more. Sends
/// cannot be taken back; those that nobody receives are let go.
void MpiExchange::abandon() noexcept {
  bool taken_back = true;
  for (int lane = first_in; lane < first_out; ++lane) {
    for (int peer = 0; peer < size_; ++peer) {
      MPI_Request& pending = request(lane, peer);
      if (pending != MPI_REQUEST_NULL) taken_back = MPI_Cancel(&pending) == MPI_SUCCESS && taken_back;
    }
  }
  Backoff backoff(kAbandonTimeout_s);
  int done = 0;
  while (taken_back && !done && backoff.pause()) {
    taken_back =
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS;
  }
  for (MPI_Request& pending : requests_) {
    if (pending != MPI_REQUEST_NULL && MPI_Request_free(&pending) != MPI_SUCCESS) pending = MPI_REQUEST_NULL;
  }
}

}  // namespace zs
