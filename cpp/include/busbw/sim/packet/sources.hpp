/// Sources of flows: what they may send, over which path, and what they do when they hear nothing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "busbw/sim/packet/queues.hpp"

namespace busbw::sim::packet {

class Sources : protected Queues {
 protected:
  using Queues::Queues;
  ~Sources() = default;

  void start(std::uint32_t at) {
    Flow& flow = flows_[at];
    flow.started = true;
    flow.heard_at = now_;
    if (flow.forward == kNone) {  // source and destination are one
      results_[at].delivered_ps = count(now_);
      results_[at].delivered_bytes = payload(flow, flow.packets - 1) + std::int64_t{flow.packets - 1} * settings_.payload_bytes;
      complete(at);
      return;
    }
    if (settings_.transport == Transport::kNdp) flow.credit = std::max(1, settings_.window_packets);
    if (settings_.transport == Transport::kEqds) flow.speculative = std::max(1, settings_.window_packets) * packet_bytes();
    flow.next_send = now_;
    if (settings_.transport == Transport::kDcqcn) {
      dcqcn_[at].begin(settings_.dcqcn, now_);
      set_timer(dcqcn_[at].alpha_due, kAlpha, at);
      set_timer(dcqcn_[at].increase_due, kIncrease, at);
    }
    if (settings_.transport == Transport::kHpcc && reports_.empty()) reports_.resize(1);
    if (count(settings_.retransmit_after) > 0) wheel_.push(now_ + settings_.retransmit_after, event(kTimeout, at));
    offer(at);
  }

  std::int32_t payload(const Flow& flow, std::uint32_t number) const { return number + 1 == flow.packets ? flow.last_bytes : settings_.payload_bytes; }

  bool may_send(std::uint32_t at) const {
    const Flow& flow = flows_[at];
    if (flow.again.empty() && flow.next_new >= flow.packets) return false;
    switch (settings_.transport) {
      case Transport::kNdp: return flow.credit > 0;
      case Transport::kEqds: return flow.credit > 0 || (!flow.heard && flow.speculative > 0);
      case Transport::kLineRate: return true;
      case Transport::kDcqcn: return flow.next_send <= now_;
      case Transport::kHpcc: return flow.next_send <= now_ && within(flow, hpcc_[at].window);
      case Transport::kSwift: return flow.next_send <= now_ && within(flow, swift_[at].window);
    }
    return false;
  }
  bool within(const Flow& flow, double window) const {
    return flow.in_flight == 0 || (static_cast<double>(flow.in_flight) + 1) * packet_bytes() <= window;
  }

  /// Puts a flow that may send into the round of its link.
  void offer(std::uint32_t at) {
    Flow& flow = flows_[at];
    if (flow.ready || flow.complete || !flow.started) return;
    if (!may_send(at)) {
      pace(at);
      return;
    }
    flow.ready = true;
    flow.ready_next = kNone;
    Link& link = links_[flow.link];
    if (link.ready_head == kNone)
      link.ready_head = at;
    else
      flows_[link.ready_tail].ready_next = at;
    link.ready_tail = at;
    link.ready = true;
    wake(flow.link);
  }

  /// Has a flow looked at again when its rate allows.
  void pace(std::uint32_t at) {
    Flow& flow = flows_[at];
    if (flow.paced || flow.next_send <= now_ || (flow.again.empty() && flow.next_new >= flow.packets)) return;
    flow.paced = true;
    wheel_.push(flow.next_send, event(kPace, at));
  }

  /// The next packet of the flow whose turn it is. Precondition: the link is free and nothing waits that may go.
  void inject(std::uint32_t at, Picoseconds start) final {
    Link& link = links_[at];
    while (link.ready_head != kNone) {
      const std::uint32_t who = link.ready_head;
      Flow& flow = flows_[who];
      if (!has_room(at, link, std::size_t{1} + flow.lane, packet_bytes())) {
        waits_for_room(at);
        return;
      }
      link.ready_head = flow.ready_next;
      link.ready = link.ready_head != kNone;
      flow.ready = false;
      if (!may_send(who)) {
        pace(who);
        continue;
      }
      transmit(at, next_packet(who), start);
      offer(who);
      return;
    }
  }

