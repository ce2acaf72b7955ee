/// The packet simulator: hosts, links and switches as events, one for each packet and link, and one more where a packet had to wait.
///
/// A link sends the next packet the moment it is free; when nothing waits it has no event. Time is integer picoseconds, events of one time
/// come in the order in which they were made, random numbers are hashes: the same input gives the same output, bit for bit.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "busbw/sim/packet/receivers.hpp"

namespace busbw::sim::packet {

class PacketSimulation final : protected Receivers {
 public:
  /// Throws std::invalid_argument where columns do not fit each other, a bandwidth is not positive, or sizes are too large.
  PacketSimulation(const Settings& settings, const Routes& routes, const LinkColumns& links, const FlowColumns& flows) : Receivers(settings) {
    routes_ = PackedRoutes(routes, links.bytes_per_s.size());
    add_links(links);
    add_flows(flows, routes);
    if (count(settings_.sample_every) > 0) set_timer(settings_.sample_every, kSample, 0);
  }

  /// Runs for about `events` more events, then says whether it has ended.
  Ended run(std::uint64_t events) {
    if (ended_ != Ended::kNotYet) return ended_;
    const std::uint64_t until = std::min(settings_.most_events, events_ > ~std::uint64_t{0} - events ? ~std::uint64_t{0} : events_ + events);
    while (events_ < until) {
      if (unfinished_ == 0) return end(Ended::kDone);
      if (wheel_.pending() == timers_) return end(Ended::kStalled);
      const Event next = wheel_.pop();
      if (next.time > settings_.end_at) {
        now_ = settings_.end_at;
        return end(Ended::kTimeLimit);
      }
      prefetch();
      now_ = next.time;
      ++events_;
      happen(Event::kind(next.what), Event::index(next.what));
      if ((events_ & 0xFFFF) == 0 && bytes() > settings_.most_bytes) return end(Ended::kMemoryLimit);
    }
    if (unfinished_ == 0) return end(Ended::kDone);
    return events_ >= settings_.most_events ? end(Ended::kEventLimit) : Ended::kNotYet;
  }

  Picoseconds now() const { return now_; }
  std::uint64_t events() const { return events_; }
  std::size_t unfinished() const { return unfinished_; }
  const std::vector<FlowResult>& flow_results() const { return results_; }
  const std::vector<LinkCounts>& link_counts() const { return counts_; }
  const std::vector<Link>& links() const { return links_; }
  /// Rows of (links) bytes of data queued, one a sample.
  const std::vector<std::int32_t>& samples() const { return samples_; }
  const std::vector<std::int64_t>& sample_times_ps() const { return sample_times_; }
  /// Rate of a flow's sender in bytes a second where it has one (kDcqcn); for tests and reports.
  double rate(std::size_t flow) const { return flow < dcqcn_.size() ? dcqcn_[flow].rate : 0.0; }

  std::size_t bytes() const {
    return wheel_.bytes() + pool_.bytes() + links_.capacity() * (sizeof(Link) + sizeof(LinkCounts)) +
           flows_.capacity() * (sizeof(Flow) + sizeof(FlowResult)) + received_.capacity() * 8 + samples_.capacity() * 4 +
           routes_.bytes() + reports_.capacity() * sizeof(reports_[0]);
  }

  /// Links that wait for one another, each for room behind the next, as found when nothing moves any more: a cycle, or a chain to where it ends.
  std::vector<std::uint32_t> waiting_chain() const {
    std::vector<std::uint32_t> chain;
    std::vector<std::uint8_t> seen(links_.size(), 0);
    std::uint32_t at = kNone;
    for (std::size_t i = 0; i < links_.size() && at == kNone; ++i)
      if (blocked_with_packets(links_[i])) at = static_cast<std::uint32_t>(i);
    while (at != kNone && !seen[at]) {
      seen[at] = 1;
      chain.push_back(at);
      at = waits_for(at);
    }
    if (at != kNone) chain.erase(chain.begin(), std::find(chain.begin(), chain.end(), at));
    return chain;
  }

 private:
  // ---- Setting up

