#include "comm/health/heartbeat_exchange.h"

#include <catch2/catch.hpp>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>

namespace heartbeat_exchange_test {

using namespace zs;
using Bytes = std::vector<char>;

namespace {

/// All of them lead to this machine.
HeartbeatExchange::Address loopback(int number) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, static_cast<std::uint8_t>(number)};
}
const HeartbeatExchange::Address kLoopback = loopback(1);

/// The watchers of ranks on hosts as told, reached on this machine.
struct Watchers {
  explicit Watchers(const std::vector<int>& hosts) {
    std::vector<HeartbeatExchange::Offer> offers;
    for (std::size_t r = 0; r < hosts.size(); ++r) {
      heartbeats.push_back(std::make_unique<HeartbeatExchange>(std::vector{kLoopback}));
      REQUIRE(heartbeats.back()->problem().empty());
      offers.push_back(heartbeats.back()->offer());
    }
    for (std::size_t r = 0; r < hosts.size(); ++r) heartbeats[r]->join(static_cast<int>(r), offers, HostMap(hosts));
  }
  HeartbeatExchange& operator[](std::size_t rank) { return *heartbeats[rank]; }
  std::vector<std::unique_ptr<HeartbeatExchange>> heartbeats;
};

/// A socket that is no rank's: it keeps what it is sent, and sends anything.
class Stranger {
 public:
  explicit Stranger(int number = 1, std::uint16_t wanted_port = 0)
      : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = at(wanted_port, number);
    socklen_t length = sizeof own;
    REQUIRE(bind(socket_, reinterpret_cast<const sockaddr*>(&own), length) == 0);
    REQUIRE(getsockname(socket_, reinterpret_cast<sockaddr*>(&own), &length) == 0);
    port = ntohs(own.sin_port);
  }
  ~Stranger() { close(socket_); }
  void send(const Bytes& bytes, std::uint16_t to_port) const {
    const sockaddr_in to = at(to_port);
    REQUIRE(sendto(socket_, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) ==
            std::ssize(bytes));
  }
  Bytes next() const {
    Bytes bytes(65536);
    const auto length = recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
    return bytes;
  }
  std::uint16_t port = 0;

 private:
  static sockaddr_in at(std::uint16_t port, int number = 1) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + static_cast<in_addr_t>(number));
    return address;
  }
  int socket_;
};

RankView a_view(int rank) {
  return {.rank = rank,
          .pid = 4321,
          .state = 'T',
          .has_page = true,
          .phase = Phase::step,
          .has_left = true,
          .step = 41,
          .heartbeat_age_s = 3.25,
          .still_s = 4.5,
          .host_waits = true,
          .host = "reading data",
          .streams = "compute: gelu",
          .unfinished = {{7, 9, 4, "all_gather(blocks.3)"}, {8, 2, 2, ""}},
          .last_started = {{7, 9, 4, ""}, {8, 2, 2, ""}, {9, 1, 2, ""}}};
}

/// What rank 1, on a host of its own, sends when it tells this, and where rank 0 hears it, as if it came from the tap.
struct Tapped {
  HeartbeatExchange listener{std::vector{kLoopback}}, reporter{std::vector{kLoopback}};
  Stranger tap;

  /// `addresses`: how many the teller's host has, of which it offers the first.
  explicit Tapped(std::uint16_t addresses = 1) {
    std::vector<HeartbeatExchange::Offer> offers{listener.offer(), reporter.offer()};
    offers[0].port = offers[1].port = tap.port;
    offers[1].addresses = addresses;
    reporter.join(1, offers, HostMap(std::vector{0, 1}));
    offers[0] = listener.offer();
    listener.join(0, offers, HostMap(std::vector{0, 1}));
  }
  /// As who has the key would send it.
  Bytes hashed(Bytes bytes) const {
    const std::uint64_t none = 0;
    std::memcpy(bytes.data() + 8, &none, sizeof none);
    const std::uint64_t hash = sip_hash(listener.offer().key, std::as_bytes(std::span(bytes)));
    std::memcpy(bytes.data() + 8, &hash, sizeof hash);
    return bytes;
  }
  Bytes told(const RankView& view) {
    reporter.send(std::vector{view});
    Bytes bytes = tap.next();
    REQUIRE_FALSE(bytes.empty());
    return bytes;
  }
  /// What the listener knows after these bytes.
  std::vector<RankView> after(const Bytes& bytes) {
    tap.send(bytes, listener.offer().port);
    listener.receive();
    return listener.views();
  }
};

}  // namespace

