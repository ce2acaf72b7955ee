/// What packets travel through: routes as a graph of choices, links with their queues, flows between hosts. Columns in, columns out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "busbw/sim/packet/packet_pool.hpp"
#include "busbw/sim/time.hpp"

namespace busbw::sim::packet {

/// Where packets may go. A node is a vertex on the way to one destination; choice c of node n is first[n] + c: the link taken and the node at
/// its end, kNone at the destination. Flows that share vertex and destination share nodes.
struct Routes {
  std::vector<std::uint32_t> first;  ///< one more than nodes
  std::vector<std::uint32_t> link;
  std::vector<std::uint32_t> node;
};

struct LinkColumns {
  std::vector<double> bytes_per_s;
  std::vector<std::int64_t> latency_ps;
};

struct FlowColumns {
  std::vector<std::uint32_t> forward;  ///< node where data begins, kNone if source and destination are one
  std::vector<std::uint32_t> backward; ///< node where acknowledgements begin
  std::vector<std::int64_t> bytes;
  std::vector<std::int64_t> start_ps;
  std::vector<std::int32_t> lane;      ///< virtual lane, 0 to lanes - 1
};

inline constexpr std::size_t kMostLanes = 4;
inline constexpr std::size_t kClasses = 1 + kMostLanes;  ///< control first, then a lane each

/// A directed link with the queue before it. What every packet touches lies in the first 64 bytes.
struct alignas(128) Link {
  struct Queue {
    PacketList packets;
    std::int32_t bytes = 0;  ///< waiting, not being sent
  };
  Picoseconds busy_until{0};
  Picoseconds latency{0};
  std::uint64_t ps_per_byte = 0;  ///< in units of 2^-20
  std::int64_t sent_bytes = 0;
  std::uint8_t waiting = 0;       ///< bit c: class c has packets
  std::uint8_t paused = 0;        ///< bit c: the far end has told class c to stop
  bool serve_pending = false;     ///< an event will come when it is free
  bool ready = false;             ///< it is the first of flows that may send
  std::uint16_t sending = 0;      ///< bytes of data of the packet on its way, counted as queued while it is
  std::uint8_t next_lane = 0;
  bool told_to_pause = false;     ///< its far end has
  Queue control;
  std::array<Queue, kMostLanes> lanes;  ///< the first lies in the first 64 bytes too
  std::uint32_t ready_head = kNone;  ///< flows that may send, round robin
  std::uint32_t ready_tail = kNone;
  std::int32_t brought = 0;          ///< PFC: bytes in the switch at its end that it brought
  std::uint32_t packets = 0;         ///< sent, modulo 2^32

  Queue& queue(std::size_t c) { return c == 0 ? control : lanes[c - 1]; }
  const Queue& queue(std::size_t c) const { return c == 0 ? control : lanes[c - 1]; }
  std::int64_t data_bytes() const {
    if (waiting < 4) return lanes[0].bytes;
    std::int64_t sum = 0;
    for (const Queue& one : lanes) sum += one.bytes;
    return sum;
  }
};
static_assert(sizeof(Link) == 128);

/// What is told of a link at the end.
struct LinkCounts {
  std::int64_t dropped = 0;
  std::int64_t trimmed = 0;
  std::int64_t marked = 0;
  std::int64_t pauses = 0;             ///< it was told to stop
  std::int64_t paused_ps = 0;          ///< for how long; with credit: for how long the head of its queue waited for room
  std::int64_t stopped_at = -1;
  std::int64_t most_queued_bytes = 0;  ///< of data, what is being sent included; 0 if no packet ever waited
};

struct FlowResult {
  std::int64_t delivered_ps = -1;  ///< the last byte is at its destination; -1: not yet
  std::int64_t completed_ps = -1;  ///< and the source knows
  std::int64_t delivered_bytes = 0;
  std::int64_t sent_packets = 0;
  std::int64_t again_packets = 0;
  std::int64_t trimmed_packets = 0;
  std::int64_t marked_packets = 0;
  std::int64_t out_of_order = 0;   ///< whole packets that came after one with a higher number
  std::int64_t timeouts = 0;
};

}  // namespace busbw::sim::packet