  void add_links(const LinkColumns& columns) {
    if (columns.latency_ps.size() != columns.bytes_per_s.size()) throw std::invalid_argument("columns of links differ in length");
    if (columns.bytes_per_s.size() > Event::kLargestIndex) throw std::invalid_argument("more than 2^28 links");
    if (settings_.lanes < 1 || settings_.lanes > static_cast<std::int32_t>(kMostLanes)) throw std::invalid_argument("1 to 4 virtual lanes");
    links_.resize(columns.bytes_per_s.size());
    counts_.resize(links_.size());
    pacers_.resize(links_.size());
    if (settings_.overflow == Overflow::kCredit)
      credit_.assign(links_.size() * kMostLanes, static_cast<std::int32_t>(std::min<std::int64_t>(settings_.credit_bytes, 1 << 30)));
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (!(columns.bytes_per_s[i] > 0)) throw std::invalid_argument("link " + std::to_string(i) + " has no bandwidth");
      if (columns.latency_ps[i] < 0) throw std::invalid_argument("link " + std::to_string(i) + " has a negative latency");
      const double units = 1e12 / columns.bytes_per_s[i] * (1 << kRateBits);
      if (units > 1e14) throw std::invalid_argument("link " + std::to_string(i) + " is slower than 10 kB/s");
      links_[i].ps_per_byte = static_cast<std::uint64_t>(std::llround(units));
      links_[i].latency = Picoseconds{columns.latency_ps[i]};
    }
  }

  void add_flows(const FlowColumns& columns, const Routes& routes) {
    const std::size_t flow_count = columns.forward.size();
    if (columns.backward.size() != flow_count || columns.bytes.size() != flow_count || columns.start_ps.size() != flow_count || columns.lane.size() != flow_count)
      throw std::invalid_argument("columns of flows differ in length");
    if (flow_count > Event::kLargestIndex) throw std::invalid_argument("more than 2^28 flows");
    if (settings_.payload_bytes < 1 || settings_.header_bytes < 0 || settings_.control_bytes < 1 ||
        settings_.payload_bytes + settings_.header_bytes > 65535 || settings_.control_bytes > 65535)
      throw std::invalid_argument("packets have 1 to 65535 bytes");
    if (settings_.overflow == Overflow::kCredit && settings_.credit_bytes < packet_bytes())
      throw std::invalid_argument("a buffer of " + std::to_string(settings_.credit_bytes) + " bytes holds no packet of " + std::to_string(packet_bytes()));
    flows_.resize(flow_count);
    results_.resize(flow_count);
    if (settings_.transport == Transport::kDcqcn) dcqcn_.resize(flow_count);
    if (settings_.transport == Transport::kHpcc) hpcc_.resize(flow_count);
    if (settings_.transport == Transport::kSwift) swift_.resize(flow_count);
    notes_ = settings_.transport != Transport::kNdp || settings_.avoid_congested;
    skip_words_ = settings_.avoid_congested ? static_cast<std::size_t>(std::max(settings_.entropies, 1) + 63) / 64 : 0;
    skip_.assign(flow_count * skip_words_, 0);
    std::int64_t words = 0;
    const std::size_t nodes = routes.first.size() - 1;
    for (std::size_t i = 0; i < flow_count; ++i) {
      Flow& flow = flows_[i];
      if (columns.bytes[i] < 0) throw std::invalid_argument("flow " + std::to_string(i) + " has a negative size");
      if (columns.start_ps[i] < 0) throw std::invalid_argument("flow " + std::to_string(i) + " starts before 0");
      if (columns.lane[i] < 0 || columns.lane[i] >= settings_.lanes) throw std::invalid_argument("flow " + std::to_string(i) + " is on a lane that is not there");
      const std::int64_t packets = std::max<std::int64_t>(1, (columns.bytes[i] + settings_.payload_bytes - 1) / settings_.payload_bytes);
      if (packets > 0x7FFFFFFF) throw std::invalid_argument("flow " + std::to_string(i) + " has more than 2^31 packets");
      flow.packets = static_cast<std::uint32_t>(packets);
      flow.last_bytes = static_cast<std::uint16_t>(columns.bytes[i] - (packets - 1) * settings_.payload_bytes);
      flow.lane = static_cast<std::uint8_t>(columns.lane[i]);
      flow.forward = columns.forward[i];
      flow.backward = columns.backward[i];
      flow.bitmap = words;
      if (!in_order()) words += (packets + 63) / 64;
      if (flow.forward != kNone) {
        if (flow.forward >= nodes || flow.backward >= nodes) throw std::invalid_argument("flow " + std::to_string(i) + " begins at no node of the routes");
        if (routes.first[flow.forward + 1] - routes.first[flow.forward] != 1 || routes.first[flow.backward + 1] - routes.first[flow.backward] != 1)
          throw std::invalid_argument("flow " + std::to_string(i) + " has a choice of first links");
        flow.link = routes.link[routes.first[flow.forward]];
        flow.pacer = routes.link[routes.first[flow.backward]];
        const auto [paths, delay] = walk(routes, flow.forward, packet_bytes());
        const auto [paths_back, delay_back] = walk(routes, flow.backward, settings_.control_bytes);
        flow.paths = paths;
        flow.paths_back = paths_back;
        flow.base_rtt = delay + delay_back;
        start_transport(i, flow);
      }
      starts_.emplace_back(columns.start_ps[i], static_cast<std::uint32_t>(i));
    }
    // One start is pending at a time, so that a million flows cost no million events.
    std::sort(starts_.begin(), starts_.end());
    if (!starts_.empty()) wheel_.push(Picoseconds{starts_.front().first}, event(kStart, 0));
    received_.assign(static_cast<std::size_t>(words), 0);
    unfinished_ = flow_count;
  }

