// Programs on the simulated weak memory: the plan interpreter, ports and their proxy, experts, the fused product. Right on every seed.
#define BUSBW_TARGET_SIM
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "busbw/device/kernels/experts.hpp"
#include "busbw/device/kernels/gemm_all_reduce.hpp"
#include "busbw/device/kernels/interpreter.hpp"
#include "busbw/device/plan_proxy.hpp"
#include "check.hpp"

using namespace busbw::device;
using plan::ConnectionKind;
using plan::Op;
using plan::Protocol;
using PlanBuffer = plan::Buffer;
using PlanOrder = plan::Order;

namespace {

std::uint64_t primitives = 0, schedules = 0;

/// Says what went wrong, with the seed that shows it.
bool right(const sim::World& world, const std::string& wrong, const std::string& name, std::uint64_t seed) {
  primitives += world.result().primitives;
  ++schedules;
  const std::string said = !world.result().deadlock.empty() ? "deadlock: " + world.result().deadlock : !world.result().races.empty() ? world.result().races[0] : wrong;
  if (!said.empty()) std::cerr << name << " seed " << seed << ": " << said << '\n';
  CHECK(said.empty());
  return said.empty();
}

// Plans

constexpr std::int32_t kChunks = 2;          ///< of input, output and scratch, on two ranks
constexpr std::uint64_t kChunkBytes = 960;   ///< whole lines of LL128
constexpr std::uint64_t kBufferBytes = kChunks * kChunkBytes - 12;  ///< the last chunk is cut
constexpr std::uint64_t kSlotBytes = 4096, kLine = Program::kLine;

plan::Row row(Op op, std::int32_t via, PlanBuffer src_buffer, std::int32_t src, PlanBuffer dst_buffer, std::int32_t dst, std::int32_t count = 1,
              PlanOrder order = PlanOrder::kRelaxed, std::uint8_t more = 0) {
  return {op, order, 0, more, src_buffer, dst_buffer, 0, via, src, dst, count};
}
plan::Row control(Op op, std::int32_t via = plan::kLocal, PlanOrder order = PlanOrder::kRelaxed, std::int32_t src = -1, std::int32_t count = 0) {
  return row(op, via, PlanBuffer::kNone, src, PlanBuffer::kNone, -1, count, order);
}

/// Two ranks, which run the same rows but where one has others. Connection 0: FIFO to the peer, 1: from it, 2: its memory and signals, 3: a port.
struct Two {
  const char* name;
  std::vector<std::vector<plan::Row>> blocks;
  std::function<float(std::uint32_t call, std::uint32_t rank, std::size_t i)> expected;
  bool in_order = true;
  Protocol protocol = Protocol::kSimple;
  std::uint64_t run_bytes = kChunkBytes;
  std::uint64_t flag_sets = 0;  ///< of the first block
  bool two_scratches = false;
  std::uint64_t leads = 0;  ///< rows of a block that are run before the run before has ended
  std::vector<std::vector<plan::Row>> others = {};  ///< of rank 1, if it runs other rows
};

float value(std::uint32_t call, std::uint32_t rank, std::size_t i) { return static_cast<float>(call * 100 + rank * 10 + i % 7); }
float sum(std::uint32_t call, std::uint32_t, std::size_t i) { return value(call, 0, i) + value(call, 1, i); }
float swapped(std::uint32_t call, std::uint32_t rank, std::size_t i) { return value(call, 1 - rank, i); }
float kept(std::uint32_t call, std::uint32_t rank, std::size_t i) { return value(call, rank, i); }

constexpr auto I = PlanBuffer::kInput, O = PlanBuffer::kOutput, S = PlanBuffer::kScratch, N = PlanBuffer::kNone;
constexpr auto R = PlanOrder::kRelease, A = PlanOrder::kAcquire;

std::vector<Two> two_rank_plans() {
  const std::vector<plan::Row> exchange = {row(Op::kSend, 0, I, 0, N, -1, 2), row(Op::kRecvReduceCopy, 1, I, 0, O, 0, 2)};
  const std::vector<plan::Row> there_and_back = {row(Op::kSend, 0, I, 0, N, -1), row(Op::kRecvReduceCopySend, 1, I, 0, O, 0, 1, PlanOrder::kRelaxed, 1),
                                                 control(Op::kOperand, 0), row(Op::kRecv, 1, N, -1, O, 0), row(Op::kSend, 0, I, 1, N, -1),
                                                 row(Op::kRecvReduceSend, 1, I, 1, N, -1, 1, PlanOrder::kRelaxed, 1), control(Op::kOperand, 0),
                                                 row(Op::kRecvCopySend, 1, N, -1, O, 1, 1, PlanOrder::kRelaxed, 1), control(Op::kOperand, 0),
                                                 row(Op::kRecv, 1, N, -1, O, 1)};
  std::vector<Two> out;
  for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128})
    for (const std::uint64_t run : {kChunkBytes, kChunkBytes / 2}) {
      out.push_back({"exchange", {exchange}, sum, true, protocol, run});
      if (run < kChunkBytes) {
        out.push_back({"exchange, sends ahead", {exchange}, sum, true, protocol, run});
        out.back().leads = 1;
        out.push_back({"exchange, threads apart, sends ahead", {exchange}, sum, false, protocol, run / 2});
        out.back().leads = 1;
      }
      out.push_back({"there and back", {there_and_back}, sum, true, protocol, run});
      // One way only: nothing but the slots tells the sender that the receiver is done.
      out.push_back({"one way", {{}}, [](std::uint32_t call, std::uint32_t, std::size_t i) { return value(call, 0, i); }, true, protocol, run});
      for (const std::int32_t chunk : {0, 1, 0, 1}) out.back().blocks[0].push_back(row(Op::kSend, 0, I, chunk, N, -1));
      out.back().blocks[0].push_back(row(Op::kCopy, plan::kLocal, I, 0, O, 0, 2));
      out.back().others = {{row(Op::kRecv, 1, N, -1, S, 0), row(Op::kRecv, 1, N, -1, S, 1), row(Op::kRecv, 1, N, -1, O, 0), row(Op::kRecv, 1, N, -1, O, 1)}};
    }
  const auto handshake = [](PlanOrder give, PlanOrder take, std::int32_t via = 2) {
    return std::vector<plan::Row>{control(Op::kSignal, via, give), control(Op::kWait, via, take)};
  };
  const auto joined = [](std::initializer_list<std::vector<plan::Row>> parts) {
    std::vector<plan::Row> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  const std::vector<plan::Row> enter = handshake(PlanOrder::kRelaxed, PlanOrder::kRelaxed), leave = handshake(R, A), sync = {control(Op::kSync)};
  out.push_back({"put", {joined({enter, {row(Op::kPut, 2, I, 0, O, 0, 2)}, leave})}, swapped});
  out.push_back({"put, threads apart", {joined({enter, sync, {row(Op::kPut, 2, I, 0, O, 0, 2)}, sync, leave})}, swapped, false});
  out.push_back({"put with signal", {joined({enter, {row(Op::kPutSignal, 2, I, 0, O, 0, 2), control(Op::kWait, 2, A)}})}, swapped});
  out.push_back({"get and reduce",
                 {joined({leave,
                          {row(Op::kGet, 2, I, 0, S, 0, 2), row(Op::kReduce, plan::kLocal, I, 0, O, 0, 2, PlanOrder::kRelaxed, 1), row(Op::kOperand, plan::kLocal, S, 0, N, -1, 2)},
                          leave})},
                 sum});
  out.push_back({"reduce at the peer",
                 {joined({leave, {row(Op::kReduce, plan::kLocal, I, 0, O, 0, 2, PlanOrder::kRelaxed, 1), row(Op::kOperand, 2, I, 0, N, -1, 2)}, leave})}, sum});
  out.push_back({"a sum stored twice",
                 {joined({leave,
                          {row(Op::kReduce, plan::kLocal, I, 0, S, 0, 2, PlanOrder::kRelaxed, 2), row(Op::kOperand, 2, I, 0, N, -1, 2), row(Op::kOperand, plan::kLocal, N, -1, O, 0, 2)},
                          leave})},
                 sum});
  out.push_back({"more sources than a pass takes", {{row(Op::kReduce, plan::kLocal, I, 0, O, 0, 2, PlanOrder::kRelaxed, 20)}}, kept});
  for (int i = 0; i < 20; ++i) out.back().blocks[0].push_back(row(Op::kOperand, plan::kLocal, S, 0, N, -1, 2));  // zeros
  out.push_back({"flags",
                 {{row(Op::kCopy, plan::kLocal, I, 0, S, 0), control(Op::kFlagSet, plan::kLocal, R), row(Op::kCopy, plan::kLocal, I, 1, S, 1), control(Op::kFlagSet, plan::kLocal, R)},
                  {control(Op::kFlagWait, 0, A, 1), row(Op::kCopy, plan::kLocal, S, 0, O, 0), control(Op::kFlagWait, 0, A, 2), row(Op::kCopy, plan::kLocal, S, 1, O, 1)}},
                 kept, true, Protocol::kSimple, kChunkBytes, 2});
  out.push_back({"semaphores",
                 {{row(Op::kCopy, plan::kLocal, I, 0, S, 0, 2), control(Op::kRelease, 0, R), control(Op::kAcquire, 1, A), row(Op::kCopy, plan::kLocal, I, 0, S, 0, 2)},
                  {control(Op::kAcquire, 0, A), row(Op::kCopy, plan::kLocal, S, 0, O, 0, 2), control(Op::kRelease, 1, R)}},
                 kept});
  out.push_back({"barrier of blocks",
                 {{row(Op::kCopy, plan::kLocal, I, 0, S, 0), control(Op::kBarrier, 0, PlanOrder::kRelaxed, -1, 2), row(Op::kCopy, plan::kLocal, S, 1, O, 0 + 1)},
                  {row(Op::kCopy, plan::kLocal, I, 1, S, 1), control(Op::kBarrier, 0, PlanOrder::kRelaxed, -1, 2), row(Op::kCopy, plan::kLocal, S, 0, O, 0)}},
                 kept, false});
  out.push_back({"packets",
                 {{row(Op::kPutPackets, 2, I, 0, S, 0, 2), row(Op::kReducePackets, plan::kLocal, I, 0, O, 0, 2, PlanOrder::kRelaxed, 1),
                   row(Op::kOperand, plan::kLocal, S, 0, N, -1, 2)}},
                 sum, false, Protocol::kSimple, kChunkBytes, 0, true});
  out.push_back({"packets on",
                 {{row(Op::kPack, plan::kLocal, I, 0, S, 0), row(Op::kForwardPackets, 2, S, 0, S, 1), row(Op::kUnpack, plan::kLocal, S, 1, O, 0), row(Op::kCopy, plan::kLocal, I, 1, O, 1)}},
                 [](std::uint32_t call, std::uint32_t rank, std::size_t i) { return i < kChunkBytes / 4 ? swapped(call, rank, i) : kept(call, rank, i); }, true, Protocol::kSimple,
                 kChunkBytes, 0, true});
  out.push_back({"port", {joined({handshake(R, A, 3), {row(Op::kPut, 3, I, 0, O, 0), row(Op::kPut, 3, I, 1, O, 1)}, handshake(R, A, 3), {control(Op::kFlush, 3)}})}, swapped});
  out.push_back({"port, left to the proxy", {joined({handshake(R, A, 3), {row(Op::kPut, 3, I, 0, O, 0), row(Op::kPutSignal, 3, I, 1, O, 1), control(Op::kWait, 3, A)}})}, swapped});
  // The first rank's block ends while its orders are under way: the proxy must stay until it has carried them out.
  out.push_back({"port, and gone",
                 {{control(Op::kWait, 2, A), row(Op::kCopy, plan::kLocal, I, 0, O, 0, 2), row(Op::kPut, 3, I, 0, O, 0), row(Op::kPutSignal, 3, I, 1, O, 1)}},
                 [](std::uint32_t call, std::uint32_t, std::size_t i) { return value(call, 0, i); }});
  out.back().others = {{control(Op::kSignal, 2, R), control(Op::kWait, 3, A)}};
  out.push_back({"port, flushed",
                 {joined({handshake(R, A, 3),
                          {row(Op::kCopy, plan::kLocal, I, 0, S, 0), row(Op::kPutSignalFlush, 3, S, 0, O, 0), row(Op::kCopy, plan::kLocal, I, 1, S, 0),
                           row(Op::kPutSignalFlush, 3, S, 0, O, 1), control(Op::kWait, 3, A), control(Op::kWait, 3, A)}})},
                 swapped});
  out.push_back({"packets through a port",
                 {{row(Op::kPack, plan::kLocal, I, 0, S, 0), control(Op::kSync), row(Op::kPutPackets, 3, S, 0, S, 1), row(Op::kUnpack, plan::kLocal, S, 1, O, 0),
                   row(Op::kCopy, plan::kLocal, I, 1, O, 1), control(Op::kFlush, 3)}},
                 [](std::uint32_t call, std::uint32_t rank, std::size_t i) { return i < kChunkBytes / 4 ? swapped(call, rank, i) : kept(call, rank, i); }, true, Protocol::kSimple,
                 kChunkBytes, 0, true});
  out.push_back({"switch", {joined({leave, {row(Op::kGroupReduce, 4, I, 0, O, 0), row(Op::kGroupReduce, 4, I, 1, O, 1)}, leave})}, sum});
  // What a row of a switch reads, or stores over, is what the row before it stored.
  out.push_back({"switch, over a copy",
                 {joined({leave, {row(Op::kCopy, plan::kLocal, I, 0, O, 0, 2), row(Op::kGroupReduce, 4, I, 0, O, 0), row(Op::kGroupReduce, 4, I, 1, O, 1)}, leave})}, sum});
  out.push_back({"switch, each for all", {joined({leave, {row(Op::kGroupReduceMulticast, 4, I, 0, O, 0)}, leave})}, sum});
  out.back().others = {joined({leave, {row(Op::kGroupReduceMulticast, 4, I, 1, O, 1)}, leave})};
  out.push_back({"multicast", {joined({leave, {row(Op::kMulticast, 4, I, 0, O, 0, 2)}, leave})}, [](std::uint32_t call, std::uint32_t, std::size_t i) { return value(call, 0, i); }});
  out.back().others = {joined({leave, leave})};
  out.push_back({"multicast of a copy",
                 {joined({leave, {row(Op::kCopy, plan::kLocal, I, 0, S, 0, 2), row(Op::kMulticast, 4, S, 0, O, 0, 2)}, leave})},
                 [](std::uint32_t call, std::uint32_t, std::size_t i) { return value(call, 0, i); }});
  out.back().others = {joined({leave, leave})};
  return out;
}

