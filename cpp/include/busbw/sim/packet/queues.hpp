/// Links and the queues before them: which packet goes next, and what befalls one that finds no room.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "busbw/sim/packet/state.hpp"

namespace busbw::sim::packet {

class Queues : protected State {
 protected:
  using State::State;
  ~Queues() = default;

  /// Sends the next packet of the flow whose turn it is on a link, which is the sources' affair.
  virtual void inject(std::uint32_t link, Picoseconds start) = 0;

  /// Whether the far end has room for a packet of a class.
  bool has_room(std::uint32_t at, const Link& link, std::size_t c, std::int32_t bytes) const {
    if ((link.paused >> c & 1) != 0) return false;
    return settings_.overflow != Overflow::kCredit || c == 0 || credit_[at * kMostLanes + c - 1] >= bytes;
  }

  /// Puts a packet onto the next link of its way.
  void forward(std::uint32_t index) {
    Packet& packet = pool_[index];
    PackedRoutes::Step step = routes_[packet.node];
    if (PackedRoutes::is_several(step)) step = routes_.taken(step, choose(packet, routes_.choices(step)));
    packet.ingress = packet.link;
    packet.link = step.link;
    packet.node = step.node;
    enqueue(index);
  }

  std::uint32_t choose(Packet& packet, const std::uint32_t* set) {
    const std::uint32_t choices = set[0];
    switch (settings_.choice) {
      case Choice::kPaths: {
        if ((choices & (choices - 1)) == 0) {
          const std::uint32_t which = packet.path & (choices - 1);
          packet.path >>= std::countr_zero(choices);
          return which;
        }
        const std::uint32_t which = packet.path % choices;
        packet.path /= choices;
        return which;
      }
      case Choice::kEntropy: return by_entropy(packet, set);
      case Choice::kRandom: return below(draw(), choices);
      case Choice::kAdaptive: {
        const std::uint32_t from = below(draw(), choices);
        std::uint32_t best = from;
        std::int64_t least = INT64_MAX;
        for (std::uint32_t i = 0; i < choices; ++i) {
          const std::uint32_t which = from + i < choices ? from + i : from + i - choices;
          const Link& link = links_[set[2 + which]];
          // What is on its way is counted in full: a free link wins over one that is about to be.
          const std::int64_t here = queued(link) + ((link.paused >> 1) != 0 ? std::int64_t{1} << 40 : 0);
          if (here < least) {
            least = here;
            best = which;
          }
        }
        return best;
      }
    }
    return 0;
  }

  /// A switch's hash: its first link stands for the switch, so that each has its own.
  static std::uint32_t by_entropy(const Packet& packet, const std::uint32_t* set) {
    return below(mixed(packet.path ^ static_cast<std::uint64_t>(set[2]) << 32), set[0]);
  }

  void enqueue(std::uint32_t index) {
    Packet& packet = pool_[index];
    const std::uint32_t at = packet.link;
    Link& link = links_[at];
    std::size_t c = packet.queue_class();
    if (settings_.overflow == Overflow::kPause && packet.ingress != kNone && counted(packet)) brought(packet.ingress, packet.bytes);
    if (idle(link) && link.waiting == 0 && has_room(at, link, c, packet.bytes)) {
      transmit(at, index, now_);
      return;
    }
    if (c == 0 && !link.serve_pending && (link.waiting & 1) == 0) {
      // Nothing else may go when the link is free, so that it need not be looked at again: control goes then.
      if (!lossy() || link.busy_until - now_ <= sending_time(link, settings_.control_queue_bytes + packet_bytes())) {
        transmit(at, index, std::max(now_, link.busy_until));
        return;
      }
    }
    if (c != 0) {
      const std::int64_t before = queued(link);
      if (lossy() && before + packet.bytes > settings_.queue_bytes) {
        if (settings_.overflow == Overflow::kDrop || packet.kind != PacketKind::kData) {
          drop(at, index);
          return;
        }
        // The newcomer or the last in the queue, by a coin, so that no flow loses always.
        Link::Queue& queue = link.queue(c);
        if (queue.packets.empty() || (draw() >> 63) != 0) {
          if (!trim(at, index)) return;
          c = 0;
        } else {
          swap_last(at, queue, index);
          wake(at);
          return;
        }
      } else {
        note_most_queued(at, before + packet.bytes);
      }
    } else if (lossy() && link.control.bytes + packet.bytes > settings_.control_queue_bytes) {
      drop(at, index);
      return;
    }
    Link::Queue& queue = link.queue(c);
    queue.packets.append(pool_, index);
    queue.bytes += packet.bytes;
    link.waiting = static_cast<std::uint8_t>(link.waiting | 1U << c);
    wake(at);
  }

