/// Receivers of flows: what they answer, and whom they let send.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "busbw/sim/packet/sources.hpp"

namespace busbw::sim::packet {

class Receivers : protected Sources {
 protected:
  using Sources::Sources;
  ~Receivers() = default;

  void deliver(std::uint32_t index) {
    const PacketKind kind = pool_[index].kind;
    if (kind == PacketKind::kData)
      deliver_data(index);
    else
      deliver_control(index);
  }

  void deliver_data(std::uint32_t index) {
    const std::uint32_t at = pool_[index].flow;
    Flow& flow = flows_[at];
    FlowResult& result = results_[at];
    const Packet packet = pool_[index];  // a copy: sending control may move them
    const bool trimmed = (packet.flags & kTrimmed) != 0;
    const bool marked = (packet.flags & kMarked) != 0;
    if (marked) ++result.marked_packets;
    if (marked && settings_.transport == Transport::kDcqcn &&
        (count(flow.last_notified) < 0 || now_ - flow.last_notified >= settings_.dcqcn.notify_interval)) {
      flow.last_notified = now_;
      send_control(at, PacketKind::kNotify, 0);
    }
    if (in_order()) {
      deliver_in_order(index, marked);
      return;
    }
    bool fresh = false;
    if (!trimmed) {
      std::uint64_t& word = received_[static_cast<std::size_t>(flow.bitmap) + packet.number / 64];
      const std::uint64_t bit = std::uint64_t{1} << (packet.number % 64);
      fresh = (word & bit) == 0;
      if (fresh) {
        word |= bit;
        ++flow.received;
        result.delivered_bytes += payload(flow, packet.number);
        if (packet.number < flow.expected)
          ++result.out_of_order;
        else
          flow.expected = packet.number + 1;
        if (flow.received == flow.packets) {
          flow.all_in = true;
          result.delivered_ps = count(now_);
        }
      }
    }
    switch (settings_.transport) {
      case Transport::kEqds: eqds_received(index, trimmed, marked, fresh); return;
      case Transport::kNdp: ndp_received(index, trimmed, marked); return;
      default: answer(index, trimmed ? PacketKind::kNack : PacketKind::kAck, trimmed ? packet.number : flow.received, marked); return;
    }
  }

  /// Sends the packet that came back to its source as one of control. `told` is what it says.
  void answer(std::uint32_t index, PacketKind kind, std::uint32_t told, bool marked, std::uint8_t flags = 0) {
    Packet& packet = pool_[index];
    Flow& flow = flows_[packet.flow];
    packet.kind = kind;
    packet.number = told;
    packet.flags = static_cast<std::uint8_t>(flags | (marked ? kMarked : 0) | class_bits(flow, true));
    packet.bytes = static_cast<std::uint16_t>(settings_.control_bytes);
    std::uint32_t unused = 0;
    packet.path = next_path(packet.flow, flow.cycle_back, flow.paths_back, 1, unused);
    packet.ingress = kNone;
    packet.link = routes_[flow.backward].link;
    packet.node = routes_[flow.backward].node;
    enqueue(index);
  }

  void send_control(std::uint32_t who, PacketKind kind, std::uint32_t told) {
    const std::uint32_t index = take_packet();
    pool_[index].flow = who;
    answer(index, kind, told, false);
  }

  void deliver_in_order(std::uint32_t index, bool marked) {
    Packet& packet = pool_[index];
    const std::uint32_t at = packet.flow;
    Flow& flow = flows_[at];
    FlowResult& result = results_[at];
    if (packet.number == flow.expected) {
      flow.told_gap = false;
      result.delivered_bytes += payload(flow, packet.number);
      ++flow.received;
      if (++flow.expected == flow.packets) {
        flow.all_in = true;
        result.delivered_ps = count(now_);
      }
    } else if (packet.number > flow.expected) {
      ++result.out_of_order;
      if (flow.told_gap) {
        pool_.give_back(index);
        return;
      }
      flow.told_gap = true;
      answer(index, PacketKind::kNack, flow.expected, marked);
      return;
    }
    answer(index, PacketKind::kAck, flow.expected, marked);
  }

