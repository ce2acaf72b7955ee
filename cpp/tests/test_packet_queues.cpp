// Packets through queues, where the answer can be worked out on paper. Packets are 1000 bytes, 80 ns on a link of 12.5 GB/s.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"
#include "packet_network.hpp"

using namespace busbw::testing;
using busbw::sim::count;
namespace {

constexpr std::int64_t kSend = 80 * kNs;
constexpr std::int64_t kControl = 64 * 80;  // ps of an acknowledgement

/// Store and forward: h hops cost h times sending and latency; the acknowledgement comes back likewise.
void one_packet_over_hops() {
  for (std::int64_t hops = 1; hops <= 6; ++hops) {
    SmallNetwork net;
    std::vector<std::uint32_t> there;
    std::vector<std::uint32_t> back;
    for (std::int64_t h = 0; h < hops; ++h) {
      there.push_back(net.link(kUs));
      back.push_back(net.link(kUs));
    }
    net.flow(net.way(there), net.way(back), 936);
    auto simulation = net.simulation(plain());
    CHECK(run(simulation) == packet::Ended::kDone);
    CHECK_EQUAL(simulation.flow_results()[0].delivered_ps, hops * (kSend + kUs));
    CHECK_EQUAL(simulation.flow_results()[0].completed_ps, hops * (kSend + kUs) + hops * (kControl + kUs));
  }
}

/// M packets follow each other at the first link's rate: (M - 1) times sending more.
void packets_follow_in_a_pipeline() {
  SmallNetwork net;
  net.flow(net.way({net.link(kUs), net.link(kUs), net.link(kUs)}), net.way({net.link(kUs)}), 50 * 936);
  auto simulation = net.simulation(plain());
  run(simulation);
  CHECK_EQUAL(simulation.flow_results()[0].delivered_ps, 3 * (kSend + kUs) + 49 * kSend);
}

/// A slower link in the middle sets the pace; what comes faster waits before it.
void the_slowest_link_sets_the_pace() {
  SmallNetwork net;
  const std::uint32_t slow = net.link(kUs, 6.25e9);
  net.flow(net.way({net.link(kUs), slow, net.link(kUs)}), net.way({net.link(kUs)}), 50 * 936);
  auto simulation = net.simulation(plain());
  run(simulation);
  CHECK_EQUAL(simulation.flow_results()[0].delivered_ps, 2 * (kSend + kUs) + (2 * kSend + kUs) + 49 * 2 * kSend);
  CHECK(simulation.link_counts()[slow].most_queued_bytes >= 24'000);  // half of 50 packets wait when the last has come
}

/// Two flows of M packets over one link: the link sends 2 M packets without a gap.
void two_flows_share_a_link() {
  SmallNetwork net;
  const std::uint32_t shared = net.link(kUs);
  net.flow(net.way({net.link(kUs), shared}), net.way({net.link(kUs)}), 40 * 936);
  net.flow(net.way({net.link(kUs), shared}), net.way({net.link(kUs)}), 40 * 936);
  auto simulation = net.simulation(plain());
  run(simulation);
  const auto& flows = simulation.flow_results();
  CHECK_EQUAL(std::max(flows[0].delivered_ps, flows[1].delivered_ps), kSend + kUs + 80 * kSend + kUs);
  CHECK_EQUAL(std::min(flows[0].delivered_ps, flows[1].delivered_ps), kSend + kUs + 79 * kSend + kUs);  // packets alternate
}

/// Flows of one source take turns at its link, so that equal ones end together; the one that began is a turn ahead.
void flows_of_one_source_take_turns() {
  SmallNetwork net;
  const std::uint32_t nic = net.link(kUs);
  for (int i = 0; i < 4; ++i) net.flow(net.way({nic, net.link(kUs)}), net.way({net.link(kUs)}), 10 * 936);
  auto simulation = net.simulation(plain());
  run(simulation);
  const std::int64_t beyond = kUs + kSend + kUs;
  const std::vector<std::int64_t> last{34, 38, 39, 40};  // place of each flow's tenth packet: 0 0 1 2 3 0 1 2 3 ... 1 2 3
  for (std::size_t i = 0; i < 4; ++i) CHECK_EQUAL(simulation.flow_results()[i].delivered_ps, last[i] * kSend + beyond);
}

/// Credit for one packet: the next goes when room is known to be free again, one sending time and both latencies later.
void credit_stall_has_the_length_of_a_round() {
  SmallNetwork net;
  const std::uint32_t only = net.link(kUs);
  net.flow(net.way({only}), net.way({net.link(kUs)}), 10 * 936);
  auto simulation = net.simulation(credit(1000));
  run(simulation);
  CHECK_EQUAL(simulation.flow_results()[0].delivered_ps, 9 * (kSend + 2 * kUs) + kSend + kUs);
  CHECK_EQUAL(simulation.link_counts()[only].paused_ps, 9 * 2 * kUs);
  CHECK_EQUAL(simulation.link_counts()[only].pauses, 9);
}

/// With room for a whole round, 2 latencies and a packet, credit never runs out.
void enough_credit_never_stalls() {
  SmallNetwork net;
  const std::uint32_t only = net.link(kUs);
  net.flow(net.way({only}), net.way({net.link(kUs)}), 100 * 936);
  auto simulation = net.simulation(credit(26 * 1000));  // 2 us / 80 ns = 25 packets, and one
  run(simulation);
  CHECK_EQUAL(simulation.flow_results()[0].delivered_ps, 100 * kSend + kUs);
  CHECK_EQUAL(simulation.link_counts()[only].pauses, 0);
}

/// PFC: two sources into one link; the switch stops both, nothing is lost, the link never idles, and no more waits than the threshold and
/// what is under way when the pause reaches the sources.
void pauses_reach_the_sources_and_lose_nothing() {
  SmallNetwork net;
  const std::uint32_t a = net.link(kUs);
  const std::uint32_t b = net.link(kUs);
  const std::uint32_t shared = net.link(kUs);
  net.flow(net.way({a, shared}), net.way({net.link(kUs)}), 400 * 936);
  net.flow(net.way({b, shared}), net.way({net.link(kUs)}), 400 * 936);
  packet::Settings settings = plain();
  settings.pause_above_bytes = 60'000;
  settings.resume_below_bytes = 50'000;
  auto simulation = net.simulation(settings);
  CHECK(run(simulation) == packet::Ended::kDone);
  const auto& counts = simulation.link_counts();
  CHECK(counts[a].pauses > 0 && counts[b].pauses > 0);
  const auto& flows = simulation.flow_results();
  CHECK_EQUAL(std::max(flows[0].delivered_ps, flows[1].delivered_ps), kSend + kUs + 800 * kSend + kUs);
  CHECK(counts[shared].most_queued_bytes <= 2 * (60'000 + 26 * 1000));  // a round of 2 us is 25 packets a source, and the one begun
}

/// PFC spreads: a victim that shares the paused link with a flow to the hot spot is held up, though its own way is free.
void a_victim_waits_behind_a_paused_link() {
  const auto victim = [](bool crowd) {
    SmallNetwork net;
    const std::uint32_t trunk = net.link(kUs);
    const std::uint32_t hot = net.link(kUs);
    net.flow(net.way({net.link(kUs), trunk, net.link(kUs)}), net.way({net.link(kUs)}), 100 * 936);  // the victim
    if (crowd)
      for (int i = 0; i < 3; ++i) net.flow(i == 0 ? net.way({net.link(kUs), trunk, hot}) : net.way({net.link(kUs), hot}), net.way({net.link(kUs)}), 400 * 936);
    packet::Settings settings = plain();
    settings.pause_above_bytes = 20'000;
    settings.resume_below_bytes = 15'000;
    auto simulation = net.simulation(settings);
    run(simulation);
    return simulation.flow_results()[0].delivered_ps;
  };
  CHECK_EQUAL(victim(false), 3 * (kSend + kUs) + 99 * kSend);
  CHECK(victim(true) > 2 * victim(false));
}

/// With a lane of its own the victim passes: credit is counted lane by lane.
void a_lane_of_its_own_passes() {
  const auto victim = [](std::int32_t lane) {
    SmallNetwork net;
    const std::uint32_t trunk = net.link(kUs);
    const std::uint32_t hot = net.link(kUs);
    net.flow(net.way({net.link(kUs), trunk, net.link(kUs)}), net.way({net.link(kUs)}), 100 * 936, 0, lane);
    for (int i = 0; i < 3; ++i) net.flow(i == 0 ? net.way({net.link(kUs), trunk, hot}) : net.way({net.link(kUs), hot}), net.way({net.link(kUs)}), 400 * 936);
    packet::Settings settings = credit(30'000);
    settings.lanes = 2;
    auto simulation = net.simulation(settings);
    run(simulation);
    return simulation.flow_results()[0].delivered_ps;
  };
  const std::int64_t alone = 3 * (kSend + kUs) + 99 * kSend;
  CHECK(victim(0) > 2 * alone);
  CHECK(victim(1) <= 2 * alone);  // it shares the trunk, no more
}

/// Four links in a ring, each flow over two of them, buffers of one packet: each waits for room that the next holds.
void a_ring_of_credit_stands_still_and_is_named() {
  SmallNetwork net;
  std::vector<std::uint32_t> ring;
  for (int i = 0; i < 4; ++i) ring.push_back(net.link(kUs));
  for (std::size_t i = 0; i < 4; ++i) net.flow(net.way({ring[i], ring[(i + 1) % 4], ring[(i + 2) % 4]}), net.way({net.link(kUs)}), 20 * 936);
  auto simulation = net.simulation(credit(1000));
  CHECK(run(simulation) == packet::Ended::kStalled);
  CHECK_EQUAL(simulation.waiting_chain().size(), 4U);
  CHECK_EQUAL(simulation.unfinished(), 4U);
}

/// Trimming: of what does not fit only headers go on, and every byte arrives in the end.
void trimmed_packets_come_again() {
  SmallNetwork net;
  const std::uint32_t shared = net.link(kUs);
  for (int i = 0; i < 10; ++i) net.flow(net.way({net.link(kUs), shared}), net.way({net.link(kUs), net.link(kUs)}), 30 * 936);
  packet::Settings settings = plain();
  settings.transport = packet::Transport::kNdp;
  settings.overflow = packet::Overflow::kTrim;
  settings.in_order = false;
  settings.queue_bytes = 8'000;
  settings.control_queue_bytes = 16'000;
  settings.window_packets = 20;
  auto simulation = net.simulation(settings);
  CHECK(run(simulation) == packet::Ended::kDone);
  std::int64_t trimmed = 0;
  for (const auto& flow : simulation.flow_results()) {
    CHECK_EQUAL(flow.delivered_bytes, 30 * 936);
    CHECK_EQUAL(flow.again_packets, flow.trimmed_packets);
    trimmed += flow.trimmed_packets;
  }
  CHECK(trimmed > 0);
  CHECK_EQUAL(simulation.link_counts()[shared].trimmed, trimmed);
  CHECK(simulation.link_counts()[shared].most_queued_bytes <= 8'000);
}

/// Drops are found by the receiver's silence, and every byte arrives in the end.
void dropped_packets_come_again() {
  for (const auto transport : {packet::Transport::kLineRate, packet::Transport::kSwift}) {
    SmallNetwork net;
    const std::uint32_t shared = net.link(kUs);
    for (int i = 0; i < 5; ++i) net.flow(net.way({net.link(kUs), shared}), net.way({net.link(kUs)}), 30 * 936);
    packet::Settings settings = plain();
    settings.transport = transport;
    settings.overflow = packet::Overflow::kDrop;
    settings.in_order = transport == packet::Transport::kLineRate;
    settings.queue_bytes = 8'000;
    settings.retransmit_after = Picoseconds{100 * kUs};
    settings.window = {0.95, 5, 1000, 0.8, 0.5, Picoseconds{kUs}};
    auto simulation = net.simulation(settings);
    CHECK(run(simulation) == packet::Ended::kDone);
    for (const auto& flow : simulation.flow_results()) CHECK_EQUAL(flow.delivered_bytes, 30 * 936);
    CHECK(simulation.link_counts()[shared].dropped > 0);
  }
}

/// Adaptive routing takes the free one of two links; a spray of packets takes both alike.
void choices_spread_packets() {
  for (const auto choice : {packet::Choice::kAdaptive, packet::Choice::kPaths, packet::Choice::kRandom}) {
    SmallNetwork net;
    const std::uint32_t left = net.link(kUs);
    const std::uint32_t right = net.link(kUs);
    const std::uint32_t nic = net.link(kUs, 25e9);
    const std::uint32_t fork = net.choose({{left, packet::kNone}, {right, packet::kNone}});
    net.flow(net.before(fork, nic), net.way({net.link(kUs)}), 400 * 936);
    packet::Settings settings = plain();
    settings.in_order = false;
    settings.choice = choice;
    auto simulation = net.simulation(settings);
    run(simulation);
    const std::int64_t taken = simulation.links()[left].packets;
    CHECK_EQUAL(taken + simulation.links()[right].packets, 400);
    if (choice == packet::Choice::kRandom)
      CHECK(taken > 150 && taken < 250);  // 5 standard deviations
    else
      CHECK_EQUAL(taken, 200);
  }
}

/// The same seed gives the same run, another seed another one.
void the_same_seed_gives_the_same_run() {
  const auto last = [](std::uint64_t seed) {
    SmallNetwork net;
    const std::uint32_t shared = net.link(kUs);
    const std::uint32_t other = net.link(kUs);
    for (int i = 0; i < 8; ++i)
      net.flow(net.before(net.choose({{shared, packet::kNone}, {other, packet::kNone}}), net.link(kUs)), net.way({net.link(kUs)}), 100 * 936);
    packet::Settings settings = plain();
    settings.in_order = false;
    settings.choice = packet::Choice::kRandom;
    settings.seed = seed;
    auto simulation = net.simulation(settings);
    run(simulation);
    std::vector<std::int64_t> times;
    for (const auto& flow : simulation.flow_results()) times.push_back(flow.completed_ps);
    return times;
  };
  CHECK(last(1) == last(1));
  CHECK(last(1) != last(2));
}

/// Limits end a run and keep what is known.
void limits_end_a_run() {
  SmallNetwork net;
  net.flow(net.way({net.link(kUs)}), net.way({net.link(kUs)}), 1000 * 936);
  packet::Settings settings = plain();
  settings.end_at = Picoseconds{10 * kUs};
  auto by_time = net.simulation(settings);
  CHECK(run(by_time) == packet::Ended::kTimeLimit);
  CHECK_EQUAL(by_time.flow_results()[0].delivered_bytes, 112 * 936);  // (10 us - 1 us) / 80 ns, rounded down
  settings = plain();
  settings.most_events = 100;
  auto by_events = net.simulation(settings);
  CHECK(run(by_events) == packet::Ended::kEventLimit);
  CHECK_EQUAL(by_events.events(), 100U);
}

void wrong_input_is_named() {
  SmallNetwork net;
  net.flow(net.way({net.link(kUs, 0.0)}), net.way({net.link(kUs)}), 936);
  CHECK_THROWS(std::invalid_argument, net.simulation(plain()));
  SmallNetwork circle;
  const std::uint32_t over = circle.link(kUs);
  circle.flow(circle.choose({{over, 0}}), 0, 936);
  CHECK_THROWS(std::invalid_argument, circle.simulation(plain()));
  SmallNetwork small;
  small.flow(small.way({small.link(kUs)}), small.way({small.link(kUs)}), 936);
  CHECK_THROWS(std::invalid_argument, small.simulation(credit(999)));
}

}  // namespace

int main() {
  one_packet_over_hops();
  packets_follow_in_a_pipeline();
  the_slowest_link_sets_the_pace();
  two_flows_share_a_link();
  flows_of_one_source_take_turns();
  credit_stall_has_the_length_of_a_round();
  enough_credit_never_stalls();
  pauses_reach_the_sources_and_lose_nothing();
  a_victim_waits_behind_a_paused_link();
  a_lane_of_its_own_passes();
  a_ring_of_credit_stands_still_and_is_named();
  trimmed_packets_come_again();
  dropped_packets_come_again();
  choices_spread_packets();
  the_same_seed_gives_the_same_run();
  limits_end_a_run();
  wrong_input_is_named();
  return failures == 0 ? 0 : 1;
}
