/// What a packet simulation is told: transport, queues, switches' choices, limits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "busbw/sim/time.hpp"

namespace busbw::sim::packet {

enum class Transport : std::uint8_t {
  kNdp,       ///< receiver pulls one packet for each that came, whole or trimmed; Handley et al., SIGCOMM 2017
  kEqds,      ///< receiver gives credit in bytes, sender speculates until it hears; Olteanu et al., NSDI 2022; UEC's RCCC is like it
  kLineRate,  ///< sends at its rate: RoCE without congestion control, InfiniBand's reliable connection
  kDcqcn,     ///< rate by marks; Zhu et al., SIGCOMM 2015
  kHpcc,      ///< window by what links report; Li et al., SIGCOMM 2019
  kSwift,     ///< window by delay; Kumar et al., SIGCOMM 2020
};

/// What a full queue does.
enum class Overflow : std::uint8_t {
  kDrop,    ///< the packet is gone
  kTrim,    ///< its payload is gone, the header goes on before all data
  kPause,   ///< PFC: the switch tells the sender of the link to stop; nothing is lost
  kCredit,  ///< InfiniBand: a sender transmits only what the next buffer has room for
};

/// How a switch chooses where more than one link leads on.
enum class Choice : std::uint8_t {
  kPaths,     ///< packets of a flow take all its paths in a shuffled order, again and again
  kEntropy,   ///< a hash of the flow, a number that the packet carries, and the switch
  kRandom,    ///< each packet at each switch anew
  kAdaptive,  ///< the link with the least queued; ties by kRandom
};

struct DcqcnSettings {
  Picoseconds alpha_timer;       ///< alpha decays once in it without a mark
  Picoseconds increase_timer;
  Picoseconds notify_interval;   ///< least time between two congestion notifications of a flow
  std::int64_t increase_bytes;   ///< byte counter
  double g;
  std::int32_t fast_recovery_rounds;
  double additive_bytes_per_s;
  double hyper_bytes_per_s;
  double least_bytes_per_s;
};

struct WindowSettings {
  double eta;                  ///< HPCC: utilisation aimed at
  std::int32_t most_stages;    ///< HPCC: additive increases in a row
  double additive_bytes;       ///< HPCC and Swift: added once a round trip
  double beta;                 ///< Swift: how much of the excess delay is taken off
  double most_decrease;        ///< Swift: largest decrease at once
  Picoseconds target_delay;    ///< Swift: above the base round trip
};

struct Settings {
  Transport transport = Transport::kNdp;
  Overflow overflow = Overflow::kTrim;
  Choice choice = Choice::kPaths;
  std::int32_t payload_bytes = 4096;
  std::int32_t header_bytes = 64;
  std::int32_t control_bytes = 64;          ///< acknowledgements, pulls, trimmed headers
  bool in_order = false;                    ///< the receiver takes packets in order only, the source goes back to what it lacks
  bool control_before_data = true;          ///< else in the queue of data
  std::int64_t queue_bytes = 0;             ///< room for data in an output queue, the packet being sent included
  std::int64_t control_queue_bytes = 0;
  std::int64_t mark_from_bytes = 0;         ///< ECN: never below, always above mark_all_bytes, in between in proportion
  std::int64_t mark_all_bytes = 0;          ///< 0: no marks
  double mark_probability = 1.0;            ///< just below mark_all_bytes
  std::int64_t pause_above_bytes = 0;       ///< PFC, of what one link brought into a switch
  std::int64_t resume_below_bytes = 0;
  std::int64_t credit_bytes = 0;            ///< room of a link's far buffer, one virtual lane
  std::int32_t lanes = 1;                   ///< virtual lanes of data; flows say theirs
  std::int32_t window_packets = 0;          ///< what a flow sends before it hears anything (kNdp, kEqds); the largest window (kHpcc, kSwift)
  std::int32_t entropies = 0;               ///< kEntropy: numbers a flow uses in turn; kPaths: most paths
  bool avoid_congested = false;             ///< a path that was trimmed or marked is skipped once
  double pull_rate = 1.0;                   ///< of the receiver's link
  std::int32_t pull_overhead_bytes = 0;     ///< what a receiver adds to a packet when it paces pulls
  std::int32_t pull_bytes = 0;              ///< kEqds: credit of one pull
  std::int32_t acknowledge_bytes = 0;       ///< kEqds: one acknowledgement for as many
  Picoseconds retransmit_after{0};          ///< without a sign of life from the receiver; 0: never
  DcqcnSettings dcqcn{};
  WindowSettings window{};
  std::uint64_t seed = 0;
  Picoseconds sample_every{0};              ///< 0: no samples of queues
  Picoseconds end_at = kNever;
  std::uint64_t most_events = ~std::uint64_t{0};
  std::size_t most_bytes = ~std::size_t{0};  ///< memory
};

}  // namespace busbw::sim::packet