  void ndp_received(std::uint32_t index, bool trimmed, bool marked) {
    Packet& packet = pool_[index];
    const std::uint32_t at = packet.flow;
    Flow& flow = flows_[at];
    const PacketKind kind = trimmed ? PacketKind::kNack : PacketKind::kAck;
    const std::uint32_t told = trimmed ? packet.number : flow.received;
    Pacer& pacer = pacers_[flow.pacer];
    std::uint8_t flags = 0;
    if (flow.all_in) {
      flow.pulls = 0;  // what was owed is not needed any more
    } else if (!pacer.pending && pacer.ring_at == pacer.ring.size() && pacer.next <= now_) {
      flags = kCarriesPull;
      pacer.next = now_ + pacer.interval;
    } else {
      if (flow.pulls++ == 0 && !flow.in_pull_ring) {
        flow.in_pull_ring = true;
        Pacer::add(pacer.ring, pacer.ring_at, at);
      }
      arm(flow.pacer);
    }
    answer(index, kind, told, marked, flags);
  }

  void eqds_received(std::uint32_t index, bool trimmed, bool marked, bool fresh) {
    Packet& packet = pool_[index];
    const std::uint32_t at = packet.flow;
    Flow& flow = flows_[at];
    Pacer& pacer = pacers_[flow.pacer];
    flow.wanted = std::max<std::int64_t>(flow.wanted, std::int64_t{pool_.note(index).number} * 512);
    if (flow.wanted > flow.pulled && flow.owed_again == 0 && !flow.in_pull_ring) {
      flow.in_pull_ring = true;
      Pacer::add(pacer.ring, pacer.ring_at, at);
    }
    if (trimmed) {
      const std::int64_t before = flow.owed_again;
      flow.owed_again += packet_bytes();
      if (before == 0) {
        flow.in_again_ring = true;
        Pacer::add(pacer.again_ring, pacer.again_at, at);
      }
    }
    arm(flow.pacer);
    if (trimmed) {
      answer(index, PacketKind::kNack, packet.number, marked);
      return;
    }
    flow.unacknowledged += packet.bytes;
    const bool asked = (packet.flags & kWantsAck) != 0 || flow.received == 1 || flow.all_in || !fresh || marked;
    if (!asked && flow.unacknowledged < settings_.acknowledge_bytes) {
      pool_.give_back(index);
      return;
    }
    flow.unacknowledged = 0;
    answer(index, PacketKind::kAck, flow.received, marked);
  }

  /// Has a pacer send what is due as soon as it may.
  void arm(std::uint32_t link) {
    Pacer& pacer = pacers_[link];
    if (pacer.pending || pacer.idle()) return;
    pacer.pending = true;
    wheel_.push(std::max(pacer.next, now_), event(kPull, link));
  }

  void pull_due(std::uint32_t link) {
    Pacer& pacer = pacers_[link];
    pacer.pending = false;
    if (settings_.transport == Transport::kEqds)
      eqds_pull(pacer);
    else
      ndp_pull(pacer);
    arm(link);
  }

  void ndp_pull(Pacer& pacer) {
    while (pacer.ring_at < pacer.ring.size()) {
      const std::uint32_t at = pacer.ring[pacer.ring_at++];
      Flow& flow = flows_[at];
      if (flow.pulls == 0) {
        flow.in_pull_ring = false;
        continue;
      }
      if (--flow.pulls > 0)
        Pacer::add(pacer.ring, pacer.ring_at, at);
      else
        flow.in_pull_ring = false;
      pacer.next = now_ + pacer.interval;
      send_control(at, PacketKind::kPull, 1);
      return;
    }
  }

