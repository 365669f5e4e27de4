#include "comm/health/heartbeat_exchange.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "runtime/base/check.h"

namespace zs {
namespace {

constexpr std::uint64_t kMagic = 0x7a736e6577733033;       // "zsnews03": another layout needs another one
constexpr std::size_t kOps = 200, kUnfinished = kOps / 2;  // that a message has room for; that are sent at most
constexpr int kMostAtOnce = 4096;                          // messages taken in by one poll
constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

template <std::size_t N>
void put(std::array<char, N>& to, std::string_view text) {
  to = {};
  std::copy_n(text.begin(), std::min(text.size(), N - 1), to.begin());
}

template <std::size_t N>
std::string got(const std::array<char, N>& from) {
  return {from.data(), strnlen(from.data(), N)};
}

HeartbeatExchange::Address mapped(const in_addr& address) {
  HeartbeatExchange::Address made{};
  std::copy(kMapped.begin(), kMapped.end(), made.begin());
  std::memcpy(made.data() + kMapped.size(), &address, sizeof address);
  return made;
}

std::span<const HeartbeatExchange::Address> addresses_of(const HeartbeatExchange::Offer& offer) {
  return std::span(offer.address)
      .first(offer.port == 0 ? 0 : std::min<std::size_t>(offer.addresses, HeartbeatExchange::Offer::kAddresses));
}

/// Whom a message has come from, as an IPv6 socket says it.
HeartbeatExchange::Address address_of(const sockaddr_in6& sender) {
  HeartbeatExchange::Address found{};
  if (sender.sin6_family == AF_INET) {
    sockaddr_in four{};
    std::memcpy(&four, &sender, sizeof four);
    return mapped(four.sin_addr);
  }
  std::memcpy(found.data(), &sender.sin6_addr, found.size());
  return found;
}

/// Cuts a view with many groups to the largest: of a smaller one a rank may not be a member, so that nothing is
/// concluded from its absence.
RankView cut_to_fit(RankView view) {
  if (view.unfinished.size() + view.last_started.size() <= kOps) return view;
  view.unfinished.resize(std::min(view.unfinished.size(), kUnfinished));
  std::stable_sort(view.last_started.begin(), view.last_started.end(),
                   [](const OpView& a, const OpView& b) { return a.size > b.size; });
  const auto kept = static_cast<std::ptrdiff_t>(std::min(view.last_started.size(), kOps - view.unfinished.size()));
  view.lacks_groups = std::any_of(view.last_started.begin() + kept, view.last_started.end(),
                                  [&](const OpView& cut) { return cut.size == view.last_started.front().size; });
  view.last_started.resize(static_cast<std::size_t>(kept));
  return view;
}

/// An address as a socket of a family takes it.
struct Target {
  sockaddr_in6 any{};  // the larger one
  socklen_t length = sizeof(sockaddr_in6);

  const sockaddr* address() const { return reinterpret_cast<const sockaddr*>(&any); }
  /// True if the address has that family.
  bool find(int family, const HeartbeatExchange::Address& wanted, std::uint16_t port) {
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(port);
    std::memcpy(&any.sin6_addr, wanted.data(), wanted.size());
    if (family == AF_INET6) return true;
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    std::memcpy(&four.sin_addr, wanted.data() + kMapped.size(), sizeof four.sin_addr);
    std::memcpy(&any, &four, length = sizeof four);
    return std::equal(kMapped.begin(), kMapped.end(), wanted.begin());
  }
};

}  // namespace

/// Message as it travels: all but the end of `ops`. Hosts of a job have one byte order, which is compared at its start.
struct HeartbeatExchange::Message {
  struct Op {
    std::uint64_t group = 0, sequence = 0;
    std::int32_t size = 0, unused = 0;
  };
  std::uint64_t magic = kMagic, hash = 0;  // hash of all bytes that travel, with 0 in this place
  std::int64_t sent_ns = 0;                // by a clock that all senders of the host share: no message counts twice
  std::int64_t step = 0;
  double heartbeat_age_s = 0, still_s = 0;
  std::int32_t rank = 0, pid = 0;
  std::uint32_t unfinished = 0, last_started = 0;  // numbers of ops
  char state = '?';
  Phase phase = Phase::idle;
  std::uint8_t has_page = 0, has_left = 0, host_waits = 0, is_end = 0, lacks_groups = 0, unused = 0;
  std::array<char, 96> doing{}, operation{},
      streams{};  // operation: the first unfinished one's. At the end: the reason
  std::array<Op, kOps> ops{};