  std::uint32_t next_packet(std::uint32_t who) {
    Flow& flow = flows_[who];
    FlowResult& result = results_[who];
    std::uint32_t index;
    ++result.sent_packets;
    if (!flow.again.empty()) {
      index = flow.again.take(pool_);
      ++result.again_packets;
      pool_[index].flags = static_cast<std::uint8_t>(kAgain | kWantsAck | class_bits(flow, false));
    } else {
      index = take_packet();
      pool_[index].number = flow.next_new++;
      pool_[index].flags = class_bits(flow, false);
    }
    Packet& packet = pool_[index];
    packet.flow = who;
    packet.kind = PacketKind::kData;
    packet.bytes = static_cast<std::uint16_t>(payload(flow, packet.number) + settings_.header_bytes);
    packet.link = flow.link;
    packet.ingress = kNone;
    packet.node = routes_[flow.forward].node;
    std::uint32_t name = 0;
    packet.path = next_path(who, flow.cycle, flow.paths, 0, name);
    if (notes_) pool_.note(index) = {now_, 0, name};
    ++flow.in_flight;
    switch (settings_.transport) {
      case Transport::kNdp: --flow.credit; break;
      case Transport::kEqds:
        if (flow.heard)
          flow.credit -= packet.bytes;
        else
          flow.speculative -= packet.bytes;
        if (flow.credit < 0 || flow.next_new >= flow.packets) packet.flags |= kWantsAck;
        pool_.note(index).number = eqds_wanted(flow);
        break;
      case Transport::kDcqcn: {
        dcqcn_[who].sent(settings_.dcqcn, packet.bytes);
        flow.next_send = now_ + Picoseconds{std::llround(packet.bytes * 1e12 / dcqcn_[who].rate)};
        break;
      }
      case Transport::kHpcc: {
        // Paced at window / base round trip, as the paper's section 3.2 has it.
        flow.next_send = now_ + Picoseconds{std::llround(packet.bytes / hpcc_[who].window * static_cast<double>(count(flow.base_rtt)))};
        break;
      }
      case Transport::kSwift: {
        const double window = swift_[who].window;
        if (window < packet_bytes()) flow.next_send = now_ + Picoseconds{std::llround(packet_bytes() / window * static_cast<double>(count(flow.base_rtt)))};
        break;
      }
      case Transport::kLineRate: break;
    }
    return index;
  }

  /// kEqds: credit that the source would like to have been given in all, in units of 512 bytes.
  std::uint32_t eqds_wanted(const Flow& flow) const {
    const std::int64_t left = flow.packets - flow.next_new;
    std::int64_t backlog = left == 0 ? 0 : (left - 1) * packet_bytes() + flow.last_bytes + settings_.header_bytes;
    const std::int64_t window = std::int64_t{settings_.window_packets} * packet_bytes();
    backlog = std::min(backlog, window) - flow.credit - (flow.heard ? 0 : flow.speculative);
    return static_cast<std::uint32_t>((std::max<std::int64_t>(backlog, 0) + flow.pull_seen + 511) / 512);
  }

  /// The path of a flow's next packet; `name` is what an acknowledgement calls it by.
  std::uint32_t next_path(std::uint32_t who, std::uint32_t& cycle, std::uint32_t paths, std::uint32_t direction, std::uint32_t& name) {
    name = 0;
    if (settings_.choice == Choice::kEntropy) {
      const auto entropies = static_cast<std::uint32_t>(std::max(settings_.entropies, 1));
      for (std::uint32_t tries = 0;; ++tries) {
        name = shuffled(cycle++, entropies, who * 2 + direction);
        if (skip_words_ == 0 || direction != 0 || tries >= entropies) break;
        std::uint64_t& word = skip_[who * skip_words_ + name / 64];
        const std::uint64_t bit = std::uint64_t{1} << (name % 64);
        if ((word & bit) == 0) break;
        word &= ~bit;
      }
      return static_cast<std::uint32_t>(mixed((static_cast<std::uint64_t>(who) * 2 + direction) << 32 ^ name ^ settings_.seed * 0x9E3779B97F4A7C15ULL));
    }
    if (settings_.choice != Choice::kPaths || paths == 1) return 0;
    name = shuffled(cycle++, paths, who * 2 + direction);
    return name;
  }