struct Linked {
  std::vector<plan::Row> rows;
  std::vector<plan::Block> blocks;
  std::vector<plan::Walk> walks{{{0, 0, 0}, {0, 0, 0}, {0, 0, 0}, 0, 0, 0, 0, 0, 1}};
  std::vector<Way> ways;
  std::vector<Space> spaces;
  std::vector<Multicast> groups;
  std::vector<BlockRun> block_runs;
  Program program{};
};

/// Where the pieces of a rank's heap lie: counters, slots, ring, buffers.
constexpr std::uint64_t kBlocksAt = kLine, kBarriersAt = kBlocksAt + 4 * kLine, kSemaphoresAt = kBarriersAt + kLine, kProxyAt = kSemaphoresAt + 4 * kLine,
                        kWaysAt = kProxyAt + 2 * kLine, kWayBytes = 2 * kLine, kSlotsAt = kWaysAt + 5 * kWayBytes, kRingAt = kSlotsAt + 2 * kSlotBytes, kDepth = 2,
                        kBuffersAt = kRingAt + 64 * 8, kBufferRoom = 2048, kPacketsAt = kBuffersAt + 4 * kBufferRoom, kHeapBytes = kPacketsAt + 4 * 2 * kChunks * kChunkBytes;

std::unique_ptr<Linked> linked(const Two& two, std::uint32_t rank, sim::World& world) {
  auto out = std::make_unique<Linked>();
  for (const auto& block : rank == 1 && !two.others.empty() ? two.others : two.blocks) {
    const auto first = static_cast<std::int32_t>(out->rows.size());
    out->rows.insert(out->rows.end(), block.begin(), block.end());
    out->blocks.push_back({first, static_cast<std::int32_t>(out->rows.size()), 0});
    out->block_runs.push_back({out->blocks.size() == 1 ? two.flag_sets : 0, two.leads});
  }
  const auto peer = static_cast<std::int32_t>(1 - rank);
  const auto at = [](std::uint64_t way) { return kWaysAt + way * kWayBytes; };
  const std::uint16_t slots = 2;
  out->ways = {{ConnectionKind::kFifoOut, two.protocol, slots, peer, at(1), at(0), kSlotsAt, kSlotBytes, at(0) + kLine},
               {ConnectionKind::kFifoIn, two.protocol, slots, peer, at(0), at(1), kSlotsAt, kSlotBytes, at(1) + kLine},
               {ConnectionKind::kMemory, Protocol::kSimple, 0, peer, at(2), at(2), 0, 0, at(2) + kLine},
               {ConnectionKind::kPort, Protocol::kSimple, kDepth, peer, at(3), at(3), kRingAt, 0, at(3) + kLine},
               {ConnectionKind::kSwitch, Protocol::kSimple, 0, 0, 0, 0, 0, 0, 0}};
  out->groups.push_back({2, {0, 1}});
  constexpr std::uint64_t kNever = std::uint64_t{1} << 62;
  for (std::uint32_t of = 0; of < 2; ++of) {
    std::byte* const heap = world.heap(of);
    out->spaces.push_back({heap + kBuffersAt, kChunks, kBufferBytes, 0});
    out->spaces.push_back({heap + kBuffersAt + kBufferRoom, kChunks, kBufferBytes, 0});
    out->spaces.push_back({heap + kBuffersAt + 2 * kBufferRoom, kNever, kChunks * kChunkBytes, two.two_scratches ? kBufferRoom : 0});
    out->spaces.push_back({heap + kPacketsAt, kNever, 2 * kChunks * kChunkBytes, two.two_scratches ? 4 * kChunks * kChunkBytes : 0});
  }
  Program& p = out->program;
  p = {rank, 2, static_cast<std::uint32_t>(two.blocks.size()), two.in_order, out->rows.data(), out->blocks.data(), out->walks.data(), out->ways.data(), out->spaces.data(),
       out->groups.data(), out->block_runs.data(), kChunkBytes, two.run_bytes, two.protocol == Protocol::kLl128 ? 120u : 48u,
       static_cast<std::uint32_t>(kChunkBytes / two.run_bytes), {}, kBlocksAt, kBarriersAt, kSemaphoresAt, kProxyAt, static_cast<std::uint32_t>(out->ways.size()), 0};
  for (std::uint32_t of = 0; of < 2; ++of) p.wire.base[of] = world.heap(of);
  return out;
}

