/// all_gather on memory that all ranks map.
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

/// Everyone stores its part at everyone. in: private or window memory; out: a place in a window, of ranks x count elements; in may be this
/// rank's part of out. Steps: 1; wire bytes: (n-1) of a part. All threads of all blocks call.
template <class T>
BUSBW_DEVICE WaitResult all_gather_direct(const Comm& comm, const Block& block, const T* in, SymPtr<T> out, std::size_t count) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // nobody still reads what it got last time
  const Share part = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  for (std::uint32_t i = 0; i < comm.ranks; ++i) {
    const std::uint32_t peer = (comm.rank + i) % comm.ranks;
    T* const dst = out.at(peer) + comm.rank * count + part.first;
    if (dst != in + part.first) copy(block, dst, in + part.first, part.size());
  }
  return barrier(comm, block);
}

}  // namespace busbw::device
