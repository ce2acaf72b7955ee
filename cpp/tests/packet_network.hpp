/// Small networks for tests of the packet simulator: links, ways over them, flows.
#pragma once

#include <cstdint>
#include <vector>

#include "busbw/sim/packet/simulation.hpp"

namespace busbw::testing {

namespace packet = busbw::sim::packet;
using busbw::sim::Picoseconds;

inline constexpr std::int64_t kNs = 1000;
inline constexpr std::int64_t kUs = 1000 * kNs;

struct SmallNetwork {
  packet::Routes routes{{0}, {}, {}};
  packet::LinkColumns links;
  packet::FlowColumns flows;

  /// A link of 12.5 GB/s, 80 ps a byte, unless told otherwise.
  std::uint32_t link(std::int64_t latency_ps, double bytes_per_s = 12.5e9) {
    links.bytes_per_s.push_back(bytes_per_s);
    links.latency_ps.push_back(latency_ps);
    return static_cast<std::uint32_t>(links.bytes_per_s.size() - 1);
  }
  /// A node of one choice before another, packet::kNone for the destination.
  std::uint32_t before(std::uint32_t node, std::uint32_t over) { return choose({{over, node}}); }
  std::uint32_t choose(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& choices) {
    for (const auto& [over, node] : choices) {
      routes.link.push_back(over);
      routes.node.push_back(node);
    }
    routes.first.push_back(static_cast<std::uint32_t>(routes.link.size()));
    return static_cast<std::uint32_t>(routes.first.size() - 2);
  }
  std::uint32_t way(const std::vector<std::uint32_t>& over) {
    std::uint32_t node = packet::kNone;
    for (auto at = over.rbegin(); at != over.rend(); ++at) node = before(node, *at);
    return node;
  }
  void flow(std::uint32_t forward, std::uint32_t backward, std::int64_t bytes, std::int64_t start_ps = 0, std::int32_t lane = 0) {
    flows.forward.push_back(forward);
    flows.backward.push_back(backward);
    flows.bytes.push_back(bytes);
    flows.start_ps.push_back(start_ps);
    flows.lane.push_back(lane);
  }
  packet::PacketSimulation simulation(const packet::Settings& settings) const { return {settings, routes, links, flows}; }
};

inline packet::Ended run(packet::PacketSimulation& simulation) { return simulation.run(~std::uint64_t{0}); }

/// Line rate under PFC that never pauses: packets of 1000 bytes, 80 ns at 12.5 GB/s.
inline packet::Settings plain() {
  packet::Settings settings;
  settings.transport = packet::Transport::kLineRate;
  settings.overflow = packet::Overflow::kPause;
  settings.in_order = true;
  settings.payload_bytes = 936;
  settings.header_bytes = 64;
  settings.queue_bytes = 1 << 30;
  settings.control_queue_bytes = 1 << 30;
  settings.pause_above_bytes = 1 << 30;
  settings.resume_below_bytes = 1;
  return settings;
}

inline packet::Settings credit(std::int64_t bytes) {
  packet::Settings settings = plain();
  settings.overflow = packet::Overflow::kCredit;
  settings.credit_bytes = bytes;
  return settings;
}

}  // namespace busbw::testing