bool uses_port(const Two& two) {
  for (const auto& block : two.blocks)
    for (const plan::Row& one : block)
      if (one.via == 3 && one.op != Op::kOperand) return true;
  return false;
}

void plans_are_right_on_every_seed(std::uint32_t seeds) {
  for (const Two& two : two_rank_plans())
    for (std::uint32_t seed = 0; seed < seeds; ++seed) {
      sim::SeededChooser chooser(seed);
      const std::uint32_t threads = 1 + seed % 3;
      const auto rows = static_cast<std::uint32_t>(two.blocks.size());
      const std::uint32_t blocks = rows + uses_port(two);
      sim::World world({.ranks = 2, .blocks = blocks, .threads = threads, .heap_bytes = kHeapBytes, .most_live_blocks = 0, .granule_bytes = 4, .launch_is_fence = true}, chooser);
      const std::unique_ptr<Linked> of[2] = {linked(two, 0, world), linked(two, 1, world)};
      std::vector<BlockBarrier> barriers(2 * std::size_t{blocks}, BlockBarrier(threads));
      std::string wrong;
      world.run([&](const sim::Place& place) {
        const Program& program = of[place.rank]->program;
        const Block block{place.block, blocks, place.thread, threads, &barriers[place.rank * blocks + place.block]};
        auto* const input = reinterpret_cast<float*>(program.spaces[place.rank * kSpaces].base);
        const auto* const output = reinterpret_cast<const float*>(program.spaces[place.rank * kSpaces + 1].base);
        const std::size_t me = place.block * threads + place.thread, all = std::size_t{blocks} * threads;
        for (std::uint32_t call = 0; call < 4; ++call) {
          for (std::size_t i = me; i < kBufferBytes / 4; i += all) weak_store(input + i, value(call, place.rank, i));
          world.next_launch();
          if (place.block == rows) {
            if (place.thread == 0) serve_ports(program, [](std::uint32_t under_way) { return sim::world->choose(under_way + 1); });
          } else if (run_plan(program, block, Arithmetic<float>{}, ReduceOp::sum) != kArrived) {
            wrong = "gave up";
          }
          world.next_launch();
          for (std::size_t i = me; i < kBufferBytes / 4; i += all)
            if (weak_load(output + i) != two.expected(call, place.rank, i)) wrong = "call " + std::to_string(call) + ": wrong at " + std::to_string(i);
          world.next_launch();
        }
      });
      if (!right(world, wrong, two.name + std::string(" protocol ") + std::to_string(static_cast<int>(two.protocol)), seed)) return;
    }
}

