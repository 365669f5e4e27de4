#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/health/diagnosis.h"
#include "comm/health/sip_hash.h"
#include "comm/host/host_map.h"
#include "comm/host/interfaces.h"

namespace zs {

/// Heartbeats between the watchdogs of a job's hosts, by UDP: each host sends the status of its own ranks to the first
/// rank of every other host. Nothing is waited for and everything may be lost; it is sent again a second later.
/// Messages carry a hash of their bytes with a key that only the job's ranks know, and come from an address and port
/// that the sender's host has offered: others are passed over. Owned by a Watchdog; any thread, except `join`, which
/// comes first.
class HeartbeatExchange {
 public:
  /// An IPv6 address, or an IPv4 address mapped into one.
  using Address = std::array<std::uint8_t, 16>;
  /// Address by which a rank is reached. A value that ranks exchange as bytes. Port 0: not at all.
  struct Offer {
    static constexpr std::size_t kAddresses = 8;
    SipKey key;  ///< the job's, if this rank is the first
    std::uint16_t port = 0;
    std::uint16_t addresses = 0;  ///< addresses that the host has; only the first of them have room here
    std::array<Address, kAddresses> address{};
    std::array<char, 64> host{};
  };
  /// Addresses of this host's interfaces that others may reach: up, and neither loopback nor of one link.
  static std::vector<Address> own_addresses();

  /// Opens a socket on a port of the system's choice. Where that fails the offer has port 0, and `problem` says why.
  explicit HeartbeatExchange(const std::vector<Address>& addresses = own_addresses());
  ~HeartbeatExchange();
  HeartbeatExchange(const HeartbeatExchange&) = delete;
  HeartbeatExchange& operator=(const HeartbeatExchange&) = delete;
  const Offer& offer() const { return offer_; }
  const std::string& problem() const { return problem_; }
  /// `offers`: of all ranks.
  void join(int rank, std::vector<Offer> offers, HostMap hosts);

  /// Sends what is known of ranks of this host. Of one in more groups than a message has room for, the largest.
  void send(std::span<const RankView> ranks);
  /// Some rank of this host has reported to the user why the job ends.
  void broadcast_end(std::string_view reason) noexcept;
  /// Takes in what has come.
  void receive() noexcept;
  /// States of ranks of other hosts, as received last, with `silent_s`, in their order. Ages are those of the sender:
  /// what is older than it says is younger than it is.
  std::vector<RankView> views() const;
  /// True if another host has reported to the user why the job ends; `reason` may be empty.
  bool has_report() const;
  std::string reason() const;
  /// Seconds for which this host leaves the report of this culprit to others, so that one reports: first its own host,
  /// which sees it, then the first of those that send.
  double report_delay_s(const Diagnosis& diagnosis) const;

 private:
  struct Message;
  struct Received {
    std::int64_t at_ns = 0;    // by this host's clock; 0: never
    std::int64_t sent_ns = 0;  // by the other's
    RankView view = {};
  };
  void open_socket();
  std::string bind_to(int family);
  void broadcast(Message& message) noexcept;
  void send_to(const Offer& offer, const Message& message) noexcept;
  std::uint64_t hash_of(const Message& message, std::size_t bytes) const noexcept;
  bool is_genuine(const Message& message, std::size_t bytes) const noexcept;
  bool has_offered(int host, const sockaddr_in6& sender) const noexcept;
  void take(const Message& message);
  bool is_received(int host, std::int64_t now) const;

  Offer offer_;
  std::string problem_;
  int socket_ = -1, family_ = 0, rank_ = 0;
  std::vector<Offer> offers_;
  std::unique_ptr<HostMap> hosts_;

  mutable std::mutex mutex_;        // guards what follows; held for moments
  std::vector<Received> received_;  // by rank
  bool has_report_ = false;
  std::string reason_;
};

}  // namespace zs