  /// The packet that came takes the place of the last in the queue, which is trimmed.
  void swap_last(std::uint32_t at, Link::Queue& queue, std::uint32_t came) {
    const std::uint32_t last = queue.packets.tail;
    // Contents change places, so that the list need not be walked to the one before the last.
    const std::uint32_t next = pool_[last].next;
    std::swap(pool_[last], pool_[came]);
    std::swap(pool_.note(last), pool_.note(came));
    if (!reports_.empty()) std::swap(reports_[last], reports_[came]);
    pool_[last].next = next;
    queue.bytes += pool_[last].bytes - pool_[came].bytes;
    if (trim(at, came)) {
      Link& link = links_[at];
      link.control.packets.append(pool_, came);
      link.control.bytes += pool_[came].bytes;
      link.waiting = static_cast<std::uint8_t>(link.waiting | 1U);
    }
  }

  bool counted(const Packet& packet) const { return packet.kind == PacketKind::kData || !settings_.control_before_data; }

  /// False if there was no room for the header either.
  bool trim(std::uint32_t at, std::uint32_t index) {
    Packet& packet = pool_[index];
    ++counts_[at].trimmed;
    ++results_[packet.flow].trimmed_packets;
    packet.flags = static_cast<std::uint8_t>((packet.flags & kFlagsMask) | kTrimmed);
    packet.bytes = static_cast<std::uint16_t>(settings_.control_bytes);
    if (links_[at].control.bytes + packet.bytes > settings_.control_queue_bytes) {
      drop(at, index);
      return false;
    }
    return true;
  }

  void drop(std::uint32_t at, std::uint32_t index) {
    ++counts_[at].dropped;
    pool_.give_back(index);
  }

  void note_most_queued(std::uint32_t at, std::int64_t bytes) {
    if (bytes > counts_[at].most_queued_bytes) counts_[at].most_queued_bytes = bytes;
  }

  /// Has a link looked at as soon as it is free.
  void wake(std::uint32_t at) {
    Link& link = links_[at];
    if (link.serve_pending) return;
    if (link.busy_until <= now_) {
      serve(at);
      return;
    }
    link.serve_pending = true;
    wheel_.push(link.busy_until, event(kServe, at));
  }

  /// Sends what is next: all control that waits, then one packet of data, of a lane in turn or a new one of a flow. A link decides once for
  /// all of these. Precondition: it is free.
  void serve(std::uint32_t at) {
    Link& link = links_[at];
    if (link.busy_until > now_) {  // control was sent meanwhile
      wake(at);
      return;
    }
    Picoseconds start = now_;
    while ((link.waiting & 1) != 0) {
      transmit(at, take_from(link, 0), start);
      start = link.busy_until;
    }
    if (link.waiting == 0 || !serve_lanes(at, start))
      if (link.ready) inject(at, start);
    if ((link.waiting != 0 || link.ready) && link.busy_until > now_) wake(at);
  }

  bool serve_lanes(std::uint32_t at, Picoseconds start) {
    Link& link = links_[at];
    const auto lanes = static_cast<std::size_t>(settings_.lanes);
    for (std::size_t i = 0; i < lanes; ++i) {
      const std::size_t c = 1 + (link.next_lane + i) % lanes;
      if ((link.waiting >> c & 1) == 0) continue;
      if (!has_room(at, link, c, pool_[link.queue(c).packets.head].bytes)) {
        waits_for_room(at);
        continue;
      }
      if (lanes > 1) link.next_lane = static_cast<std::uint8_t>(c % lanes);
      transmit(at, take_from(link, c), start);
      return true;
    }
    return false;
  }

  std::uint32_t take_from(Link& link, std::size_t c) {
    Link::Queue& queue = link.queue(c);
    const std::uint32_t index = queue.packets.take(pool_);
    queue.bytes -= pool_[index].bytes;
    if (queue.packets.empty()) link.waiting = static_cast<std::uint8_t>(link.waiting & ~(1U << c));
    return index;
  }