/// A block whose rows are in order waits for what does not come, or not all of it: every thread leaves at the deadline, none waits in the block for another, and no
/// row behind the wait is run, which might store over what a peer still reads.
void no_row_is_run_after_a_wait_that_is_given_up(std::uint32_t seeds) {
  const plan::Row copy = row(Op::kCopy, plan::kLocal, I, 0, O, 0, 2);
  const auto nothing = [](std::uint32_t, std::uint32_t, std::size_t) { return 0.0f; };
  const std::vector<std::vector<plan::Row>> idle = {{}, {}}, half = {{row(Op::kPutPackets, 2, I, 0, S, 0)}, {}};
  const auto gives_up = [&](const char* name, std::vector<plan::Row> rows, const std::vector<std::vector<plan::Row>>& peers) {
    rows.push_back(copy);
    return Two{name, {rows, {}}, nothing, true, Protocol::kSimple, kChunkBytes, 0, false, 0, peers};
  };
  const Two plans[] = {
      gives_up("a signal that does not come", {control(Op::kWait, 2, A)}, idle),
      gives_up("a port's signal that does not come", {control(Op::kWait, 3, A)}, idle),
      gives_up("a port that nobody serves", {row(Op::kPut, 3, I, 0, O, 0), control(Op::kFlush, 3)}, idle),
      gives_up("a semaphore that is not released", {control(Op::kAcquire, 0, A)}, idle),
      gives_up("a flag that is not set", {control(Op::kFlagWait, 1, A, 1)}, idle),
      gives_up("packets of which half come", {row(Op::kUnpack, plan::kLocal, S, 0, S, 0, 2)}, half),
      gives_up("packets to add of which half come",
               {row(Op::kReducePackets, plan::kLocal, I, 0, S, 0, 2, PlanOrder::kRelaxed, 1), row(Op::kOperand, plan::kLocal, S, 0, N, -1, 2)}, half),
      gives_up("a message that does not come", {row(Op::kRecv, 1, N, -1, S, 0)}, idle),
      gives_up("a block that does not come to the barrier", {control(Op::kBarrier, 0, PlanOrder::kRelaxed, -1, 2)}, idle),
  };
  for (const Two& two : plans)
    for (std::uint32_t seed = 0; seed < seeds; ++seed) {
      sim::SeededChooser chooser(seed);
      const std::uint32_t threads = 1 + seed % 3;
      sim::World world({.ranks = 2, .blocks = 2, .threads = threads, .heap_bytes = kHeapBytes, .most_live_blocks = 0, .granule_bytes = 4, .launch_is_fence = true}, chooser);
      const std::unique_ptr<Linked> of[2] = {linked(two, 0, world), linked(two, 1, world)};
      std::vector<BlockBarrier> barriers(4, BlockBarrier(threads));
      std::string wrong;
      world.run([&](const sim::Place& place) {
        Program& program = of[place.rank]->program;
        program.wait_ns = 200;
        auto* const output = reinterpret_cast<float*>(program.spaces[place.rank * kSpaces + 1].base);
        const std::size_t me = place.block * threads + place.thread, all = std::size_t{2} * threads;
        for (std::size_t i = me; i < kBufferBytes / 4; i += all) weak_store(output + i, -1.0f);
        world.next_launch();
        const Block block{place.block, 2, place.thread, threads, &barriers[place.rank * 2 + place.block]};
        const bool arrived = run_plan(program, block, Arithmetic<float>{}, ReduceOp::sum) == kArrived;
        if (arrived == (place.rank == 0 && place.block == 0)) wrong = arrived ? "arrived" : "gave up";
        world.next_launch();
        for (std::size_t i = me; i < kBufferBytes / 4; i += all)
          if (weak_load(output + i) != -1.0f) wrong = "a row was run after the wait";
      });
      if (!right(world, wrong, two.name, seed)) return;
    }
}

