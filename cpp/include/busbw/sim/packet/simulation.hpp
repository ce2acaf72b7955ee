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

#include "busbw/sim/packet/congestion.hpp"
#include "busbw/sim/packet/event_wheel.hpp"
#include "busbw/sim/packet/network.hpp"
#include "busbw/sim/packet/packet_pool.hpp"
#include "busbw/sim/packet/random.hpp"
#include "busbw/sim/packet/settings.hpp"
#include "busbw/sim/time.hpp"

namespace busbw::sim::packet {

enum class Ended : std::int32_t {
  kNotYet,       ///< run() may be called again
  kDone,         ///< every flow is complete
  kStalled,      ///< nothing can happen any more, and some flow is not complete
  kTimeLimit,    ///< Settings::end_at
  kEventLimit,
  kMemoryLimit,
};

class PacketSimulation {
 public:
  /// Throws std::invalid_argument where columns do not fit each other, a bandwidth is not positive, or sizes are too large.
  PacketSimulation(const Settings& settings, Routes routes, const LinkColumns& links, const FlowColumns& flows)
      : settings_(settings), routes_(std::move(routes)) {
    check_routes(links.bytes_per_s.size());
    pack_routes();
    add_links(links);
    add_flows(flows);
    routes_ = {};
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
           steps_.capacity() * sizeof(Step) + sets_.capacity() * 4 + reports_.capacity() * sizeof(reports_[0]);
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
  enum Kind : std::uint32_t {
    kArrive,   // a packet, at the end of its link
    kServe,    // a link, which is free
    kStart,    // a flow
    kPace,     // a flow, which may send again
    kPull,     // a receiver's pacer, by the link it sends on
    kPause,    // a link, told by its far end
    kResume,
    kCreditBack,  // a packet that stands for room in a link's far buffer
    kAlpha,
    kIncrease,
    kTimeout,
    kSample,
  };
  static constexpr std::uint32_t event(Kind kind, std::uint32_t index) { return (static_cast<std::uint32_t>(kind) << Event::kIndexBits) | index; }

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

  // ---- Setting up

  void check_routes(std::size_t link_count) const {
    if (routes_.first.empty() || routes_.first.front() != 0 || routes_.first.back() != routes_.link.size() || routes_.link.size() != routes_.node.size())
      throw std::invalid_argument("columns of routes do not fit each other");
    const std::size_t nodes = routes_.first.size() - 1;
    for (std::size_t n = 0; n < nodes; ++n)
      if (routes_.first[n + 1] <= routes_.first[n]) throw std::invalid_argument("node " + std::to_string(n) + " of the routes leads nowhere");
    for (std::size_t c = 0; c < routes_.link.size(); ++c)
      if (routes_.link[c] >= link_count || (routes_.node[c] != kNone && routes_.node[c] >= nodes))
        throw std::invalid_argument("choice " + std::to_string(c) + " of the routes points outside");
  }

  /// A node of one choice is that choice. One of several names a set of links, which many nodes share, and the node behind the first.
  struct Step {
    std::uint32_t link;  ///< with kSeveral a place in sets_: number, stride, links
    std::uint32_t node;  ///< behind the first link; those behind the others follow in steps of the stride
  };
  static constexpr std::uint32_t kSeveral = 1U << 31;
  static constexpr std::uint32_t kListed = ~0U;  ///< a stride: nodes are listed after the links
  static constexpr bool is_several(Step step) { return (step.link & kSeveral) != 0; }

  void pack_routes() {
    const std::size_t nodes = routes_.first.size() - 1;
    steps_.resize(nodes);
    std::unordered_multimap<std::uint64_t, std::uint32_t> known;
    std::vector<std::uint32_t> set;
    for (std::size_t n = 0; n < nodes; ++n) {
      const std::uint32_t first = routes_.first[n];
      const std::uint32_t choices = routes_.first[n + 1] - first;
      steps_[n] = {routes_.link[first], routes_.node[first]};
      if (choices == 1) continue;
      const std::uint32_t stride = routes_.node[first + 1] - routes_.node[first];
      bool even = stride < kSeveral;
      for (std::uint32_t c = 1; c < choices; ++c) even = even && routes_.node[first + c] - routes_.node[first + c - 1] == stride;
      set.assign({choices, even ? stride : kListed});
      for (std::uint32_t c = 0; c < choices; ++c) set.push_back(routes_.link[first + c]);
      if (!even)
        for (std::uint32_t c = 0; c < choices; ++c) set.push_back(routes_.node[first + c]);
      steps_[n].link = kSeveral | place_of(set, known);
    }
  }

  std::uint32_t place_of(const std::vector<std::uint32_t>& set, std::unordered_multimap<std::uint64_t, std::uint32_t>& known) {
    std::uint64_t hash = 0;
    for (const std::uint32_t one : set) hash = mixed(hash ^ one);
    for (auto [at, end] = known.equal_range(hash); at != end; ++at)
      if (std::equal(set.begin(), set.end(), sets_.begin() + at->second)) return at->second;
    if (sets_.size() + set.size() >= kSeveral) throw std::invalid_argument("more than 2^31 choices of routes");
    const auto place = static_cast<std::uint32_t>(sets_.size());
    sets_.insert(sets_.end(), set.begin(), set.end());
    known.emplace(hash, place);
    return place;
  }

  /// What a choice of a node of several leads to.
  Step taken_step(Step step, std::uint32_t which) const {
    const std::uint32_t* set = &sets_[step.link & ~kSeveral];
    return {set[2 + which], set[1] == kListed ? set[2 + set[0] + which] : step.node + set[1] * which};
  }

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

  void add_flows(const FlowColumns& columns) {
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
    const std::size_t nodes = routes_.first.size() - 1;
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
        if (routes_.first[flow.forward + 1] - routes_.first[flow.forward] != 1 || routes_.first[flow.backward + 1] - routes_.first[flow.backward] != 1)
          throw std::invalid_argument("flow " + std::to_string(i) + " has a choice of first links");
        flow.link = routes_.link[routes_.first[flow.forward]];
        flow.pacer = routes_.link[routes_.first[flow.backward]];
        const auto [paths, delay] = walk(flow.forward, packet_bytes());
        const auto [paths_back, delay_back] = walk(flow.backward, settings_.control_bytes);
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
  std::pair<std::uint32_t, Picoseconds> walk(std::uint32_t node, std::int64_t bytes) const {
    std::uint64_t paths = 1;
    Picoseconds delay{0};
    for (std::size_t hops = 0; node != kNone; ++hops) {
      if (hops > routes_.first.size()) throw std::invalid_argument("a route runs in a circle");
      const std::uint32_t first = routes_.first[node];
      paths = std::min<std::uint64_t>(paths * (routes_.first[node + 1] - first), kMostPaths);
      const Link& link = links_[routes_.link[first]];
      delay = delay + link.latency + sending_time(link, bytes);
      node = routes_.node[first];
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
          __builtin_prefetch(&steps_[packet.node]);
      }
    }
    if (wheel_.has_ahead(2) && Event::kind(wheel_.ahead(2)) == kArrive) {
      const Packet& packet = pool_[Event::index(wheel_.ahead(2))];
      if (packet.node != kNone) {
        const Step step = steps_[packet.node];
        prefetch_link(is_several(step) ? sets_[(step.link & ~kSeveral) + 2 + likely_choice(packet, &sets_[step.link & ~kSeveral])] : step.link);
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

  /// An event that moves nothing by itself: if only such are left, the network stands still.
  void set_timer(Picoseconds when, Kind kind, std::uint32_t index) {
    ++timers_;
    wheel_.push(when, event(kind, index));
  }

  void sample() {
    --timers_;
    sample_times_.push_back(count(now_));
    for (const Link& link : links_) samples_.push_back(static_cast<std::int32_t>(queued(link)));
    if (unfinished_ > 0) set_timer(now_ + settings_.sample_every, kSample, 0);
  }

  // ---- Links and switches

  static constexpr int kRateBits = 20;
  static constexpr std::uint64_t kMostPaths = 1 << 16;
  static constexpr std::uint8_t kMostDoublings = 10;

  std::int32_t packet_bytes() const { return settings_.payload_bytes + settings_.header_bytes; }
  bool lossy() const { return settings_.overflow == Overflow::kDrop || settings_.overflow == Overflow::kTrim; }
  bool in_order() const { return settings_.in_order; }

  static Picoseconds sending_time(const Link& link, std::int64_t bytes) {
    return Picoseconds{static_cast<std::int64_t>((static_cast<std::uint64_t>(bytes) * link.ps_per_byte + (1U << (kRateBits - 1))) >> kRateBits)};
  }

  std::int64_t queued(const Link& link) const { return link.data_bytes() + (link.busy_until > now_ ? link.sending : 0); }

  std::uint8_t class_bits(const Flow& flow, bool control) const {
    return control && settings_.control_before_data ? std::uint8_t{0} : static_cast<std::uint8_t>((1U + flow.lane) << kClassShift);
  }

  bool idle(const Link& link) const { return !link.serve_pending && link.busy_until <= now_; }

  /// Whether the far end has room for a packet of a class.
  bool has_room(std::uint32_t at, const Link& link, std::size_t c, std::int32_t bytes) const {
    if ((link.paused >> c & 1) != 0) return false;
    return settings_.overflow != Overflow::kCredit || c == 0 || credit_[at * kMostLanes + c - 1] >= bytes;
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

  /// Puts a packet onto the next link of its way.
  void forward(std::uint32_t index) {
    Packet& packet = pool_[index];
    Step step = steps_[packet.node];
    if (is_several(step)) step = taken_step(step, choose(packet, &sets_[step.link & ~kSeveral]));
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

  std::uint64_t draw() { return mixed(settings_.seed * 0x9E3779B97F4A7C15ULL + ++drawn_); }

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

  // ---- Sources

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
  void inject(std::uint32_t at, Picoseconds start) {
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
    packet.node = steps_[flow.forward].node;
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

  std::uint32_t take_packet() {
    const std::uint32_t index = pool_.take();
    if (!reports_.empty()) {
      if (reports_.size() <= index) reports_.resize(index + 1);
      reports_[index].fill(LinkReport{});
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

  // ---- Receivers

  bool has(const Flow& flow, std::uint32_t number) const {
    return (received_[static_cast<std::size_t>(flow.bitmap) + number / 64] >> (number % 64) & 1) != 0;
  }

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
    packet.link = steps_[flow.backward].link;
    packet.node = steps_[flow.backward].node;
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

  Settings settings_;
  Routes routes_;
  std::vector<Step> steps_;
  std::vector<std::uint32_t> sets_;
  EventWheel wheel_;
  PacketPool pool_;
  std::vector<Link> links_;
  std::vector<LinkCounts> counts_;
  std::vector<std::int32_t> credit_;  ///< kCredit: room behind each link, kMostLanes a link
  std::vector<Pacer> pacers_;  ///< by the link their pulls leave on
  std::vector<Flow> flows_;
  std::vector<FlowResult> results_;
  std::vector<std::pair<std::int64_t, std::uint32_t>> starts_;  ///< time and flow, in order
  std::vector<std::uint64_t> received_;  ///< a bit a packet
  std::vector<std::uint64_t> skip_;      ///< a bit an entropy, a row a flow
  std::size_t skip_words_ = 0;
  bool notes_ = false;
  std::vector<DcqcnSender> dcqcn_;
  std::vector<HpccSender> hpcc_;
  std::vector<SwiftSender> swift_;
  std::vector<std::array<LinkReport, kMostReports>> reports_;  ///< by packet, kHpcc only
  std::vector<std::int32_t> samples_;
  std::vector<std::int64_t> sample_times_;
  Picoseconds now_{0};
  std::uint64_t events_ = 0;
  std::uint64_t drawn_ = 0;
  std::size_t unfinished_ = 0;
  std::size_t timers_ = 0;  ///< pending events that move nothing
  Ended ended_ = Ended::kNotYet;
};

}  // namespace busbw::sim::packet
