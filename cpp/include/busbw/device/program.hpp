/// A rank's part of a plan, linked: its rows as they are, and where each connection, buffer and counter lies. The host makes it
/// (`busbw.execution.linking`), the interpreter runs it.
#pragma once

#include "busbw/device/network.hpp"
#include "busbw/schedule/plan_columns.hpp"

namespace busbw::device {

namespace plan = busbw::schedule;

/// A row of the plan's connections, linked. Offsets are bytes in the wire window; "their" is in the peer's part of it, the others in this rank's.
/// FIFO: the writer counts messages in `their` of the reader, the reader counts free slots in `their` of the writer; `slots_at` is at the reader.
/// MEMORY and PORT: `their` counts the signals to the peer, `mine` those from it; a PORT's orders go into the ring at `slots_at`, here, of `slots`. SWITCH:
/// `peer` is a row of the groups.
struct Way {
  plan::ConnectionKind kind;
  plan::Protocol protocol;
  std::uint16_t slots;
  std::int32_t peer;
  std::uint64_t their;
  std::uint64_t mine;
  std::uint64_t slots_at;
  std::uint64_t slot_bytes;
  std::uint64_t count_at;  ///< messages or signals that this end has sent or taken; its own word
};
static_assert(sizeof(Way) == 48);

/// A buffer of a rank: `parts` parts of part_bytes each, one behind the other, in which chunks of Program::chunk_bytes are counted anew; the
/// last chunk of a part is cut where the part ends.
struct Space {
  std::byte* base;  ///< as this rank maps it; null if it does not
  std::uint64_t chunks_per_part;
  std::uint64_t part_bytes;
  std::uint64_t half_bytes;  ///< where the copy for every other launch begins; 0: there is one only
};
inline constexpr std::uint32_t kSpaces = 4;  ///< of a rank: input, output, scratch, and the packets in scratch
inline constexpr std::uint32_t kPacketSpace = 3;

/// Of a plan::ConnectionKind::kSwitch: who is reached.
struct Multicast {
  std::uint32_t members;
  std::uint32_t rank[kMostRanks];
};

/// What a run of a block's rows means to others, and to itself.
struct BlockRun {
  std::uint64_t flag_sets;  ///< how often the block sets its flag in it
  std::uint64_t leads;      ///< its first rows, sends, that are run before the end of the run before: what is on its way hides the wait for it
};

/// Passed by `__grid_constant__` on CUDA; what it points to lies in device memory and does not change. One launch at a time.
struct Program {
  std::uint32_t rank, ranks, blocks;
  bool in_order;             ///< a row sees what those before it in its block did; otherwise only what stands before a SYNC
  const plan::Row* rows;
  const plan::Block* block_rows;
  const plan::Walk* walks;
  const Way* ways;
  const Space* spaces;       ///< of rank r and buffer b: [r kSpaces + b]
  const Multicast* groups;
  const BlockRun* block_runs;      ///< of each block
  std::uint64_t chunk_bytes;       ///< a multiple of grain
  std::uint64_t run_bytes;         ///< of every chunk, that one run of the rows moves; a multiple of grain
  std::uint64_t grain;             ///< bytes in which what blocks share is cut: a multiple of a vector, and of a line's data where LL128 is used
  std::uint32_t runs;
  Window wire;               ///< counters and slots; zeros before the first launch, but for semaphores
  std::uint64_t blocks_at;   ///< of each block two lines: runs ended; its flag
  std::uint64_t barriers_at; ///< of each barrier between blocks a line
  std::uint64_t semaphores_at;  ///< of each semaphore two lines: releases; taken
  std::uint64_t proxy_at;    ///< two lines: blocks that ended, of all launches; launches that the proxy served
  std::uint32_t way_count;
  std::uint64_t wait_ns;

  static constexpr std::uint64_t kLine = 64;

  BUSBW_DEVICE std::uint64_t& word(std::uint32_t of, std::uint64_t offset) const { return *reinterpret_cast<std::uint64_t*>(wire.base[of] + offset); }
  BUSBW_DEVICE Report& report() const { return *reinterpret_cast<Report*>(wire.base[rank]); }
  BUSBW_DEVICE Ring ring(const Way& way) const { return {wire.base[rank] + way.slots_at, way.slots}; }
  BUSBW_DEVICE Deadline deadline() const { return Deadline(report(), wait_ns); }
};

}  // namespace busbw::device
