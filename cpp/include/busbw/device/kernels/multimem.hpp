/// all_reduce and all_gather through a switch that adds and copies (NVLS).
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/multimem.hpp"

namespace busbw::device {

/// In place: each rank loads the sum of its shard and stores it at all. data: 16-byte aligned, count: whole vectors. Steps: 2; each rank's port carries S (1 + 1/n) one
/// way. Order of reduction: the switch's; all ranks get the same bits. All threads of all blocks call.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_multimem(const Comm& comm, const Block& block, const MulticastPtr<T>& data, std::size_t count, Op op) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // all inputs are there
  const Share shard = share_of(count, comm.ranks, comm.rank, Vector<T>::kElements);
  const Share part = share_of(shard.size(), block.blocks, block.block, Vector<T>::kElements);
  for_each_of_thread(part.size() / Vector<T>::kElements, block.thread, block.threads,
                     [&](std::size_t i) { data.store(shard.first + part.first, i, data.load_reduce(shard.first + part.first, i, op)); });
  return barrier(comm, block);  // all sums are there
}

/// out[r count + i] = in[i] of rank r: each rank stores its part once, at all. out: 16-byte aligned, count: whole vectors. All threads of all blocks call.
template <class T>
BUSBW_DEVICE WaitResult all_gather_multimem(const Comm& comm, const Block& block, const T* in, const MulticastPtr<T>& out, std::size_t count) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // nobody still reads what it got last time
  const Share part = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  for_each_of_thread(part.size() / Vector<T>::kElements, block.thread, block.threads, [&](std::size_t i) {
    out.store(comm.rank * count + part.first, i, weak_load(reinterpret_cast<const Vector<T>*>(in + part.first) + i));
  });
  return barrier(comm, block);
}

}  // namespace busbw::device
