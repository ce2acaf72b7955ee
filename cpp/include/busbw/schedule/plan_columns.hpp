/// The columns of a plan, as `busbw.collectives.plan` lays them out: same names, same values, same bytes. Read by the verifier and on the device.
#pragma once

#if !defined(__CUDACC_RTC__)  // NVRTC has no standard headers; target.hpp gives these names there
#include <cstddef>
#include <cstdint>
#endif

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
enum class Reduction : std::uint8_t { kCall, kSum, kMin, kMax };
enum class Protocol : std::uint8_t { kSimple, kLl, kLl128, kZeroCopy };
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
  std::int32_t src_step[kMaxLoops];
  std::int32_t dst_step[kMaxLoops];
  std::int32_t via_step[kMaxLoops];
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

}  // namespace busbw::schedule
