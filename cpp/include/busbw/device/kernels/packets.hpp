/// all_reduce of small vectors by packets: data bring their own news, so one way suffices and nothing is signalled.
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"
#include "busbw/device/packet.hpp"

namespace busbw::device {

namespace detail {

/// all_reduce_packets for one form.
template <Form kForm, class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_packets_of(const Comm& comm, const Block& block, const T* in, T* out, std::size_t count, Op op) {
  const Share part = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  constexpr std::size_t each = kForm == Form::ll128 ? kLineWords : 1;
  const std::size_t bytes = part.size() * sizeof(T), words = (bytes + kWordBytes - 1) / kWordBytes;
  const std::uint64_t call = weak_load(comm.epoch(block.block));
  const auto flag = static_cast<std::uint32_t>(call + 1);
  const auto parity = static_cast<std::uint32_t>(call & 1);
  const auto in_slot = [&](std::uint32_t of, std::uint32_t from) {
    return Stretch{comm.slot_at<std::byte>(of, block.block, from, parity), bytes, kForm, flag};
  };
  auto* const given = reinterpret_cast<const std::byte*>(in + part.first);
  const Stretch mine{const_cast<std::byte*>(given), bytes, Form::plain, 0};
  const Stretch result{reinterpret_cast<std::byte*>(out + part.first), bytes, Form::plain, 0};
  WaitResult stopped = kArrived;
  for_each_of_thread((words + each - 1) / each, block.thread, block.threads, [&](std::size_t unit) {
    std::uint64_t word[each];
    load_words_here(mine, unit * each, each, word, comm.deadline(), block.block, comm.rank);
    for (std::uint32_t i = 1; i < comm.ranks; ++i)
      store_words_here(in_slot((comm.rank + i) % comm.ranks, comm.rank), unit * each, each, word);
  });
  block.sync();  // in place, other threads read what this one stores
  for_each_of_thread((words + each - 1) / each, block.thread, block.threads, [&](std::size_t unit) {
    std::uint64_t sum[each]{}, next[each];
    for (std::uint32_t rank = 0; rank < comm.ranks && stopped == kArrived; ++rank) {
      if (rank == comm.rank)
        load_words_here(mine, unit * each, each, next, comm.deadline(), block.block, rank);
      else
        stopped = load_words_here(in_slot(comm.rank, rank), unit * each, each, next, comm.deadline(), block.block, rank);
      for (std::size_t w = 0; w < each; ++w) {
        if (rank == 0) {
          sum[w] = next[w];
          continue;
        }
        T a[kWordBytes / sizeof(T)], b[kWordBytes / sizeof(T)];
        __builtin_memcpy(a, sum + w, kWordBytes);
        __builtin_memcpy(b, next + w, kWordBytes);
        for (std::size_t i = 0; i < kWordBytes / sizeof(T); ++i) a[i] = op(a[i], b[i]);
        __builtin_memcpy(sum + w, a, kWordBytes);
      }
    }
    if (stopped == kArrived) store_words_here(result, unit * each, each, sum);
  });
  if (block.thread == 0) weak_store(comm.epoch(block.block), call + 1);  // all have read it before the barrier above
  return block.agreed(stopped);
}

}  // namespace detail

/// One round: everyone puts its vector as packets into a slot at every peer and adds up what it finds. Order of reduction: rank 0 to n-1.
///
/// form: ll or ll128. in, out: private or window memory, may be the same. A block's share must fit a slot: wire_bytes(form, share) <= slot_bytes. Slots
/// alternate from call to call; two suffice, because a rank that sends for call e has taken everybody's packets of call e - 1, and they were sent after those of call
/// e - 2 had been taken. All threads of all blocks call.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_packets(const Comm& comm, const Block& block, Form form, const T* in, T* out, std::size_t count, Op op) {
  return form == Form::ll128 ? detail::all_reduce_packets_of<Form::ll128>(comm, block, in, out, count, op)
                             : detail::all_reduce_packets_of<Form::ll>(comm, block, in, out, count, op);
}

}  // namespace busbw::device