  void start_transport(std::size_t i, const Flow& flow) {
    Pacer& pacer = pacers_[flow.pacer];
    const double interval = static_cast<double>(count(sending_time(links_[flow.pacer], settings_.transport == Transport::kEqds
                                                                                           ? packet_bytes() + settings_.pull_overhead_bytes
                                                                                           : packet_bytes())));
    pacer.interval = Picoseconds{std::llround(settings_.transport == Transport::kEqds ? interval * settings_.pull_rate : interval / settings_.pull_rate)};
    const double line = 1e12 * (1 << kRateBits) / static_cast<double>(links_[flow.link].ps_per_byte);
    const double largest = static_cast<double>(settings_.window_packets) * packet_bytes();
    if (settings_.transport == Transport::kDcqcn) {
      dcqcn_[i].rate = dcqcn_[i].target = dcqcn_[i].line = line;
    } else if (settings_.transport == Transport::kHpcc) {
      const double window = line * static_cast<double>(count(flow.base_rtt)) * 1e-12;
      hpcc_[i].largest = largest > 0 ? largest : window;
      hpcc_[i].window = hpcc_[i].reference = std::min(window, hpcc_[i].largest);
    } else if (settings_.transport == Transport::kSwift) {
      const double window = line * static_cast<double>(count(flow.base_rtt)) * 1e-12;
      swift_[i].largest = largest > 0 ? largest : 2 * window;
      swift_[i].window = std::min(window, swift_[i].largest);
    }
  }

  /// Paths from a node on, as its first choices suggest, and what a packet takes alone.
  std::pair<std::uint32_t, Picoseconds> walk(const Routes& routes, std::uint32_t node, std::int64_t bytes) const {
    std::uint64_t paths = 1;
    Picoseconds delay{0};
    for (std::size_t hops = 0; node != kNone; ++hops) {
      if (hops > routes.first.size()) throw std::invalid_argument("a route runs in a circle");
      const std::uint32_t first = routes.first[node];
      paths = std::min<std::uint64_t>(paths * (routes.first[node + 1] - first), kMostPaths);
      const Link& link = links_[routes.link[first]];
      delay = delay + link.latency + sending_time(link, bytes);
      node = routes.node[first];
    }
    return {static_cast<std::uint32_t>(paths), delay};
  }

  // ---- Events

  Ended end(Ended why) { return ended_ = why; }