// Ports by themselves

/// Rank 0 puts pieces, each with a weak signal of its own, then a value and a strong signal behind all; it overwrites a source only after a flush. Rank 1 counts on a
/// piece once its own signal has come, and on all once the strong one has.
void ports_order_what_they_promise(std::uint32_t seeds) {
  constexpr std::uint64_t kRing = 64, kCounters = kRing + Ring::bytes(2), kData = kCounters + 8 * 64, kPieces = 3, kPiece = 64;
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    sim::SeededChooser chooser(seed);
    sim::World world({.ranks = 2, .blocks = 2, .threads = 1, .heap_bytes = 4096, .most_live_blocks = 0, .granule_bytes = 4}, chooser);
    std::string wrong;
    std::uint64_t ended = 0;  // both on rank 0: no memory of the machine
    Window wire{};
    for (std::uint32_t rank = 0; rank < 2; ++rank) wire.base[rank] = world.heap(rank);
    const Ring ring{world.heap(0) + kRing, 2};
    const auto counter = [](std::uint64_t i) { return kCounters + i * 64; };
    world.run([&](const sim::Place& place) {
      Report& report = *reinterpret_cast<Report*>(world.heap(place.rank));
      const Deadline deadline(report, 0);
      auto* const mine = reinterpret_cast<std::uint32_t*>(world.heap(place.rank) + kData);
      if (place.rank == 0 && place.block == 1) {
        Proxy proxy(0, wire, {world.heap(0), world.heap(1)}, 1, {ring});
        for (std::uint32_t idle = 0; ended == 0 || !proxy.idle(); ++idle)
          if (!proxy.turn([](std::uint32_t under_way) { return sim::world->choose(under_way + 1); })) spin_pause(idle);
      } else if (place.rank == 0) {
        const Port port{ring, 0, 1};
        for (std::uint32_t round = 0; round < 2; ++round) {
          for (std::uint32_t i = 0; i < kPieces * kPiece / 4; ++i) weak_store(mine + i, round * 1000 + i);
          for (std::uint64_t piece = 0; piece < kPieces; ++piece)
            port.post({0, OrderKind::put, 1, 0, 0, kData + piece * kPiece, kData + (round * kPieces + piece) * kPiece, kPiece, counter(piece)}, deadline);
          port.post({0, OrderKind::put_value, 1, 0, 0, 77 + round, counter(5) + 8 * round, 8, 0}, deadline);
          port.signal(counter(kPieces), deadline);
          if (port.flush(deadline) != kArrived) wrong = "gave up";
        }
        ended = 1;
      } else if (place.block == 0) {
        for (std::uint32_t round = 0; round < 2; ++round) {
          const std::uint64_t piece = seed % kPieces;
          const auto word = [&](std::uint64_t i) -> std::uint64_t& { return *reinterpret_cast<std::uint64_t*>(world.heap(1) + counter(i)); };
          const auto look_at = [&](std::uint64_t one) {
            for (std::uint64_t i = one * kPiece / 4; i < (one + 1) * kPiece / 4; ++i)
              if (weak_load(mine + round * kPieces * kPiece / 4 + i) != round * 1000 + i) wrong = "wrong piece";
          };
          wait_until(word(piece), round + 1, kAcquire, deadline, Primitive::semaphore_wait, 0, 0);
          look_at(piece);
          wait_until(word(kPieces), round + 1, kAcquire, deadline, Primitive::semaphore_wait, 0, 0);
          for (std::uint64_t one = 0; one < kPieces; ++one) look_at(one);
          if (weak_load(&word(5) + round) != 77 + round) wrong = "wrong value";
        }
      }
    });
    if (!right(world, wrong, "port", seed)) return;
  }
}

