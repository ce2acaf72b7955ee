/// What all parts of the packet simulator share: the clock, links, packets, flows, and what is told of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "busbw/sim/packet/congestion.hpp"
#include "busbw/sim/packet/event_wheel.hpp"
#include "busbw/sim/packet/flow.hpp"
#include "busbw/sim/packet/network.hpp"
#include "busbw/sim/packet/packed_routes.hpp"
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

class State {
 protected:
  explicit State(const Settings& settings) : settings_(settings) {}
  ~State() = default;
  State(const State&) = default;
  State& operator=(const State&) = default;

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

  /// An event that moves nothing by itself: if only such are left, the network stands still.
  void set_timer(Picoseconds when, Kind kind, std::uint32_t index) {
    ++timers_;
    wheel_.push(when, event(kind, index));
  }

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

  std::uint64_t draw() { return mixed(settings_.seed * 0x9E3779B97F4A7C15ULL + ++drawn_); }

  bool has(const Flow& flow, std::uint32_t number) const {
    return (received_[static_cast<std::size_t>(flow.bitmap) + number / 64] >> (number % 64) & 1) != 0;
  }

  std::uint32_t take_packet() {
    const std::uint32_t index = pool_.take();
    if (!reports_.empty()) {
      if (reports_.size() <= index) reports_.resize(index + 1);
      reports_[index].fill(LinkReport{});
    }
    return index;
  }

  Settings settings_;
  PackedRoutes routes_;
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