  /// Brings what the next events touch nearer: packets a slot ahead, then where they go, then the link.
  void prefetch() const {
    if (wheel_.slot_begins()) {
      wheel_.look_into_next_slot(32, [this](std::uint32_t what) { prefetch_subject(what); });
      for (std::size_t i = 0; i < 32 && wheel_.has_ahead(i); ++i) {
        const std::uint32_t what = wheel_.ahead(i);
        if (Event::kind(what) != kArrive) continue;
        const Packet& packet = pool_[Event::index(what)];
        if (packet.node == kNone)
          __builtin_prefetch(&flows_[packet.flow]);
        else
          __builtin_prefetch(&routes_[packet.node]);
      }
    }
    if (wheel_.has_ahead(2) && Event::kind(wheel_.ahead(2)) == kArrive) {
      const Packet& packet = pool_[Event::index(wheel_.ahead(2))];
      if (packet.node != kNone) {
        const PackedRoutes::Step step = routes_[packet.node];
        prefetch_link(PackedRoutes::is_several(step) ? routes_.choices(step)[2 + likely_choice(packet, routes_.choices(step))] : step.link);
      }
    }
  }
  std::uint32_t likely_choice(const Packet& packet, const std::uint32_t* set) const {
    if (settings_.choice == Choice::kEntropy) return by_entropy(packet, set);
    const std::uint32_t choices = set[0];
    return (choices & (choices - 1)) == 0 ? packet.path & (choices - 1) : packet.path % choices;
  }
  void prefetch_link(std::uint32_t link) const { __builtin_prefetch(&links_[link], 1); }
  void prefetch_subject(std::uint32_t what) const {
    if (Event::kind(what) == kServe)
      prefetch_link(Event::index(what));
    else if (Event::kind(what) == kArrive)
      __builtin_prefetch(&pool_[Event::index(what)], 1);
  }

  void happen(std::uint32_t kind, std::uint32_t index) {
    switch (kind) {
      case kArrive: arrive(index); break;
      case kServe:
        links_[index].serve_pending = false;
        serve(index);
        break;
      case kStart:
        if (index + 1 < starts_.size()) wheel_.push(Picoseconds{starts_[index + 1].first}, event(kStart, index + 1));
        start(starts_[index].second);
        break;
      case kPace:
        flows_[index].paced = false;
        offer(index);
        break;
      case kPull: pull_due(index); break;
      case kPause: pause(index); break;
      case kResume: resume(index); break;
      case kCreditBack: credit_back(index); break;
      case kAlpha:
        --timers_;
        if (flows_[index].complete) break;
        if (dcqcn_[index].alpha_due <= now_) dcqcn_[index].alpha_timer(settings_.dcqcn);
        set_timer(dcqcn_[index].alpha_due, kAlpha, index);
        break;
      case kIncrease:
        --timers_;
        if (flows_[index].complete) break;
        if (dcqcn_[index].increase_due <= now_) dcqcn_[index].increase_timer(settings_.dcqcn);
        set_timer(dcqcn_[index].increase_due, kIncrease, index);
        break;
      case kTimeout: timeout(index); break;
      default: sample(); break;
    }
  }

  void sample() {
    --timers_;
    sample_times_.push_back(count(now_));
    for (const Link& link : links_) samples_.push_back(static_cast<std::int32_t>(queued(link)));
    if (unfinished_ > 0) set_timer(now_ + settings_.sample_every, kSample, 0);
  }

  void arrive(std::uint32_t index) {
    Packet& packet = pool_[index];
    if (packet.node == kNone) {
      const std::uint32_t link = packet.link;
      if (settings_.overflow == Overflow::kCredit) return_credit(link, packet.queue_class(), packet.bytes, now_);
      deliver(index);
      return;
    }
    forward(index);
  }

  // ---- When nothing moves

  static bool blocked_with_packets(const Link& link) { return link.waiting != 0 || link.ready; }

  /// The link behind which a blocked link's next buffer is full: what holds most of what it brought.
  std::uint32_t waits_for(std::uint32_t at) const {
    for (std::size_t i = 0; i < links_.size(); ++i) {
      if (!blocked_with_packets(links_[i])) continue;
      for (std::size_t c = 1; c < kClasses; ++c)
        for (std::uint32_t p = links_[i].queue(c).packets.head; p != kNone; p = pool_[p].next)
          if (pool_[p].ingress == at) return static_cast<std::uint32_t>(i);
    }
    return kNone;
  }
};

}  // namespace busbw::sim::packet