// Experts and the fused product

struct Team {
  Team(sim::World& world_, std::uint32_t ranks_, std::uint32_t blocks_, std::uint32_t threads_)
      : world(world_), ranks(ranks_), blocks(blocks_), threads(threads_), layout{ranks_, blocks_, 64}, barriers(std::size_t{ranks_} * blocks_, BlockBarrier(threads_)) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Comm comm{rank, ranks, layout, {}, 0};
      for (std::uint32_t peer = 0; peer < ranks; ++peer) comm.control.base[peer] = world.heap(peer), window.base[peer] = world.heap(peer) + layout.bytes();
      comms.push_back(comm);
    }
  }
  Block block(const sim::Place& place) { return {place.block, blocks, place.thread, threads, &barriers[place.rank * blocks + place.block]}; }
  std::size_t me(const sim::Place& place) const { return place.block * std::size_t{threads} + place.thread; }
  std::size_t all() const { return std::size_t{blocks} * threads; }
  template <class T>
  T* at(std::uint32_t rank, std::size_t offset) const {
    return reinterpret_cast<T*>(window.base[rank] + offset);
  }

  sim::World& world;
  std::uint32_t ranks, blocks, threads;
  Layout layout;
  Window window{};
  std::vector<Comm> comms;
  std::vector<BlockBarrier> barriers;
};

