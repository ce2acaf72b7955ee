/// How senders change rate or window: DCQCN, HPCC and Swift as functions of a flow's state, without queues or events.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "busbw/sim/packet/settings.hpp"
#include "busbw/sim/time.hpp"

namespace busbw::sim::packet {

/// A DCQCN sender. Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 5 and figure 7.
struct DcqcnSender {
  double rate = 0;    ///< bytes a second now
  double target = 0;
  double line = 0;
  double alpha = 1;
  std::int32_t timer_rounds = 0;
  std::int32_t byte_rounds = 0;
  std::int64_t bytes = 0;  ///< since the byte counter last fired
  Picoseconds alpha_due{0};     ///< when the timers fire; a notification starts them anew
  Picoseconds increase_due{0};

  void begin(const DcqcnSettings& with, Picoseconds now) {
    alpha_due = now + with.alpha_timer;
    increase_due = now + with.increase_timer;
  }
  void notified(const DcqcnSettings& with, Picoseconds now) {
    target = rate;
    rate = std::max(with.least_bytes_per_s, rate * (1 - alpha / 2));
    alpha = (1 - with.g) * alpha + with.g;
    timer_rounds = byte_rounds = 0;
    bytes = 0;
    begin(with, now);
  }
  void alpha_timer(const DcqcnSettings& with) {
    alpha = (1 - with.g) * alpha;
    alpha_due = alpha_due + with.alpha_timer;
  }
  void increase_timer(const DcqcnSettings& with) {
    ++timer_rounds;
    increase(with);
    increase_due = increase_due + with.increase_timer;
  }
  void sent(const DcqcnSettings& with, std::int64_t count) {
    bytes += count;
    while (bytes >= with.increase_bytes) {
      bytes -= with.increase_bytes;
      ++byte_rounds;
      increase(with);
    }
  }

 private:
  void increase(const DcqcnSettings& with) {
    const auto rounds = with.fast_recovery_rounds;
    if (timer_rounds > rounds && byte_rounds > rounds)
      target += with.hyper_bytes_per_s * (std::min(timer_rounds, byte_rounds) - rounds);
    else if (timer_rounds > rounds || byte_rounds > rounds)
      target += with.additive_bytes_per_s;
    target = std::min(target, line);
    rate = (target + rate) / 2;
  }
};

/// What a link tells of itself to HPCC.
struct LinkReport {
  Picoseconds time{0};
  std::int64_t sent_bytes = 0;
  std::int64_t queued_bytes = 0;
  double bytes_per_s = 0;
  std::uint32_t link = ~0U;
};

inline constexpr std::size_t kMostReports = 8;  ///< hops reported; more are left out

/// An HPCC sender. Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019, algorithm 1.
struct HpccSender {
  double window = 0;
  double reference = 0;
  double largest = 0;
  double utilisation = 0;
  std::int32_t stage = 0;
  std::uint32_t update_after = 0;  ///< the reference changes when a packet sent from now on is acknowledged
  std::array<LinkReport, kMostReports> last{};

  void acknowledged(const WindowSettings& with, const std::array<LinkReport, kMostReports>& reports, double base_rtt_s, std::uint32_t number,
                    std::uint32_t next_number) {
    double most = 0;
    double tau = base_rtt_s;
    bool seen = false;
    for (std::size_t i = 0; i < kMostReports && reports[i].link != ~0U; ++i) {
      const LinkReport& now = reports[i];
      const LinkReport& before = last[i];
      if (before.link != now.link || now.time <= before.time) continue;
      const double elapsed = static_cast<double>(count(now.time - before.time)) * 1e-12;
      const double sent = static_cast<double>(now.sent_bytes - before.sent_bytes) / elapsed;
      const double queued = static_cast<double>(std::min(now.queued_bytes, before.queued_bytes));
      const double here = queued / (now.bytes_per_s * base_rtt_s) + sent / now.bytes_per_s;
      if (!seen || here > most) {
        most = here;
        tau = elapsed;
      }
      seen = true;
    }
    last = reports;
    if (!seen) return;
    tau = std::min(tau, base_rtt_s);
    utilisation = (1 - tau / base_rtt_s) * utilisation + tau / base_rtt_s * most;
    const bool update = number >= update_after;
    double next = 0;
    if (utilisation >= with.eta || stage >= with.most_stages) {
      next = reference / std::max(utilisation / with.eta, 1e-3) + with.additive_bytes;
      if (update) stage = 0;
    } else {
      next = reference + with.additive_bytes;
      if (update) ++stage;
    }
    window = std::clamp(next, with.additive_bytes, largest);
    if (update) {
      reference = window;
      update_after = next_number;
    }
  }
};

/// A Swift sender. Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM 2020, algorithm 1;
/// one target delay for all flows, no scaling by hops or windows.
struct SwiftSender {
  double window = 0;   ///< bytes
  double largest = 0;
  Picoseconds last_decrease{0};

  void acknowledged(const WindowSettings& with, Picoseconds now, Picoseconds rtt, Picoseconds base_rtt, double bytes) {
    const Picoseconds target = base_rtt + with.target_delay;
    if (rtt < target) {
      window += with.additive_bytes * (window >= bytes ? bytes / window : 1.0);
    } else if (now - last_decrease >= rtt) {
      const double excess = static_cast<double>(count(rtt - target)) / static_cast<double>(count(rtt));
      window *= std::max(1 - with.beta * excess, 1 - with.most_decrease);
      last_decrease = now;
    }
    window = std::clamp(window, 1.0, largest);
  }
  /// Nothing was heard for too long: the largest decrease.
  void silent(const WindowSettings& with, Picoseconds now) {
    window = std::max(1.0, window * (1 - with.most_decrease));
    last_decrease = now;
  }
};

}  // namespace busbw::sim::packet
