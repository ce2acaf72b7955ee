/// Collectives on memory that all ranks map, in one step: everyone reads or writes at everyone. all_gather and all_reduce are in their own headers.
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

/// out[i] = op over ranks of in[rank count + i], i < count; order of reduction: rank 0 to n-1. in: a place in a window, of ranks x count elements; out: private or
/// window memory, perhaps this rank's part of in. All threads of all blocks call.
template <class T, class Op>
BUSBW_DEVICE WaitResult reduce_scatter_direct(const Comm& comm, const Block& block, SymPtr<const T> in, T* out, std::size_t count, Op op) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // all inputs are there
  const Share part = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const auto source = [&](std::uint32_t rank) { return in.at(rank) + comm.rank * count + part.first; };
  reduce(block, out + part.first, source, comm.ranks, part.size(), op);
  return barrier(comm, block);  // nobody reads this rank's input any more
}

/// out[i] = in[i] of the root, i < count. in is read on the root only; out: a place in a window, on the root perhaps in. All threads of all blocks call.
template <class T>
BUSBW_DEVICE WaitResult broadcast_direct(const Comm& comm, const Block& block, const T* in, SymPtr<T> out, std::size_t count, std::uint32_t root) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // nobody still reads what it got last time
  if (comm.rank == root) {
    const Share part = share_of(count, block.blocks, block.block, Vector<T>::kElements);
    for (std::uint32_t i = 0; i < comm.ranks; ++i) {
      T* const dst = out.at((root + i) % comm.ranks) + part.first;
      if (dst != in + part.first) copy(block, dst, in + part.first, part.size());
    }
  }
  return barrier(comm, block);
}

/// out[s count + i] = in[r count + i] of rank s, on rank r, i < count. in: private or window memory; out: a place in a window. They must not overlap. All threads
/// of all blocks call.
template <class T>
BUSBW_DEVICE WaitResult all_to_all_direct(const Comm& comm, const Block& block, const T* in, SymPtr<T> out, std::size_t count) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;
  const Share part = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  for (std::uint32_t i = 0; i < comm.ranks; ++i) {
    const std::uint32_t peer = (comm.rank + i) % comm.ranks;
    copy(block, out.at(peer) + comm.rank * count + part.first, in + peer * count + part.first, part.size());
  }
  return barrier(comm, block);
}

}  // namespace busbw::device