  void eqds_pull(Pacer& pacer) {
    std::uint32_t at = kNone;
    if (pacer.again_at < pacer.again_ring.size()) {
      at = pacer.again_ring[pacer.again_at++];
      Flow& flow = flows_[at];
      flow.owed_again = std::max<std::int64_t>(0, flow.owed_again - settings_.pull_bytes);
      flow.pulled += settings_.pull_bytes;
      flow.in_again_ring = flow.owed_again > 0;
      if (flow.in_again_ring) {
        Pacer::add(pacer.again_ring, pacer.again_at, at);
      } else if (flow.wanted > flow.pulled && !flow.in_pull_ring) {
        flow.in_pull_ring = true;
        Pacer::add(pacer.ring, pacer.ring_at, at);
      }
    } else if (pacer.ring_at < pacer.ring.size()) {
      at = pacer.ring[pacer.ring_at++];
      Flow& flow = flows_[at];
      flow.pulled += settings_.pull_bytes;
      flow.in_pull_ring = flow.wanted > flow.pulled && !flow.all_in;
      if (flow.in_pull_ring)
        Pacer::add(pacer.ring, pacer.ring_at, at);
      else
        rest(pacer, at);
    } else if (pacer.idle_at < pacer.idle_ring.size()) {
      // Nobody asks for credit: what was asked for has not been used yet, so a window of it is given ahead, slowly.
      at = pacer.idle_ring[pacer.idle_at++];
      Flow& flow = flows_[at];
      flow.in_idle_ring = false;
      if (flow.all_in || flow.in_pull_ring) {
        at = kNone;
      } else {
        flow.pulled += settings_.pull_bytes;
        rest(pacer, at);
      }
    }
    if (at == kNone) return;
    pacer.next = now_ + pacer.interval;
    send_control(at, PacketKind::kPull, 1);
  }

  /// kEqds: a flow whose wishes are met, which may still get a window of credit ahead.
  void rest(Pacer& pacer, std::uint32_t at) {
    Flow& flow = flows_[at];
    if (flow.in_idle_ring || flow.all_in || flow.pulled - flow.wanted >= std::int64_t{settings_.window_packets} * packet_bytes()) return;
    flow.in_idle_ring = true;
    Pacer::add(pacer.idle_ring, pacer.idle_at, at);
  }

  void deliver_control(std::uint32_t index) {
    const Packet packet = pool_[index];
    const PacketNote note = notes_ ? pool_.note(index) : PacketNote{};
    const std::uint32_t at = packet.flow;
    Flow& flow = flows_[at];
    if (flow.complete) {
      pool_.give_back(index);
      return;
    }
    flow.heard_at = now_;
    flow.silences = 0;
    if (!flow.heard) {
      flow.heard = true;
      flow.speculative = 0;
    }
    switch (packet.kind) {
      case PacketKind::kAck:
        if (packet.number > flow.acknowledged) flow.acknowledged = packet.number;
        if (in_order())
          flow.in_flight = flow.next_new > flow.acknowledged ? flow.next_new - flow.acknowledged : 0;
        else if (flow.in_flight > 0)
          --flow.in_flight;
        if ((packet.flags & kMarked) != 0) avoid(flow, note.path);
        if (flow.acknowledged == flow.packets) {
          complete(at);
          pool_.give_back(index);
          return;
        }
        if (settings_.transport == Transport::kHpcc)
          hpcc_[at].acknowledged(settings_.window, reports_[index], static_cast<double>(count(flow.base_rtt)) * 1e-12, packet.number, flow.next_new);
        else if (settings_.transport == Transport::kSwift)
          swift_[at].acknowledged(settings_.window, now_, now_ - note.sent, flow.base_rtt, packet_bytes());
        break;
      case PacketKind::kNack:
        avoid(flow, note.path);
        if (in_order()) {
          flow.acknowledged = std::max(flow.acknowledged, packet.number);
          pool_.give_back(index);
          go_back(at, packet.number);
          return;
        }
        if (flow.in_flight > 0) --flow.in_flight;
        flow.again.append(pool_, index);  // it carries the number, so it is the packet to send again
        if ((packet.flags & kCarriesPull) != 0) ++flow.credit;
        offer(at);
        return;
      case PacketKind::kPull:
        flow.credit += settings_.transport == Transport::kEqds ? settings_.pull_bytes : 1;
        flow.pull_seen += settings_.pull_bytes;
        break;
      case PacketKind::kNotify: dcqcn_[at].notified(settings_.dcqcn, now_); break;
      default: break;
    }
    if ((packet.flags & kCarriesPull) != 0) ++flow.credit;
    pool_.give_back(index);
    offer(at);
  }
};

}  // namespace busbw::sim::packet
