/// all_reduce round a ring, on memory that all ranks map.
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

/// n - 1 steps that sum, n - 1 that spread: in each a rank reads one chunk of its predecessor, which has told that it is there. Wire bytes: 2 (n-1)/n S, over one
/// link each way. in, out: places in windows, may be the same. Order of reduction of chunk c: ranks c, c + 1, .. round the ring; all ranks get the same bits.
/// All threads of all blocks call.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_ring(const Comm& comm, const Block& block, SymPtr<const T> in, SymPtr<T> out, std::size_t count, Op op) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // all inputs are there, all outputs free
  const std::uint32_t n = comm.ranks, next = (comm.rank + 1) % n, previous = (comm.rank + n - 1) % n;
  for (std::uint32_t step = 1; step < 2 * n - 1; ++step) {
    const bool sums = step < n;
    const std::uint32_t chunk = sums ? (comm.rank + n - step) % n : (comm.rank + 2 * n - step) % n;
    const Share whole = share_of(count, n, chunk, Vector<T>::kElements);
    const Share part = share_of(whole.size(), block.blocks, block.block, Vector<T>::kElements);
    const std::size_t first = whole.first + part.first;
    if (step > 1)
      if (const WaitResult stop = wait_one(comm, block, previous, Primitive::semaphore_wait); stop != kArrived) return stop;
    const T* const theirs = step == 1 ? in.at(previous) : out.at(previous);
    const auto source = [&](std::uint32_t k) { return (k == 0 ? theirs : in.at(comm.rank)) + first; };
    if (sums)
      reduce(block, out.at(comm.rank) + first, source, 2, part.size(), op);
    else
      copy(block, out.at(comm.rank) + first, theirs + first, part.size());
    if (step + 1 < 2 * n - 1) signal_one(comm, block, next);
  }
  return barrier(comm, block);  // nobody reads this rank's output any more
}

}  // namespace busbw::device