  /// The numbers 0 to size - 1 in a new order each time all have been: a small block cipher of the place, keyed by seed, whom and round.
  std::uint32_t shuffled(std::uint32_t place, std::uint32_t size, std::uint32_t whom) const {
    if (size <= 1) return 0;
    const std::uint32_t round = place / size;
    std::uint32_t at = place - round * size;
    std::uint64_t key = mixed(settings_.seed ^ (static_cast<std::uint64_t>(whom) << 32 | round));
    const std::uint32_t bits = 32 - static_cast<std::uint32_t>(__builtin_clz(size - 1));
    const std::uint32_t mask = (bits == 32 ? 0 : 1U << bits) - 1;
    const std::uint32_t shift = (bits + 1) / 2;
    const std::uint64_t other = mixed(key);
    do {
      at = (at * (static_cast<std::uint32_t>(key) | 1) + static_cast<std::uint32_t>(other)) & mask;
      at ^= at >> shift;
      at = (at * (static_cast<std::uint32_t>(key >> 32) | 1) + static_cast<std::uint32_t>(other >> 16)) & mask;
      at ^= at >> shift;
      at = (at * (static_cast<std::uint32_t>(key >> 16) | 1) + static_cast<std::uint32_t>(other >> 32)) & mask;
      at ^= at >> shift;
    } while (at >= size);
    return at;
  }

  void avoid(const Flow& flow, std::uint32_t path) {
    if (skip_words_ == 0) return;
    const auto who = static_cast<std::size_t>(&flow - flows_.data());
    skip_[who * skip_words_ + path / 64] |= std::uint64_t{1} << (path % 64);
  }

  /// How long a source waits for a sign of its receiver: twice as long each time in a row that there was none.
  Picoseconds patience_of(const Flow& flow) const {
    return Picoseconds{count(settings_.retransmit_after) << std::min<std::uint8_t>(flow.silences, kMostDoublings)};
  }

  void timeout(std::uint32_t at) {
    Flow& flow = flows_[at];
    if (flow.complete) return;
    const Picoseconds patience = patience_of(flow);
    if (now_ - flow.heard_at < patience) {
      wheel_.push(flow.heard_at + patience, event(kTimeout, at));
      return;
    }
    ++results_[at].timeouts;
    if (flow.silences < kMostDoublings) ++flow.silences;
    flow.heard_at = now_;
    if (in_order()) {
      go_back(at, flow.acknowledged);
    } else {
      // The receiver's bitmap stands for selective acknowledgements that all arrived.
      while (!flow.again.empty()) pool_.give_back(flow.again.take(pool_));
      bool lost = false;
      for (std::uint32_t number = 0; number < flow.next_new; ++number) {
        if (has(flow, number)) continue;
        send_again(flow, number);
        lost = true;
      }
      if (!lost && flow.next_new == flow.packets) send_again(flow, flow.packets - 1);  // the last word was lost, ask for it
      flow.in_flight = 0;
      if (settings_.transport == Transport::kSwift) swift_[at].silent(settings_.window, now_);
      // One packet is enough to be heard again; more of many flows at once would be lost like the first.
      flow.credit = std::max(flow.credit, settings_.transport == Transport::kEqds ? packet_bytes() : 1);
    }
    wheel_.push(now_ + patience_of(flow), event(kTimeout, at));
    offer(at);
  }

  void send_again(Flow& flow, std::uint32_t number) {
    const std::uint32_t index = take_packet();
    pool_[index].number = number;
    flow.again.append(pool_, index);
  }

  void go_back(std::uint32_t at, std::uint32_t number) {
    Flow& flow = flows_[at];
    if (number >= flow.next_new) return;
    results_[at].again_packets += flow.next_new - number;
    flow.next_new = number;
    flow.in_flight = 0;
    offer(at);
  }

  void complete(std::uint32_t at) {
    Flow& flow = flows_[at];
    if (flow.complete) return;
    flow.complete = true;
    results_[at].completed_ps = count(now_);
    --unfinished_;
  }
};

}  // namespace busbw::sim::packet
