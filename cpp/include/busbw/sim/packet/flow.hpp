/// A flow as its source and its receiver know it, and the pacers of receivers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "busbw/sim/packet/packet_pool.hpp"
#include "busbw/sim/time.hpp"

namespace busbw::sim::packet {

struct Flow {
  // source
  std::uint32_t forward;
  std::uint32_t link;           ///< its first
  std::uint32_t packets;
  std::uint32_t next_new = 0;
  std::uint32_t acknowledged = 0;
  std::int32_t credit = 0;      ///< kNdp: packets that may go; kEqds: bytes
  std::int32_t speculative = 0; ///< kEqds: bytes that may go before the receiver is heard
  std::uint32_t in_flight = 0;  ///< packets
  PacketList again;
  std::uint32_t ready_next = kNone;
  std::uint32_t cycle = 0;      ///< paths taken so far
  std::uint16_t last_bytes;     ///< payload of the last packet
  std::uint8_t lane;
  bool started = false;
  bool ready = false;
  bool heard = false;
  bool complete = false;
  bool paced = false;           ///< a kPace event is pending
  Picoseconds next_send{0};
  Picoseconds heard_at{0};
  std::uint32_t paths = 1;
  std::uint32_t paths_back = 1;
  // receiver
  std::uint32_t backward;
  std::uint32_t pacer;          ///< the first link of the way back
  std::uint32_t received = 0;
  std::uint32_t expected = 0;   ///< in order: the next number; else the highest seen, plus one
  std::uint32_t pulls = 0;      ///< kNdp: owed to the source
  std::int64_t bitmap;          ///< first word in received_
  bool in_pull_ring = false;
  bool in_again_ring = false;
  bool in_idle_ring = false;
  bool told_gap = false;
  bool all_in = false;
  std::uint8_t silences = 0;    ///< timeouts in a row
  std::uint32_t cycle_back = 0;
  std::int64_t pulled = 0;      ///< kEqds: credit given, bytes
  std::int64_t wanted = 0;      ///< kEqds: credit asked for
  std::int64_t owed_again = 0;  ///< kEqds: credit for what was trimmed
  std::int64_t unacknowledged = 0;
  Picoseconds last_notified{-1};
  Picoseconds base_rtt{0};
  std::int64_t pull_seen = 0;   ///< kEqds at the source: credit received
};

/// A receiver's pacer: pulls go out no faster than packets can come in.
struct Pacer {
  std::vector<std::uint32_t> ring;        ///< flows with pulls due, first in first out from ring_at
  std::size_t ring_at = 0;
  std::vector<std::uint32_t> again_ring;  ///< flows that lost payloads, served first
  std::size_t again_at = 0;
  std::vector<std::uint32_t> idle_ring;   ///< kEqds: flows whose wishes are met, served last
  std::size_t idle_at = 0;
  Picoseconds interval{0};
  Picoseconds next{0};                    ///< no pull before
  bool pending = false;

  bool idle() const { return ring_at == ring.size() && again_at == again_ring.size() && idle_at == idle_ring.size(); }
  static void add(std::vector<std::uint32_t>& queue, std::size_t& at, std::uint32_t flow) {
    if (at == queue.size() || at > 4096) {
      queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(at));
      at = 0;
    }
    queue.push_back(flow);
  }
};

}  // namespace busbw::sim::packet
