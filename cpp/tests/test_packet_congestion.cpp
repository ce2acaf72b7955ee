// Senders' rates and windows: fixed points worked out on paper, and what a bottleneck link makes of them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "busbw/sim/packet/congestion.hpp"
#include "check.hpp"
#include "packet_network.hpp"

using namespace busbw::testing;
using busbw::sim::count;

namespace {

bool near(double got, double want, double share) { return std::abs(got - want) <= share * std::abs(want); }

packet::DcqcnSettings dcqcn_settings() {
  return {Picoseconds{55 * kUs}, Picoseconds{55 * kUs}, Picoseconds{50 * kUs}, std::int64_t{1} << 40, 1.0 / 256, 5, 5e6, 50e6, 1e6};
}

/// A notification after every K rounds of the timer. alpha decays K times and is raised once: alpha = g / (1 - (1 - g)^(K + 1)).
/// The rate falls by alpha/2, halves the rest of its way back K times, and m = K - F additive steps have come to
/// A (m - 1 + 2^-m) by then; where the loss of a cycle equals that gain, R = 2^(K + 1) A (m - 1 + 2^-m) / alpha.
void dcqcn_settles_where_gain_equals_loss() {
  for (const int rounds : {6, 7, 8, 9}) {
    const packet::DcqcnSettings with = dcqcn_settings();
    packet::DcqcnSender sender;
    sender.line = 1e15;  // no ceiling
    sender.rate = sender.target = 12.5e9;
    double before = 0;
    double alpha_before = 0;
    for (int cycle = 0; cycle < 200'000; ++cycle) {
      before = sender.rate;
      alpha_before = sender.alpha;
      sender.notified(with, Picoseconds{0});
      for (int round = 0; round < rounds; ++round) {
        sender.alpha_timer(with);
        sender.increase_timer(with);
      }
    }
    const double g = with.g;
    const double alpha = std::pow(1 - g, rounds) * g / (1 - std::pow(1 - g, rounds + 1));  // at the end of its decay
    CHECK(near(alpha_before, alpha, 1e-9));
    const double steps = rounds - with.fast_recovery_rounds;
    CHECK(near(before, std::pow(2.0, rounds + 1) * with.additive_bytes_per_s * (steps - 1 + std::pow(2.0, -steps)) / alpha, 1e-6));
  }
}

/// A notification puts the timers off: none fires within their time of it.
void a_notification_starts_the_timers_anew() {
  packet::DcqcnSender sender;
  sender.rate = sender.target = sender.line = 12.5e9;
  sender.begin(dcqcn_settings(), Picoseconds{0});
  sender.notified(dcqcn_settings(), Picoseconds{40 * kUs});
  CHECK_EQUAL(count(sender.alpha_due), 95 * kUs);
  CHECK_EQUAL(count(sender.increase_due), 95 * kUs);
}

/// Senders of one bottleneck.
SmallNetwork bottleneck(std::size_t senders, std::int64_t packets, std::uint32_t& shared) {
  SmallNetwork net;
  shared = net.link(kUs);
  for (std::size_t i = 0; i < senders; ++i) net.flow(net.way({net.link(kUs), shared}), net.way({net.link(kUs), net.link(kUs)}), packets * 936);
  return net;
}

struct Shares {
  std::int64_t first = INT64_MAX;
  std::int64_t last = 0;
};
Shares shares(const packet::PacketSimulation& simulation) {
  Shares out;
  for (const auto& flow : simulation.flow_results()) {
    out.first = std::min(out.first, flow.delivered_ps);
    out.last = std::max(out.last, flow.delivered_ps);
  }
  return out;
}

/// Two DCQCN senders: equal shares, the link nearly full, and marks instead of pauses.
void dcqcn_shares_a_link() {
  std::uint32_t shared = 0;
  SmallNetwork net = bottleneck(2, 40'000, shared);
  packet::Settings settings = plain();
  settings.transport = packet::Transport::kDcqcn;
  settings.mark_from_bytes = 20'000;
  settings.mark_all_bytes = 200'000;
  settings.mark_probability = 0.01;
  settings.pause_above_bytes = 500'000;
  settings.resume_below_bytes = 400'000;
  settings.dcqcn = dcqcn_settings();
  settings.dcqcn.increase_bytes = 10'000'000;
  auto simulation = net.simulation(settings);
  CHECK(run(simulation) == packet::Ended::kDone);
  const Shares got = shares(simulation);
  CHECK(static_cast<double>(got.last) <= 1.1 * 80'000 * 80 * kNs);
  CHECK(near(static_cast<double>(got.first), static_cast<double>(got.last), 0.1));
  CHECK(simulation.link_counts()[shared].marked > 0);
  CHECK(simulation.link_counts()[shared].most_queued_bytes < 500'000);
}

/// HPCC: the link carries eta of what it can, with next to nothing queued once windows have settled.
void hpcc_leaves_a_little_of_the_link() {
  std::uint32_t shared = 0;
  SmallNetwork net = bottleneck(4, 20'000, shared);
  packet::Settings settings = plain();
  settings.transport = packet::Transport::kHpcc;
  settings.window = {0.95, 5, 80, 0, 0, Picoseconds{0}};
  settings.sample_every = Picoseconds{50 * kUs};
  auto simulation = net.simulation(settings);
  CHECK(run(simulation) == packet::Ended::kDone);
  const double used = 80'000.0 * 80 * kNs / static_cast<double>(shares(simulation).last);
  CHECK(used > 0.88 && used < 0.97);
  const std::size_t links = simulation.links().size();
  double queued = 0;
  const std::size_t from = simulation.sample_times_ps().size() / 2;
  for (std::size_t s = from; s < simulation.sample_times_ps().size(); ++s) queued += simulation.samples()[s * links + shared];
  CHECK(queued / static_cast<double>(simulation.sample_times_ps().size() - from) < 15'000);  // 12.5 kB is a tenth of a bandwidth-delay product
}

/// Swift: the queue settles near what its target delay holds, 5 us at 12.5 GB/s.
void swift_keeps_its_target_delay() {
  std::uint32_t shared = 0;
  SmallNetwork net = bottleneck(2, 20'000, shared);
  packet::Settings settings = plain();
  settings.transport = packet::Transport::kSwift;
  settings.in_order = false;
  settings.window = {0.95, 5, 1000, 0.8, 0.5, Picoseconds{5 * kUs}};
  settings.window_packets = 200;
  settings.sample_every = Picoseconds{50 * kUs};
  auto simulation = net.simulation(settings);
  CHECK(run(simulation) == packet::Ended::kDone);
  const std::size_t links = simulation.links().size();
  double queued = 0;
  const std::size_t from = simulation.sample_times_ps().size() / 2;
  for (std::size_t s = from; s < simulation.sample_times_ps().size(); ++s) queued += simulation.samples()[s * links + shared];
  CHECK(near(queued / static_cast<double>(simulation.sample_times_ps().size() - from), 62'500, 0.3));
  CHECK(near(static_cast<double>(shares(simulation).last), 40'000.0 * 80 * kNs, 0.03));
}

}  // namespace

int main() {
  dcqcn_settles_where_gain_equals_loss();
  a_notification_starts_the_timers_anew();
  dcqcn_shares_a_link();
  hpcc_leaves_a_little_of_the_link();
  swift_keeps_its_target_delay();
  return failures == 0 ? 0 : 1;
}