  /// Precondition: the link is free from `start` on and has room behind it.
  void transmit(std::uint32_t at, std::uint32_t index, Picoseconds start) {
    Packet& packet = pool_[index];
    Link& link = links_[at];
    const std::size_t c = packet.queue_class();
    const Picoseconds done = start + sending_time(link, packet.bytes);
    if (c != 0) {
      if (settings_.mark_all_bytes > 0 && packet.kind == PacketKind::kData) mark(at, packet, link.data_bytes() + packet.bytes);
      link.sending = packet.bytes;
    } else if (start == now_) {
      link.sending = 0;
    }
    link.busy_until = done;
    link.sent_bytes += packet.bytes;
    ++link.packets;
    if (!reports_.empty() && packet.kind == PacketKind::kData) report(at, index);
    if (settings_.overflow == Overflow::kPause) {
      if (packet.ingress != kNone && counted(packet)) taken(packet.ingress, packet.bytes);
    } else if (settings_.overflow == Overflow::kCredit && c != 0) {
      credit_[at * kMostLanes + c - 1] -= packet.bytes;
      if (packet.ingress != kNone) return_credit(packet.ingress, c, packet.bytes, done);
      if (counts_[at].stopped_at >= 0) {
        counts_[at].paused_ps += count(now_) - counts_[at].stopped_at;
        counts_[at].stopped_at = -1;
      }
    }
    wheel_.push(done + link.latency, event(kArrive, index));
  }

  /// ECN: with a probability that grows with what is queued when the packet leaves.
  void mark(std::uint32_t at, Packet& packet, std::int64_t bytes) {
    if (bytes <= settings_.mark_from_bytes) return;
    if (bytes < settings_.mark_all_bytes) {
      const double share = static_cast<double>(bytes - settings_.mark_from_bytes) / static_cast<double>(settings_.mark_all_bytes - settings_.mark_from_bytes);
      if (static_cast<double>(draw() >> 11) * 0x1p-53 >= share * settings_.mark_probability) return;
    }
    packet.flags |= kMarked;
    ++counts_[at].marked;
  }

  void report(std::uint32_t at, std::uint32_t index) {
    auto& reports = reports_[index];
    for (LinkReport& one : reports) {
      if (one.link != kNone) continue;
      const Link& link = links_[at];
      one = {now_, link.sent_bytes, link.data_bytes(), 1e12 * (1 << kRateBits) / static_cast<double>(link.ps_per_byte), at};
      return;
    }
  }

  // PFC. `ingress` is the link that brought a packet; the sender of that link is told.
  void brought(std::uint32_t ingress, std::int32_t bytes) {
    Link& link = links_[ingress];
    link.brought += bytes;
    if (link.brought > settings_.pause_above_bytes && !link.told_to_pause) {
      link.told_to_pause = true;
      wheel_.push(now_ + link.latency, event(kPause, ingress));
    }
  }
  void taken(std::uint32_t ingress, std::int32_t bytes) {
    Link& link = links_[ingress];
    link.brought -= bytes;
    if (link.brought < settings_.resume_below_bytes && link.told_to_pause) {
      link.told_to_pause = false;
      wheel_.push(now_ + link.latency, event(kResume, ingress));
    }
  }
  void pause(std::uint32_t at) {
    Link& link = links_[at];
    link.paused = static_cast<std::uint8_t>(0xFE);
    ++counts_[at].pauses;
    counts_[at].stopped_at = count(now_);
  }
  void resume(std::uint32_t at) {
    links_[at].paused = 0;
    counts_[at].paused_ps += count(now_) - counts_[at].stopped_at;
    counts_[at].stopped_at = -1;
    if (links_[at].waiting != 0 || links_[at].ready) wake(at);
  }

  // Credit. What left a buffer is known at the sender of the link one latency later.
  void return_credit(std::uint32_t link, std::size_t c, std::int32_t bytes, Picoseconds when) {
    if (c == 0) return;
    const std::uint32_t index = pool_.take();
    Packet& packet = pool_[index];
    packet.link = link;
    packet.number = static_cast<std::uint32_t>(c);
    packet.bytes = static_cast<std::uint16_t>(bytes);
    packet.kind = PacketKind::kCredit;
    wheel_.push(when + links_[link].latency, event(kCreditBack, index));
  }
  void credit_back(std::uint32_t index) {
    const Packet packet = pool_[index];
    pool_.give_back(index);
    Link& link = links_[packet.link];
    credit_[packet.link * kMostLanes + packet.number - 1] += packet.bytes;
    if (link.waiting != 0 || link.ready) wake(packet.link);
  }
  void waits_for_room(std::uint32_t at) {
    if (settings_.overflow != Overflow::kCredit || counts_[at].stopped_at >= 0) return;
    ++counts_[at].pauses;
    counts_[at].stopped_at = count(now_);
  }
};

}  // namespace busbw::sim::packet