/// Every token comes back as the sum over its experts of weight times (token + number of the expert).
void experts_get_and_return_every_token(std::uint32_t seeds) {
  constexpr std::uint32_t kTokens = 3, kTop = 2, kWidth = 6;
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    const std::uint32_t ranks = 2 + seed % 3, blocks = 1 + seed % 2, threads = 1 + seed % 3;
    const ExpertSlots shape{ranks, 2, kTokens * kTop, kWidth};
    const std::size_t counts = 0, places = 256, tokens = 512, out = 768, slots = 1024, made = slots + shape.elements() * 4;
    sim::SeededChooser chooser(seed);
    sim::World world({.ranks = ranks, .blocks = blocks, .threads = threads, .heap_bytes = (Layout{ranks, blocks, 64}.bytes() + made + shape.elements() * 4 + 127) / 64 * 64}, chooser);
    Team team(world, ranks, blocks, threads);
    std::string wrong;
    const auto chosen = [&](std::uint32_t call, std::uint32_t rank, std::uint32_t i) { return static_cast<std::int32_t>((seed + call * 3 + rank * 5 + i * (i + 1)) % (2 * ranks)); };
    world.run([&](const sim::Place& place) {
      const Comm& comm = team.comms[place.rank];
      const Block block = team.block(place);
      const std::size_t me = team.me(place), all = team.all();
      const float weights[kTokens * kTop] = {1, 2, 3, 4, 5, 6};
      for (std::uint32_t call = 0; call < 3; ++call) {
        std::int32_t wanted[kTokens * kTop];
        for (std::uint32_t i = 0; i < kTokens * kTop; ++i) wanted[i] = chosen(call, place.rank, i);
        auto* const given = team.at<float>(place.rank, tokens);
        for (std::size_t i = me; i < kTokens * kWidth; i += all) weak_store(given + i, static_cast<float>(call * 50 + place.rank * 10 + i));
        world.next_launch();
        if (moe_dispatch(comm, block, shape, static_cast<const float*>(given), wanted, kTokens, kTop, SymPtr<float>(team.window, slots),
                         SymPtr<std::uint32_t>(team.window, counts), team.at<std::int32_t>(place.rank, places)) != kArrived)
          wrong = "gave up";
        world.next_launch();
        for (std::uint32_t expert = 0; expert < shape.experts; ++expert)
          for (std::uint32_t from = 0; from < ranks; ++from) {
            const std::uint32_t came = weak_load(team.at<std::uint32_t>(place.rank, counts) + shape.counter(expert, from));
            for (std::size_t i = me; i < came * kWidth; i += all) {
              const std::size_t at = shape.slot(expert, from, 0) + i;
              weak_store(team.at<float>(place.rank, made) + at, weak_load(team.at<float>(place.rank, slots) + at) + static_cast<float>(place.rank * shape.experts + expert));
            }
          }
        world.next_launch();
        if (call == 1) continue;  // nothing comes back: tokens may go out again
        if (moe_combine(comm, block, shape, SymPtr<const float>(team.window, made), wanted, team.at<std::int32_t>(place.rank, places), weights, kTokens, kTop,
                        team.at<float>(place.rank, out)) != kArrived)
          wrong = "gave up";
        world.next_launch();
        for (std::size_t i = me; i < kTokens * kWidth; i += all) {
          float expected = 0;
          for (std::uint32_t j = 0; j < kTop; ++j) {
            const std::size_t k = i / kWidth * kTop + j;
            expected += weights[k] * (static_cast<float>(call * 50 + place.rank * 10 + i) + static_cast<float>(wanted[k]));
          }
          if (weak_load(team.at<float>(place.rank, out) + i) != expected) wrong = "call " + std::to_string(call) + ": wrong token";
        }
        for (std::size_t i = me; i < shape.elements(); i += all) weak_store(team.at<float>(place.rank, made) + i, -1.0f);  // it is this rank's own again
        world.next_launch();
      }
    });
    if (!right(world, wrong, "experts", seed)) return;
  }
}

