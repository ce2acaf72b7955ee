/// Packets in flight and in queues: one array, a list of the free ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "busbw/sim/packet/event_wheel.hpp"
#include "busbw/sim/time.hpp"

namespace busbw::sim::packet {

inline constexpr std::uint32_t kNone = ~0U;

enum class PacketKind : std::uint8_t { kData, kAck, kNack, kPull, kNotify, kCredit };

/// Bits of Packet::flags.
inline constexpr std::uint8_t kTrimmed = 1;
inline constexpr std::uint8_t kMarked = 2;
inline constexpr std::uint8_t kCarriesPull = 4;
inline constexpr std::uint8_t kAgain = 8;         ///< a retransmission
inline constexpr std::uint8_t kWantsAck = 16;
inline constexpr unsigned kClassShift = 5;        ///< above it the class of queues: 0 control, 1 + lane
inline constexpr std::uint8_t kFlagsMask = (1U << kClassShift) - 1;

struct Packet {
  std::uint32_t next;     ///< in a list: of a queue, of retransmissions, of free packets
  std::uint32_t flow;
  std::uint32_t number;   ///< data: place in the flow; acknowledgement: what it tells
  std::uint32_t node;     ///< of the routes, at the end of the link it is on
  std::uint32_t link;     ///< it is on, or waits for
  std::uint32_t ingress;  ///< the link that brought it into the switch where it waits, kNone at its source
  std::uint32_t path;
  std::uint16_t bytes;
  PacketKind kind;
  std::uint8_t flags;
  constexpr std::size_t queue_class() const { return flags >> kClassShift; }
};
static_assert(sizeof(Packet) == 32);

/// What few transports need.
struct PacketNote {
  Picoseconds sent{0};  ///< by the source; an acknowledgement echoes it
  std::uint32_t number = 0;
  std::uint32_t path = 0;  ///< of the data that a control packet is about
};

class PacketPool {
 public:
  std::uint32_t take() {
    if (free_ != kNone) {
      const std::uint32_t packet = free_;
      free_ = packets_[packet].next;
      return packet;
    }
    if (packets_.size() > Event::kLargestIndex) throw std::length_error("more than 2^28 packets at once");
    packets_.emplace_back();
    notes_.emplace_back();
    return static_cast<std::uint32_t>(packets_.size() - 1);
  }
  void give_back(std::uint32_t packet) {
    packets_[packet].next = free_;
    free_ = packet;
  }
  Packet& operator[](std::uint32_t packet) { return packets_[packet]; }
  const Packet& operator[](std::uint32_t packet) const { return packets_[packet]; }
  PacketNote& note(std::uint32_t packet) { return notes_[packet]; }
  std::size_t bytes() const { return packets_.capacity() * (sizeof(Packet) + sizeof(PacketNote)); }

 private:
  std::vector<Packet> packets_;
  std::vector<PacketNote> notes_;
  std::uint32_t free_ = kNone;
};

/// A queue of packets, first in first out.
struct PacketList {
  std::uint32_t head = kNone;
  std::uint32_t tail = kNone;
  bool empty() const { return head == kNone; }
  void append(PacketPool& pool, std::uint32_t packet) {
    pool[packet].next = kNone;
    if (head == kNone)
      head = packet;
    else
      pool[tail].next = packet;
    tail = packet;
  }
  std::uint32_t take(PacketPool& pool) {
    const std::uint32_t packet = head;
    head = pool[packet].next;
    return packet;
  }
};

}  // namespace busbw::sim::packet
