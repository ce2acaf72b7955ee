/// Pipes: from every rank to every other a ring of cells in the receiver's memory. What a message needs lies in one cache line if it is small.
///
/// The flag of a cell is the number of the message in it, written last, so it is never reset, and one line travels where a counter beside
/// the data would make it two. A sender waits only when the ring is full; the receiver says how far it has come every kCredit messages.
/// Against a Semaphore a word here has one writer, so it is stored, not added to: an addition to a line of a peer waits for that line.
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

/// How the pipes of a rank are laid out in its control window, after what Layout has. The same on all ranks.
struct PipeLayout {
  std::uint32_t ranks, blocks;
  std::size_t first;       ///< where they begin; a multiple of 128
  std::size_t cell_bytes;  ///< the most that one message carries; a multiple of 128

  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kPair = 128;        ///< lines that some CPUs fetch together, so what two ranks write lies in two of them
  static constexpr std::size_t kInline = 48;       ///< bytes that lie beside the flag, aligned for vectors
  static constexpr std::uint64_t kCells = 16;      ///< of a ring
  static constexpr std::uint64_t kCredit = 4;      ///< messages between two reports of a receiver

  /// What a rank keeps of its pipes to and from `peer`: a pair of lines that the peer writes, a pair of its own, the cells that the peer fills.
  BUSBW_DEVICE constexpr std::size_t of(std::uint32_t block, std::uint32_t peer) const {
    return first + (static_cast<std::size_t>(block) * ranks + peer) * (2 * kPair + kCells * (kPair + cell_bytes));
  }
  BUSBW_DEVICE constexpr std::size_t counts(std::uint32_t block, std::uint32_t peer) const { return of(block, peer) + kPair; }
  /// The flag's line, the second of a pair whose first is left free: who polls it must not fetch the content before it is written.
  BUSBW_DEVICE constexpr std::size_t cell(std::uint32_t block, std::uint32_t peer, std::uint64_t number) const {
    return of(block, peer) + 2 * kPair + number % kCells * (kPair + cell_bytes) + kLine;
  }
  BUSBW_DEVICE constexpr std::size_t end() const { return of(blocks, 0); }
};

/// A rank's pipes. All threads of a block make the same calls; block b talks to block b.
class Pipes {
 public:
  BUSBW_DEVICE Pipes(const Comm& of, const PipeLayout& laid_out) : comm(of), layout(laid_out) {}

