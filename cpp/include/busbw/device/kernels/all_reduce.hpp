/// all_reduce on memory that all ranks map. Order of reduction: rank 0 to n-1, on every rank, so all get the same bits.
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

/// One round: everyone puts its whole vector into a slot at every peer and adds up what it got. For small vectors.
///
/// in, out: private or window memory, may be the same. count: elements; a block's share must fit a slot. Steps: 1; wire bytes: (n-1) S.
/// Slots alternate from call to call. Two suffice: a rank writes a slot anew two calls later, and its peer has then put its own piece of the
/// call between, after reading the slot. All threads of all blocks call; a caller that goes on
/// in the same kernel puts a block barrier before it reads what other threads stored.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_one_shot(const Comm& comm, const Block& block, const T* in, T* out, std::size_t count, Op op) {
  const Share part = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::uint32_t parity = static_cast<std::uint32_t>(*comm.epoch(block.block) & 1);
  for (std::uint32_t i = 1; i < comm.ranks; ++i) {
    const std::uint32_t peer = (comm.rank + i) % comm.ranks;
    copy(block, comm.slot_at<T>(peer, block.block, comm.rank, parity), in + part.first, part.size());
  }
  signal_all(comm, block);
  if (block.thread == 0) ++*comm.epoch(block.block);
  if (const WaitResult stop = wait_all(comm, block, Primitive::semaphore_wait); stop != kArrived) return stop;
  const auto source = [&](std::uint32_t rank) -> const T* {
    return rank == comm.rank ? in + part.first : comm.slot_at<T>(comm.rank, block.block, rank, parity);
  };
  reduce(block, out + part.first, source, comm.ranks, part.size(), op);
  return kArrived;
}

/// Two rounds: rank r adds up shard r of everyone's vector and stores it at everyone. For large vectors; nothing is copied besides.
///
/// in, out: places in windows, may be the same. count: elements. Steps: 2; wire bytes: 2 (n-1)/n S. All threads of all blocks call.
/// In place: shard r of a rank's input is read by rank r alone, which then stores it.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_two_shot(const Comm& comm, const Block& block, SymPtr<const T> in, SymPtr<T> out, std::size_t count, Op op) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // all inputs are there, all outputs free
  const Share shard = share_of(count, comm.ranks, comm.rank, Vector<T>::kElements);
  const Share part = share_of(shard.size(), block.blocks, block.block, Vector<T>::kElements);
  const std::size_t first = shard.first + part.first;
  const auto source = [&](std::uint32_t rank) { return in.at(rank) + first; };
  const auto target = [&](std::uint32_t i) { return out.at((comm.rank + i) % comm.ranks) + first; };
  reduce_to_each<T>(block, target, comm.ranks, source, comm.ranks, part.size(), op);
  return barrier(comm, block);  // all shards are there, and nobody reads this rank's input any more
}

}  // namespace busbw::device
