/// Mixture of experts: tokens go to the ranks of their experts, and what those made of them comes back and is summed.
///
/// The layout for low latency: a slot for each (expert of the rank, rank that sends, token), so that nobody has to be asked where to write. Memory for tokens that do
/// not come is spent: experts x ranks x tokens x width. Source of the layout: DeepEP's and NCCL EP's low-latency modes.
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

/// The same on all ranks.
struct ExpertSlots {
  std::uint32_t ranks;
  std::uint32_t experts;  ///< of one rank; expert e is the (e % experts)-th of rank e / experts
  std::uint32_t tokens;   ///< of a rank at most; one that is sent to an expert twice counts twice
  std::uint32_t width;    ///< elements of a token

  BUSBW_DEVICE constexpr std::size_t counter(std::uint32_t expert, std::uint32_t from) const { return static_cast<std::size_t>(expert % experts) * ranks + from; }
  BUSBW_DEVICE constexpr std::size_t slot(std::uint32_t expert, std::uint32_t from, std::uint32_t place) const {
    return (counter(expert, from) * tokens + place) * width;
  }
  BUSBW_DEVICE constexpr std::size_t counters() const { return static_cast<std::size_t>(experts) * ranks; }
  BUSBW_DEVICE constexpr std::size_t elements() const { return counters() * tokens * width; }
};

/// Puts every token into a slot of each expert that it chose. chosen: (count, top) experts, any number outside 0 .. experts x ranks - 1: none. slots, counts: places in
/// windows, of elements() and counters(); counts says how many came, in each (expert, rank). places: (count, top), private, says where each token went.
/// At most `tokens` of a rank go to an expert: more are not sent, and counts says so. A block serves the experts e with e % blocks = block. All threads of all blocks call.
template <class T>
BUSBW_DEVICE WaitResult moe_dispatch(const Comm& comm, const Block& block, const ExpertSlots& shape, const T* tokens, const std::int32_t* chosen, std::uint32_t count,
                                     std::uint32_t top, SymPtr<T> slots, SymPtr<std::uint32_t> counts, std::int32_t* places) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // nobody still reads what it got last time
  for (std::uint32_t expert = block.block; expert < shape.experts * comm.ranks; expert += block.blocks) {
    const std::uint32_t peer = expert / shape.experts;
    std::uint32_t sent = 0;
    for (std::uint32_t i = 0; i < count * top; ++i) {
      if (chosen[i] != static_cast<std::int32_t>(expert)) continue;
      if (sent < shape.tokens) copy(block, slots.at(peer) + shape.slot(expert, comm.rank, sent), tokens + static_cast<std::size_t>(i / top) * shape.width, shape.width);
      if (block.thread == 0) weak_store(places + i, static_cast<std::int32_t>(sent < shape.tokens ? sent : shape.tokens));
      ++sent;
    }
    if (block.thread == 0) weak_store(counts.at(peer) + shape.counter(expert, comm.rank), sent);
  }
  return barrier(comm, block);
}

/// out[i] = sum over j of weights[i, j] times what the j-th expert made of token i, in the order of j, in float. made: a place in a window that the experts wrote, laid out like
/// slots; a token that was not sent adds nothing. places: of moe_dispatch; all blocks have to have ended it, as between launches. All threads of all blocks call.
template <class T>
BUSBW_DEVICE WaitResult moe_combine(const Comm& comm, const Block& block, const ExpertSlots& shape, SymPtr<const T> made, const std::int32_t* chosen,
                                    const std::int32_t* places, const float* weights, std::uint32_t count, std::uint32_t top, T* out) {
  if (const WaitResult stop = barrier(comm, block); stop != kArrived) return stop;  // all experts are done
  const Share mine = share_of(count, block.blocks, block.block, 1);
  for (std::size_t token = mine.first; token < mine.last; ++token)
    for_each_of_thread(shape.width, block.thread, block.threads, [&](std::size_t x) {
      float sum = 0;
      for (std::uint32_t j = 0; j < top; ++j) {
        const std::int32_t expert = chosen[token * top + j];
        if (expert < 0 || expert >= static_cast<std::int32_t>(shape.experts * comm.ranks)) continue;
        const std::int32_t place = weak_load(places + token * top + j);
        if (place >= static_cast<std::int32_t>(shape.tokens)) continue;
        const auto of = static_cast<std::uint32_t>(expert);
        const T value = weak_load(made.at(of / shape.experts) + shape.slot(of, comm.rank, static_cast<std::uint32_t>(place)) + x);
        sum += weights[token * top + j] * static_cast<float>(value);
      }
      weak_store(out + token * shape.width + x, static_cast<T>(sum));
    });
  return barrier(comm, block);  // nobody reads this rank's slots any more
}

}  // namespace busbw::device