  std::size_t bytes() const { return offsetof(Message, ops) + sizeof(Op) * (unfinished + last_started); }
};

std::vector<HeartbeatExchange::Address> HeartbeatExchange::own_addresses() {
  std::vector<Address> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (one->ifa_addr->sa_family == AF_INET) {
      sockaddr_in address{};
      std::memcpy(&address, one->ifa_addr, sizeof address);
      found.push_back(mapped(address.sin_addr));
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      sockaddr_in6 address{};
      std::memcpy(&address, one->ifa_addr, sizeof address);
      if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) continue;
      std::memcpy(found.emplace_back().data(), &address.sin6_addr, sizeof(Address));
    }
  }
  freeifaddrs(first);
  return found;
}

HeartbeatExchange::HeartbeatExchange(const std::vector<Address>& addresses) {
  offer_.addresses = static_cast<std::uint16_t>(std::min<std::size_t>(addresses.size(), UINT16_MAX));
  std::copy_n(addresses.begin(), std::min(addresses.size(), Offer::kAddresses), offer_.address.begin());
  put(offer_.host, name_of_host());
  if (addresses.empty()) {
    problem_ = "no interface has an address that other hosts could reach";
  } else if (getrandom(&offer_.key, sizeof offer_.key, 0) != sizeof offer_.key) {
    problem_ = fmt::format("getrandom: {}", std::strerror(errno));
  } else {
    open_socket();
  }
}

HeartbeatExchange::~HeartbeatExchange() {
  if (socket_ >= 0 && close(socket_) != 0) errno = 0;
}

void HeartbeatExchange::open_socket() {
  problem_ = bind_to(AF_INET6);
  if (!problem_.empty()) problem_ = bind_to(AF_INET);  // the host may have no IPv6
}

/// Empty, or what failed.
std::string HeartbeatExchange::bind_to(int family) {
  const int made = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return fmt::format("socket: {}", std::strerror(errno));
  sockaddr_in6 any{};  // the larger of both; all zero is any address and any port
  any.sin6_family = static_cast<sa_family_t>(family);
  socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  const int off = 0, prefer_public = 2;  // IPV6_PREFER_SRC_PUBLIC: addresses that last, of those that are offered
  const bool is_bound = (family != AF_INET6 || setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0) &&
                        bind(made, reinterpret_cast<const sockaddr*>(&any), length) == 0 &&
                        getsockname(made, reinterpret_cast<sockaddr*>(&any), &length) == 0;
  if (!is_bound) {
    std::string why = fmt::format("bind: {}", std::strerror(errno));
    if (close(made) != 0) errno = 0;
    return why;
  }
  // An address that is replaced some day is not listened to from then on, where the system cannot be asked for that.
  if (family == AF_INET6 &&
      setsockopt(made, IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, &prefer_public, sizeof prefer_public) != 0)
    errno = 0;
  socket_ = made;
  family_ = family;
  offer_.port = ntohs(any.sin6_port);  // sin6_port is where sin_port is
  return {};
}