  /// Where to put the next message to `peer`, of so many bytes, 16-byte aligned; nullptr if somebody gave up (see stop). send() sends it.
  template <class T>
  BUSBW_DEVICE T* open(const Block& block, std::uint32_t peer, std::size_t bytes, WaitResult& stop) const {
    Counts& mine = counts(block, peer);
    stop = kArrived;
    if (block.thread == 0 && mine.sent - mine.credit >= PipeLayout::kCells) stop = wait_for_room(block, peer, mine);
    if ((stop = block.agreed(stop)) != kArrived) return nullptr;
    return payload<T>(cell(peer, block, comm.rank, weak_load(&mine.sent)), bytes);
  }
  BUSBW_DEVICE void send(const Block& block, std::uint32_t peer) const {
    block.sync();
    if (block.thread != 0) return;
    Counts& mine = counts(block, peer);
    const std::uint64_t number = mine.sent;
    SystemAtomic<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(cell(peer, block, comm.rank, number))).store(number + 1, kRelease);
    weak_store(&mine.sent, number + 1);
  }

  /// Waits for the next message of `peer`, of so many bytes; its place until drop(), or nullptr if somebody gave up (see stop).
  template <class T>
  BUSBW_DEVICE const T* take(const Block& block, std::uint32_t peer, std::size_t bytes, WaitResult& stop) const {
    stop = kArrived;
    if (block.thread == 0) stop = wait_for_message(block, peer, counts(block, peer).taken, bytes);
    if ((stop = block.agreed(stop)) != kArrived) return nullptr;
    return taken<T>(block, peer, bytes);
  }
  /// The place of a message that take() has waited for.
  template <class T>
  BUSBW_DEVICE const T* taken(const Block& block, std::uint32_t peer, std::size_t bytes) const {
    return payload<T>(cell(comm.rank, block, peer, weak_load(&counts(block, peer).taken)), bytes);
  }
  BUSBW_DEVICE void drop(const Block& block, std::uint32_t peer) const {
    block.sync();
    if (block.thread != 0) return;
    Counts& mine = counts(block, peer);
    const std::uint64_t number = mine.taken + 1;
    weak_store(&mine.taken, number);
    if (number % PipeLayout::kCredit == 0)
      SystemAtomic<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(comm.control.base[peer] + layout.of(block.block, comm.rank)))
          .store(number, kRelease);
  }

  /// A message without content to `peer`, and one from it.
  BUSBW_DEVICE WaitResult signal(const Block& block, std::uint32_t peer) const {
    WaitResult stop;
    open<std::byte>(block, peer, 0, stop);
    if (stop == kArrived) send(block, peer);
    return stop;
  }
  BUSBW_DEVICE WaitResult wait(const Block& block, std::uint32_t peer) const {
    WaitResult stop;
    take<std::byte>(block, peer, 0, stop);
    if (stop == kArrived) drop(block, peer);
    return stop;
  }

  const Comm& comm;
  const PipeLayout& layout;

 private:
  static constexpr std::size_t kAhead = 256;  ///< a message up to so many bytes is asked for together with its flag

  /// Of one peer. Thread 0 alone writes them.
  struct Counts {
    std::uint64_t sent;    ///< messages to the peer
    std::uint64_t credit;  ///< of them, what the peer is known to have taken
    std::uint64_t taken;   ///< messages from the peer
  };

  BUSBW_DEVICE Counts& counts(const Block& block, std::uint32_t peer) const {
    return *reinterpret_cast<Counts*>(comm.control.base[comm.rank] + layout.counts(block.block, peer));
  }
  BUSBW_DEVICE std::byte* cell(std::uint32_t of, const Block& block, std::uint32_t from, std::uint64_t number) const {
    return comm.control.base[of] + layout.cell(block.block, from, number);
  }
  template <class T>
  BUSBW_DEVICE static T* payload(std::byte* cell, std::size_t bytes) {
    return reinterpret_cast<T*>(cell + (bytes <= PipeLayout::kInline ? kVectorBytes : PipeLayout::kLine));
  }

  BUSBW_DEVICE WaitResult wait_for_room(const Block& block, std::uint32_t peer, Counts& mine) const {
    std::uint64_t& word = *reinterpret_cast<std::uint64_t*>(comm.control.base[comm.rank] + layout.of(block.block, peer));
    Deadline deadline = comm.deadline();
    std::uint64_t seen;
    while (mine.sent - (seen = SystemAtomic<std::uint64_t>(word).load(kRelaxed)) >= PipeLayout::kCells)
      if (const WaitResult stop = deadline.poll(); stop != kArrived)
        return deadline.give_up(stop, Primitive::slot_wait, block.block, peer, mine.sent + 1 - PipeLayout::kCells, seen);
    mine.credit = SystemAtomic<std::uint64_t>(word).load(kAcquire);
    return kArrived;
  }
  BUSBW_DEVICE WaitResult wait_for_message(const Block& block, std::uint32_t peer, std::uint64_t number, std::size_t bytes) const {
    std::byte* const at = cell(comm.rank, block, peer, number);
    std::uint64_t& flag = *reinterpret_cast<std::uint64_t*>(at);
    const std::size_t lines = bytes <= PipeLayout::kInline || bytes > kAhead ? 0 : bytes / PipeLayout::kLine;
    Deadline deadline = comm.deadline();
    while (SystemAtomic<std::uint64_t>(flag).load(kRelaxed) != number + 1) {
      for (std::size_t i = 1; i <= lines; ++i) prefetch(at + i * PipeLayout::kLine);  // they come with the flag, not after it
      if (const WaitResult stop = deadline.poll(); stop != kArrived)
        return deadline.give_up(stop, Primitive::channel_wait, block.block, peer, number + 1, number);
    }
    SystemAtomic<std::uint64_t>(flag).load(kAcquire);
    return kArrived;
  }
};

namespace detail {

/// The i-th rank after this one: everyone begins with its neighbour, so no rank is told by all at once.
BUSBW_DEVICE std::uint32_t peer_after(const Comm& comm, std::uint32_t i) {
  const std::uint32_t peer = comm.rank + i;
  return peer < comm.ranks ? peer : peer - comm.ranks;
}

}  // namespace detail

/// Nobody's block leaves before everybody's same block has come; what came before is seen by all after it. All threads call.
BUSBW_DEVICE WaitResult meet(const Pipes& pipes, const Block& block) {
  WaitResult stop = kArrived;
  for (std::uint32_t i = 1; i < pipes.comm.ranks && stop == kArrived; ++i) stop = pipes.signal(block, detail::peer_after(pipes.comm, i));
  for (std::uint32_t i = 1; i < pipes.comm.ranks && stop == kArrived; ++i) stop = pipes.wait(block, detail::peer_after(pipes.comm, i));
  return stop;
}

}  // namespace busbw::device