TEST_CASE("what is told of a rank comes whole to the first rank of every other host, and to nobody else") {
  Watchers watchers({0, 0, 1, 1, 2});
  const RankView told = a_view(3);
  watchers[3].send(std::vector{told});
  for (auto& one : watchers.heartbeats) one->receive();
  for (const std::size_t other : {1U, 2U, 3U}) CHECK(watchers[other].views().empty());
  for (const std::size_t first : {0U, 4U}) {
    const auto views = watchers[first].views();
    REQUIRE(views.size() == 1);
    const RankView& view = views[0];
    CHECK(view.rank == 3);
    CHECK(view.pid == told.pid);
    CHECK(view.state == 'T');
    CHECK((view.has_page && view.has_left && view.host_waits));
    CHECK(view.phase == Phase::step);
    CHECK(view.step == 41);
    CHECK(view.heartbeat_age_s == told.heartbeat_age_s);
    CHECK(view.still_s == told.still_s);
    CHECK(view.host == told.host);
    CHECK(view.streams == told.streams);
    CHECK(view.unfinished == told.unfinished);
    CHECK(view.last_started == told.last_started);
    CHECK(view.host_name == watchers[3].offer().host.data());
  }
}

TEST_CASE("what is older, or comes twice, does not replace what is newer, nor does it end a silence") {
  Tapped tapped;
  auto view = a_view(1);
  const Bytes before = tapped.told(view);
  view.step = 42;
  const Bytes later = tapped.told(view);
  CHECK(tapped.after(later).at(0).step == 42);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  for (const Bytes& bytes : {before, later}) {
    const auto views = tapped.after(bytes);
    CHECK(views.at(0).step == 42);
    CHECK(views.at(0).silent_s >= 0.03);
  }
}

TEST_CASE("messages of strangers, cut ones and impossible ones are passed over") {
  Tapped tapped;
  const Bytes good = tapped.told(a_view(1));
  const auto with = [&](std::size_t at, auto value) {
    Bytes bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return tapped.hashed(bytes);
  };
  CHECK(tapped.after({}).empty());
  CHECK(tapped.after(Bytes(1)).empty());
  CHECK(tapped.after(Bytes(good.size())).empty());
  CHECK(tapped.after(Bytes(60000, 'x')).empty());
  CHECK(tapped.after(tapped.hashed(Bytes(60000, 'x'))).empty());
  CHECK(tapped.after(with(0, std::uint64_t{1})).empty());  // of another version
  CHECK(tapped.after(tapped.hashed(Bytes(good.begin(), good.end() - 1))).empty());
  CHECK(tapped.after(tapped.hashed(Bytes(good.begin(), good.begin() + 100))).empty());
  Bytes longer = good;
  longer.push_back(0);
  CHECK(tapped.after(tapped.hashed(longer)).empty());
  for (const int rank : {0, -1, 2, 1 << 30}) CHECK(tapped.after(with(48, rank)).empty());  // of this host, or of none
  for (const std::uint32_t ops : {3U, 201U, 0xffffffffU}) {
    CHECK(tapped.after(with(56, ops)).empty());
    CHECK(tapped.after(with(60, ops == 3U ? 4U : ops)).empty());
  }
  CHECK(tapped.after(with(65, std::uint8_t{200})).empty());  // no such phase
  CHECK(tapped.after(good).size() == 1);
}

TEST_CASE("a message is passed over if any of its bits is another than the sender's, who has the job's key") {
  Tapped tapped;
  const Bytes good = tapped.told(a_view(1));
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    REQUIRE(tapped.after(bytes).empty());
  }
  CHECK(Tapped().after(good).empty());  // of another job
  CHECK(tapped.after(good).size() == 1);
}

TEST_CASE("a message is passed over that comes from where nobody of its host has said that it sends from") {
  Tapped tapped;
  const Bytes good = tapped.told(a_view(1));
  const Stranger other_port, other_address(2, tapped.tap.port);
  for (const Stranger* stranger : {&other_port, &other_address}) {
    stranger->send(good, tapped.listener.offer().port);
    tapped.listener.receive();
    CHECK(tapped.listener.views().empty());
    CHECK_FALSE(tapped.listener.has_report());
  }
  CHECK(tapped.after(good).size() == 1);
  // Of a host of more addresses than an offer has room for, not all are known.
  Tapped many(100);
  const Stranger unknown_address(2, many.tap.port);
  unknown_address.send(many.told(a_view(1)), many.listener.offer().port);
  many.listener.receive();
  CHECK(many.listener.views().size() == 1);
}