void HeartbeatExchange::join(int rank, std::vector<Offer> offers, HostMap hosts) {
  ZS_CHECK(static_cast<int>(offers.size()) == hosts.size() && rank < hosts.size(), "{} offers, {} ranks, rank {}",
           offers.size(), hosts.size(), rank);
  rank_ = rank;
  offers_ = std::move(offers);
  hosts_ = std::make_unique<HostMap>(std::move(hosts));
  const std::lock_guard lock(mutex_);
  received_.resize(offers_.size());
}

void HeartbeatExchange::send(std::span<const RankView> ranks) {
  for (const RankView& rank : ranks) {
    const RankView view = cut_to_fit(rank);
    Message message;
    message.step = view.step;
    message.heartbeat_age_s = view.heartbeat_age_s;
    message.still_s = view.still_s;
    message.rank = view.rank;
    message.pid = view.pid;
    message.state = view.state;
    message.phase = view.phase;
    message.has_page = view.has_page;
    message.has_left = view.has_left;
    message.host_waits = view.host_waits;
    message.lacks_groups = view.lacks_groups;
    put(message.doing, view.host);
    put(message.streams, view.streams);
    if (!view.unfinished.empty()) put(message.operation, view.unfinished.front().text);
    Message::Op* next = message.ops.data();
    for (const auto* list : {&view.unfinished, &view.last_started}) {
      for (const OpView& op : *list) *next++ = {op.group, op.sequence, op.size, 0};
    }
    message.unfinished = static_cast<std::uint32_t>(view.unfinished.size());
    message.last_started = static_cast<std::uint32_t>(view.last_started.size());
    broadcast(message);
  }
}

void HeartbeatExchange::broadcast_end(std::string_view reason) noexcept {
  Message message;
  message.is_end = 1;
  message.rank = rank_;
  put(message.operation, reason);
  for (int times = 0; times < 3; ++times) broadcast(message);  // there is no later
}

void HeartbeatExchange::broadcast(Message& message) noexcept {
  message.sent_ns = monotonic_ns();
  message.hash = hash_of(message, message.bytes());
  const int own = hosts_->host_of(rank_);
  for (int host = 0; host < hosts_->hosts(); ++host) {
    if (host != own) send_to(offers_[static_cast<std::size_t>(hosts_->ranks_on(host).front())], message);
  }
}

/// Sends to all of a rank's addresses: which of them lead there is not known.
void HeartbeatExchange::send_to(const Offer& offer, const Message& message) noexcept {
  for (const Address& address : addresses_of(offer)) {
    Target target;
    if (!target.find(family_, address, offer.port)) continue;
    // A message that cannot be sent is as good as lost.
    if (sendto(socket_, &message, message.bytes(), MSG_DONTWAIT | MSG_NOSIGNAL, target.address(), target.length) < 0)
      errno = 0;
  }
}

std::uint64_t HeartbeatExchange::hash_of(const Message& message, std::size_t bytes) const noexcept {
  Message hashed = message;
  hashed.hash = 0;
  return sip_hash(offers_.front().key, std::as_bytes(std::span(&hashed, 1)).first(bytes));
}

void HeartbeatExchange::receive() noexcept {
  Message message;
  for (int taken = 0; taken < kMostAtOnce; ++taken) {
    sockaddr_in6 sender{};  // the larger of both families'
    socklen_t length = sizeof sender;
    const auto bytes = recvfrom(socket_, &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC,
                                reinterpret_cast<sockaddr*>(&sender), &length);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) break;  // nothing more
    if (!is_genuine(message, static_cast<std::size_t>(bytes)) || !has_offered(hosts_->host_of(message.rank), sender))
      continue;
    try {
      take(message);
    } catch (const std::bad_alloc&) {
      return;  // the message is sent again
    }
  }
  errno = 0;
}

