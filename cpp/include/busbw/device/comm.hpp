/// What a kernel knows of its rank and the others: windows, semaphores, staging, and when to give up.
#pragma once

#include "busbw/device/block.hpp"
#include "busbw/device/semaphore.hpp"
#include "busbw/device/window.hpp"

namespace busbw::device {

/// How the control window of a rank is laid out. The same on all ranks.
struct Layout {
  std::uint32_t ranks, blocks;
  std::size_t slot_bytes;  ///< of one piece in staging; a multiple of 64

  static constexpr std::size_t kLine = 64;

  BUSBW_DEVICE constexpr std::size_t report() const { return 0; }
  /// Semaphore from `peer` for a block: one cache line for the word the peer adds to, one for the count taken.
  BUSBW_DEVICE constexpr std::size_t semaphore(std::uint32_t block, std::uint32_t peer) const {
    return kLine + (static_cast<std::size_t>(block) * ranks + peer) * 2 * kLine;
  }
  BUSBW_DEVICE constexpr std::size_t epoch(std::uint32_t block) const { return semaphore(blocks, 0) + block * kLine; }
  /// Where `peer` puts its piece for a block; two of them, used in turn.
  BUSBW_DEVICE constexpr std::size_t slot(std::uint32_t block, std::uint32_t peer, std::uint32_t parity) const {
    return epoch(blocks) + ((static_cast<std::size_t>(block) * ranks + peer) * 2 + parity) * slot_bytes;
  }
  BUSBW_DEVICE constexpr std::size_t bytes() const { return slot(blocks, 0, 0); }
};

/// Passed by `__grid_constant__` on CUDA. One stream at a time: two launches at once would take each other's signals.
struct Comm {
  std::uint32_t rank, ranks;
  Layout layout;
  Window control;          ///< of layout.bytes(), zeros before the first launch
  std::uint64_t wait_ns;   ///< how long a wait may last; 0: for ever

  BUSBW_DEVICE Report& report() const { return *reinterpret_cast<Report*>(control.base[rank] + layout.report()); }
  BUSBW_DEVICE Deadline deadline() const { return Deadline(report(), wait_ns); }

  /// The semaphore by which this rank tells `peer`'s block something.
  BUSBW_DEVICE Semaphore to(std::uint32_t block, std::uint32_t peer) const {
    return {reinterpret_cast<std::uint64_t*>(control.base[peer] + layout.semaphore(block, rank)), nullptr};
  }
  /// The semaphore by which `peer` tells this rank's block something.
  BUSBW_DEVICE Semaphore from(std::uint32_t block, std::uint32_t peer) const {
    std::byte* const at = control.base[rank] + layout.semaphore(block, peer);
    return {reinterpret_cast<std::uint64_t*>(at), reinterpret_cast<std::uint64_t*>(at + Layout::kLine)};
  }
  /// Where this rank puts a piece for `peer`, or finds the piece from `peer`.
  template <class T>
  BUSBW_DEVICE T* slot_at(std::uint32_t of, std::uint32_t block, std::uint32_t from_rank, std::uint32_t parity) const {
    return reinterpret_cast<T*>(control.base[of] + layout.slot(block, from_rank, parity));
  }
  BUSBW_DEVICE std::uint64_t* epoch(std::uint32_t block) const {
    return reinterpret_cast<std::uint64_t*>(control.base[rank] + layout.epoch(block));
  }
};

/// Tells all peers' same block, once the block's threads have done what stands before. All threads call.
BUSBW_DEVICE void signal_all(const Comm& comm, const Block& block) {
  block.sync();
  for (std::uint32_t i = block.thread; i + 1 < comm.ranks; i += block.threads) {
    const std::uint32_t peer = (comm.rank + 1 + i) % comm.ranks;  // everyone begins with its neighbour: no rank is told by all at once
    comm.to(block.block, peer).signal();
  }
}

/// Waits until all peers' same block has told this one. All threads call; all get the same answer: kArrived, or that somebody gave up.
BUSBW_DEVICE WaitResult wait_all(const Comm& comm, const Block& block, Primitive primitive) {
  WaitResult mine = kArrived;
  for (std::uint32_t i = block.thread; i + 1 < comm.ranks && mine == kArrived; i += block.threads) {
    const std::uint32_t peer = (comm.rank + 1 + i) % comm.ranks;
    mine = comm.from(block.block, peer).wait(comm.deadline(), primitive, block.block, peer);
  }
  return block.agreed(mine);
}

/// Tells one peer's same block, once the block's threads have done what stands before. All threads call.
BUSBW_DEVICE void signal_one(const Comm& comm, const Block& block, std::uint32_t peer) {
  block.sync();
  if (block.thread == 0) comm.to(block.block, peer).signal();
}

/// Waits until one peer's same block has told this one. All threads call; all get the same answer.
BUSBW_DEVICE WaitResult wait_one(const Comm& comm, const Block& block, std::uint32_t peer, Primitive primitive) {
  const WaitResult mine = block.thread == 0 ? comm.from(block.block, peer).wait(comm.deadline(), primitive, block.block, peer) : kArrived;
  return block.agreed(mine);
}

/// Nobody's block leaves before everybody's same block has come; what came before is seen by all after it. All threads call.
BUSBW_DEVICE WaitResult barrier(const Comm& comm, const Block& block) {
  signal_all(comm, block);
  return wait_all(comm, block, Primitive::barrier_wait);
}

}  // namespace busbw::device