TEST_CASE("the word of the end counts only whole, and with the job's key") {
  Tapped tapped, other_job;
  Bytes forged = tapped.told(a_view(1));
  tapped.reporter.broadcast_end("rank 1 has died");
  const Bytes end = tapped.tap.next();
  CHECK(other_job.after(end).empty());
  CHECK_FALSE(other_job.listener.has_report());
  forged[69] = 1;  // is_end
  CHECK(tapped.after(forged).empty());
  CHECK_FALSE(tapped.listener.has_report());
  tapped.after(end);
  CHECK(tapped.listener.has_report());
}

TEST_CASE("the hash of messages has the published values") {
  const SipKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::array<std::byte, 15> message{};
  for (std::size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i);
  for (const auto& [bytes, hash] : std::vector<std::pair<std::size_t, std::uint64_t>>{
           {0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd}, {8, 0x93f5f5799a932462}, {15, 0xa129ca6149be45e5}}) {
    CHECK(sip_hash(key, std::span(message).first(bytes)) == hash);
  }
}

TEST_CASE("of a rank of more groups than a message has room for the largest are told") {
  Tapped tapped;
  auto view = a_view(1);
  view.last_started.resize(198, {1, 1, 2, ""});
  CHECK(tapped.after(tapped.told(view)).at(0).last_started.size() == 198);
  view.last_started.resize(1000, {1, 1, 2, ""});
  view.last_started.push_back({3, 5, 4, ""});
  const auto received = tapped.after(tapped.told(view));
  CHECK(received.at(0).unfinished == view.unfinished);
  REQUIRE(received.at(0).last_started.size() == 198);
  CHECK(received.at(0).last_started.at(0).size == 4);
  CHECK_FALSE(received.at(0).lacks_groups);
  CHECK(received.at(0).last_started.at(1) == view.last_started.back());
  view.unfinished.resize(1000, {1, 1, 2, ""});
  CHECK(tapped.after(tapped.told(view)).at(0).unfinished.size() == 100);
  view.last_started.assign(1000, {3, 5, 4, ""});
  CHECK(tapped.after(tapped.told(view)).at(0).lacks_groups);
}

TEST_CASE("that one host has told why the job ends is known on the others") {
  Watchers watchers({0, 0, 1, 2});
  CHECK_FALSE(watchers[0].has_report());
  watchers[3].broadcast_end("rank 3 has died");
  for (auto& one : watchers.heartbeats) one->receive();
  for (const std::size_t first : {0U, 2U}) {
    CHECK(watchers[first].has_report());
    CHECK(watchers[first].reason() == "rank 3 has died");
    CHECK(watchers[first].views().empty());
  }
  CHECK_FALSE(watchers[1].has_report());
}

TEST_CASE("one host tells: the culprit's own, then the first that is heard") {
  Watchers watchers({0, 1, 2, 3});
  const Diagnosis stopped{Diagnosis::Kind::stopped, 2, 0}, silent{Diagnosis::Kind::silent, 0, 1};
  CHECK(watchers[2].report_delay_s(stopped) == 0);
  for (const std::size_t rank : {1U, 2U, 3U}) watchers[rank].send(std::vector{a_view(static_cast<int>(rank))});
  for (auto& one : watchers.heartbeats) one->receive();
  CHECK(watchers[0].report_delay_s(stopped) > 0);
  CHECK(watchers[1].report_delay_s(stopped) == watchers[0].report_delay_s(stopped));  // it has not heard of host 0
  CHECK(watchers[3].report_delay_s(stopped) > watchers[1].report_delay_s(stopped));
  CHECK(watchers[1].report_delay_s(silent) == 0);
  CHECK(watchers[2].report_delay_s(silent) > 0);
}

TEST_CASE("where there is no address that others could reach, that is said, and nothing is sent") {
  HeartbeatExchange lonely(std::vector<HeartbeatExchange::Address>{});
  CHECK(lonely.offer().port == 0);
  CHECK(lonely.problem().find("address") != std::string::npos);
  for (const HeartbeatExchange::Address& address : HeartbeatExchange::own_addresses()) CHECK(address != kLoopback);
}

}  // namespace heartbeat_exchange_test