/// True if a rank of another host of this job has made the message, and it makes sense.
bool HeartbeatExchange::is_genuine(const Message& message, std::size_t bytes) const noexcept {
  if (bytes < offsetof(Message, ops) || bytes > sizeof message || message.magic != kMagic) return false;
  if (message.hash != hash_of(message, bytes)) return false;
  if (message.unfinished > kOps || message.last_started > kOps - message.unfinished || bytes != message.bytes())
    return false;
  if (message.rank < 0 || message.rank >= hosts_->size() || hosts_->host_of(message.rank) == hosts_->host_of(rank_))
    return false;
  return message.phase <= Phase::ending;
}

/// True if a rank of that host said at the start that it sends from there.
bool HeartbeatExchange::has_offered(int host, const sockaddr_in6& sender) const noexcept {
  const Address address = address_of(sender);
  const auto ranks = hosts_->ranks_on(host);
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    const Offer& offer = offers_[static_cast<std::size_t>(rank)];
    const auto known = addresses_of(offer);
    const bool is_known = std::find(known.begin(), known.end(), address) != known.end();
    return offer.port == ntohs(sender.sin6_port) && (is_known || offer.addresses > Offer::kAddresses);
  });
}

void HeartbeatExchange::take(const Message& message) {
  const std::lock_guard lock(mutex_);
  if (message.is_end != 0) {
    has_report_ = true;
    reason_ = got(message.operation);
    return;
  }
  Received& received = received_[static_cast<std::size_t>(message.rank)];
  if (message.sent_ns <= received.sent_ns) return;  // overtaken on its way, or come twice
  RankView view{.rank = message.rank,
                .pid = message.pid,
                .state = message.state,
                .has_page = message.has_page != 0,
                .phase = message.phase,
                .has_left = message.has_left != 0,
                .step = message.step,
                .heartbeat_age_s = message.heartbeat_age_s,
                .still_s = message.still_s,
                .host_waits = message.host_waits != 0,
                .host = got(message.doing),
                .streams = got(message.streams),
                .unfinished = {},
                .last_started = {},
                .lacks_groups = message.lacks_groups != 0,
                .host_name = got(offers_[static_cast<std::size_t>(message.rank)].host)};
  for (std::uint32_t i = 0; i < message.unfinished + message.last_started; ++i) {
    const Message::Op& op = message.ops[i];
    auto& list = i < message.unfinished ? view.unfinished : view.last_started;
    list.push_back({op.group, op.sequence, op.size, i == 0 && message.unfinished > 0 ? got(message.operation) : ""});
  }
  received = {monotonic_ns(), message.sent_ns, std::move(view)};
}

std::vector<RankView> HeartbeatExchange::views() const {
  const std::lock_guard lock(mutex_);
  std::vector<RankView> views;
  const std::int64_t now = monotonic_ns();
  for (const Received& received : received_) {
    if (received.at_ns == 0) continue;
    views.push_back(received.view);
    views.back().silent_s = static_cast<double>(now - received.at_ns) * 1e-9;
  }
  return views;
}

bool HeartbeatExchange::has_report() const {
  const std::lock_guard lock(mutex_);
  return has_report_;
}

std::string HeartbeatExchange::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

bool HeartbeatExchange::is_received(int host, std::int64_t now) const {
  const auto ranks = hosts_->ranks_on(host);
  return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    const std::int64_t at = received_[static_cast<std::size_t>(rank)].at_ns;
    return at != 0 && static_cast<double>(now - at) * 1e-9 < kSilentAfter_s;
  });
}

double HeartbeatExchange::report_delay_s(const Diagnosis& diagnosis) const {
  constexpr double kTurn_s = 0.5;
  const int own = hosts_->host_of(rank_), culprit = hosts_->host_of(diagnosis.rank);
  if (own == culprit) return 0;
  const std::lock_guard lock(mutex_);
  const std::int64_t now = monotonic_ns();
  int first = 0;
  while (first < own && (first == culprit || !is_received(first, now))) ++first;
  const int turn = (diagnosis.kind == Diagnosis::Kind::silent ? 0 : 1) + (first == own ? 0 : 1);
  return turn * kTurn_s;
}

}  // namespace zs