void a_fused_product_is_the_product(std::uint32_t seeds) {
  for (std::uint32_t seed = 0; seed < seeds; ++seed) {
    const std::uint32_t ranks = 2 + seed % 3, blocks = 2 + seed % 2, threads = 1 + seed / 2 % 3;
    const TiledProduct shape{5, 2, 3, 2};
    const std::size_t partial = 0, out = 64, ready = 128, bytes = 256;
    sim::SeededChooser chooser(seed);
    sim::World world({.ranks = ranks, .blocks = blocks, .threads = threads, .heap_bytes = (Layout{ranks, blocks, 64}.bytes() + bytes + 127) / 64 * 64}, chooser);
    Team team(world, ranks, blocks, threads);
    std::string wrong;
    const auto a_of = [](std::uint64_t call, std::uint32_t rank, std::size_t i) { return static_cast<float>(call + rank + i % 5); };
    const auto b_of = [](std::uint32_t rank, std::size_t i) { return static_cast<float>(rank * 2 + i % 3); };
    world.run([&](const sim::Place& place) {
      for (std::uint64_t call = 0; call < 3; ++call) {
        float a[10], b[6];
        for (std::size_t i = 0; i < 10; ++i) a[i] = a_of(call, place.rank, i);
        for (std::size_t i = 0; i < 6; ++i) b[i] = b_of(place.rank, i);
        world.next_launch();
        if (gemm_all_reduce(team.comms[place.rank], team.block(place), shape, static_cast<const float*>(a), static_cast<const float*>(b), SymPtr<float>(team.window, partial),
                            SymPtr<float>(team.window, out), SymPtr<std::uint64_t>(team.window, ready), call) != kArrived)
          wrong = "gave up";
        world.next_launch();
        for (std::size_t i = team.me(place); i < 15; i += team.all()) {
          float expected = 0;
          for (std::uint32_t rank = 0; rank < ranks; ++rank)
            for (std::size_t k = 0; k < 2; ++k) expected += a_of(call, rank, i / 3 * 2 + k) * b_of(rank, k * 3 + i % 3);
          if (weak_load(team.at<float>(place.rank, out) + i) != expected) wrong = "wrong product";
          weak_store(team.at<float>(place.rank, out) + i, -1.0f);
          weak_store(team.at<float>(place.rank, partial) + i, -1.0f);
        }
        world.next_launch();
      }
    });
    if (!right(world, wrong, "product", seed)) return;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint32_t seeds = argc > 1 ? static_cast<std::uint32_t>(std::stoul(argv[1])) : 30;
  plans_are_right_on_every_seed(seeds);
  no_row_is_run_after_a_wait_that_is_given_up(seeds);
  ports_order_what_they_promise(seeds);
  experts_get_and_return_every_token(seeds);
  a_fused_product_is_the_product(seeds);
  std::cerr << primitives << " primitives, " << schedules << " schedules\n";
  return busbw::testing::failures != 0;
}
