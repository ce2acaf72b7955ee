/// The rows of a plan, as `busbw.collectives.plan` lays them out: same names, same values, same bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace busbw::schedule {

enum class Op : std::uint8_t {
  kSend,
  kRecv,
  kRecvCopySend,
  kRecvReduceCopy,
  kRecvReduceSend,
  kRecvReduceCopySend,
  kCopy,
  kReduce,
  kPut,
  kPutSignal,
  kPutSignalFlush,
  kGet,
  kSignal,
  kWait,
  kFlush,
  kPack,
  kUnpack,
  kPutPackets,
  kForwardPackets,
  kReducePackets,
  kMulticast,
  kMulticastPackets,
  kGroupReduce,
  kGroupReduceMulticast,
  kSync,
  kBarrier,
  kFlagSet,
  kFlagWait,
  kRelease,
  kAcquire,
  kLoop,
  kSlices,
  kOperand,
};

enum class Buffer : std::uint8_t { kInput, kOutput, kScratch, kNone = 255 };
enum class Order : std::uint8_t { kRelaxed, kAcquire, kRelease };
enum class ConnectionKind : std::uint8_t { kFifoOut, kFifoIn, kMapped, kMemory, kPort, kSwitch };

inline constexpr std::int32_t kLocal = -1;
inline constexpr std::size_t kMaxLoops = 3;

struct Row {
  Op op;
  Order order;
  std::uint8_t reduction;
  std::uint8_t more;  ///< kOperand rows that follow
  Buffer src_buffer;
  Buffer dst_buffer;
  std::uint16_t walk;
  std::int32_t via;
  std::int32_t src;
  std::int32_t dst;
  std::int32_t count;
};
static_assert(sizeof(Row) == 24);

struct Walk {
  std::array<std::int32_t, kMaxLoops> src_step;
  std::array<std::int32_t, kMaxLoops> dst_step;
  std::array<std::int32_t, kMaxLoops> via_step;
  std::int32_t src_first;
  std::int32_t src_wrap;
  std::int32_t dst_first;
  std::int32_t dst_wrap;
  std::uint16_t part;
  std::uint16_t parts;
};
static_assert(sizeof(Walk) == 56);

struct Connection {
  ConnectionKind kind;
  std::uint8_t protocol;
  std::uint16_t slots;
  std::int32_t peer;
  std::int32_t channel;
};
static_assert(sizeof(Connection) == 12);

struct Block {
  std::int32_t first;
  std::int32_t last;
  std::int32_t channel;
};
static_assert(sizeof(Block) == 12);

struct Group {
  std::vector<std::int32_t> ranks;
  Buffer buffer;
};

/// What one rank runs. The spans belong to whoever made them and must outlive it.
struct RankRows {
  std::span<const Row> rows;
  std::span<const Block> blocks;
  std::span<const Connection> connections;
  std::span<const Walk> walks;
  std::vector<Group> groups;
  std::vector<std::int32_t> semaphores;     ///< initial values
  std::array<std::int32_t, 3> chunks;       ///< of input, output, scratch
  std::array<std::int64_t, 3> alias;        ///< chunk of the rank's memory at which each buffer begins; in place, two overlap
  std::int64_t memory_chunks = 0;           ///< chunks of memory that the buffers take together
};

}  // namespace busbw::schedule
