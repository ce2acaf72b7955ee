/// What a verifier says: rules broken, and where.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace busbw::schedule {

/// Same order as `busbw.collectives.legality.RULES`.
enum class Rule : std::uint8_t {
  kMalformed,
  kBounds,
  kConnectionShared,
  kConnectionMissing,
  kProtocolsDiffer,
  kCountsDiffer,
  kDeadlock,
  kFifoDepth,
  kLeftoverMessage,
  kLeftoverSignal,
  kSemaphoreBalance,
  kTwoAcquirers,
  kUninitialised,
  kMixedChunks,
  kDoubleContribution,
  kRace,
  kWeakOrder,
  kRelaunchRace,
  kNotEntered,
  kWrongResult,
  kPacketRewritten,
  kPacketAsData,
  kBarrierBlocks,
  kTooLong,
  kNotABarrier,
  kCount,
};

/// A row of a block of a rank; -1: none. Rows count from the block's first.
struct Place {
  std::int32_t rank = -1;
  std::int32_t block = -1;
  std::int32_t row = -1;
  std::int32_t turn = -1;  ///< of the innermost loop
};

struct Finding {
  Rule rule;
  Place at;
  Place other;                ///< the other access, sender or end
  std::int32_t owner = -1;    ///< rank whose memory it is about
  std::int32_t buffer = -1;
  std::int64_t chunk = -1;
  std::int64_t got = -1;      ///< content, count or value, by rule
  std::int64_t wanted = -1;
  std::int64_t got_set = -1;  ///< number of a set of ranks
  std::int64_t wanted_set = -1;
};

class Findings {
 public:
  static constexpr std::size_t kKeptPerRule = 16;  ///< the first suffice to mend a plan
  static constexpr std::size_t kKeptOfChain = 1 << 16;

  void add(const Finding& finding) {
    const bool chain = finding.rule == Rule::kDeadlock;  // who waits for whom is told as a whole
    if (totals_[index(finding.rule)]++ < (chain ? kKeptOfChain : kKeptPerRule)) kept_.push_back(finding);
  }
  /// Those of one rule.
  void add_all(const Findings& others, Rule rule) {
    std::uint64_t kept = 0;
    for (const auto& finding : others.kept_)
      if (finding.rule == rule) ++kept, add(finding);
    totals_[index(rule)] += others.total(rule) - kept;
  }
  void rename(Rule from, Rule to) {
    for (auto& finding : kept_)
      if (finding.rule == from) finding.rule = to;
    totals_[index(to)] += totals_[index(from)];
    totals_[index(from)] = 0;
  }
  std::uint64_t total(Rule rule) const { return totals_[index(rule)]; }
  const std::vector<Finding>& kept() const { return kept_; }

 private:
  static constexpr std::size_t kRules = static_cast<std::size_t>(Rule::kCount);
  static constexpr std::size_t index(Rule rule) { return static_cast<std::size_t>(rule); }
  std::array<std::uint64_t, kRules> totals_{};
  std::vector<Finding> kept_;
};

struct RunOptions {
  bool blocks_in_order = true;                       ///< an instruction sees those before it in its block
  bool double_scratch = false;
  std::uint32_t chunks_per_message = 1;              ///< more are cut into several, each of which takes a slot
  std::uint32_t parts = 1;                           ///< pieces of a chunk that blocks may share it in
  std::uint32_t slices = 1;                          ///< slices of a chunk in a kSlices loop
  std::uint32_t scratch_slices = 1;                  ///< slices that a scratch chunk has room for
  std::array<std::uint32_t, 4> slots{2, 8, 8, 1};    ///< messages in flight on a FIFO, by protocol
  std::uint64_t most_instructions = 200'000'000;
  bool barrier = false;                              ///< moves no data; nobody leaves before all have entered
};

inline constexpr std::int64_t kNoContent = -1;

}  // namespace busbw::schedule
