"""Kernels that measure, on top of the device headers: time on the device, without that of launches."""

from __future__ import annotations

import struct

from busbw.execution.cuda_kernels import Window, source_of

__all__ = ["SOURCE", "packed"]

SOURCE = (
    '#include "busbw/device/move.hpp"\n'
    + source_of([])
    + r"""
// Nanoseconds that `times` barriers of all blocks take, as block 0 sees it.
extern "C" __global__ void busbw_measure_barrier(const __grid_constant__ Comm comm, std::uint64_t* took_ns, std::uint32_t times) {
  BUSBW_BLOCK;
  if (barrier(comm, block) != kArrived) return;
  const std::uint64_t begun = Clock::now_ns();
  for (std::uint32_t i = 0; i < times; ++i)
    if (barrier(comm, block) != kArrived) return;
  if (block.block == 0 && block.thread == 0) *took_ns = Clock::now_ns() - begun;
}

// Nanoseconds that `times` round trips of one LL word (4 bytes of data, 4 of flag, stored as one) take between ranks 0 and 1. One thread.
// Flags begin behind `base`, which grows from call to call, so that no word of an earlier call is taken for one of this.
extern "C" __global__ void busbw_measure_round_trip(const __grid_constant__ Comm comm, std::uint64_t* took_ns, std::uint32_t times, std::uint32_t base) {
  BUSBW_BLOCK;
  if (barrier(comm, block) != kArrived) return;
  if (comm.rank > 1 || block.block != 0 || block.thread != 0) return;
  const std::uint32_t peer = 1 - comm.rank;
  std::uint64_t& theirs = *comm.slot_at<std::uint64_t>(peer, 0, comm.rank, 0);
  std::uint64_t& mine = *comm.slot_at<std::uint64_t>(comm.rank, 0, peer, 0);
  const std::uint64_t begun = Clock::now_ns();
  for (std::uint32_t i = 1; i <= times; ++i) {
    const std::uint64_t word = (static_cast<std::uint64_t>(base + i) << 32) | i;
    if (comm.rank == 0) SystemAtomic<std::uint64_t>(theirs).store(word, kRelaxed);
    Deadline deadline = comm.deadline();
    std::uint64_t seen;
    while ((seen = SystemAtomic<std::uint64_t>(mine).load(kRelaxed)) != word)
      if (const WaitResult stop = deadline.poll(); stop != kArrived) {
        deadline.give_up(stop, Primitive::packet_wait, 0, peer, base + i, seen >> 32);
        return;
      }
    if (comm.rank == 1) SystemAtomic<std::uint64_t>(theirs).store(word, kRelaxed);
  }
  if (comm.rank == 0) *took_ns = Clock::now_ns() - begun;
}

// Stores count vectors of 16 bytes at a peer. Waits for nobody.
extern "C" __global__ void busbw_measure_put(const __grid_constant__ Comm comm, const __grid_constant__ Window data, std::uint32_t peer,
                                             const unsigned long long* in, std::size_t out_offset, std::size_t count) {
  BUSBW_BLOCK;
  const Share part = share_of(count, block.blocks, block.block, 2);
  copy(block, SymPtr<unsigned long long>(data, out_offset).at(peer) + part.first, in + part.first, part.size());
}
"""
)


def packed(*values: int | Window | tuple[str, int]) -> list[bytes]:
    """Bytes of parameters: an int has 8, ("I", n) 4."""
    made = []
    for value in values:
        if isinstance(value, Window):
            made.append(bytes(value))
        elif isinstance(value, tuple):
            made.append(struct.pack(f"<{value[0]}", value[1]))
        else:
            made.append(struct.pack("<Q", value))
    return made
