/// all_reduce where ranks outnumber cores: a sum in memory that all map goes from rank to rank, and each adds its vector where it lies.
///
/// Each rank reads its own memory alone, with nothing copied besides and no system call; what it must wait for is one rank, not all. Where every rank has a core
/// the chain is what makes it slow: use all_reduce_attached or all_reduce_piped_parts there.
#pragma once

#include "busbw/device/kernels/attached.hpp"

namespace busbw::device {

/// The longest piece of a sum that a rank has memory for: half of the cells of the pipe to itself, which carries nothing.
BUSBW_DEVICE constexpr std::size_t longest_piece(const PipeLayout& layout) {
  return PipeLayout::kCells * (PipeLayout::kPair + layout.cell_bytes) / 2 / PipeLayout::kPair * PipeLayout::kPair;
}

/// Pieces of a round, one at each of the first ranks: that many messages are under way to a rank that takes none before it has added to all, and with those
/// whose taking is not reported yet a ring must hold them.
BUSBW_DEVICE constexpr std::uint32_t pieces_of_round(std::uint32_t ranks) { return ranks < 8 ? ranks : 8; }
static_assert(8 + PipeLayout::kCredit <= PipeLayout::kCells);

/// Rounds that all_reduce_chained takes for so many bytes.
BUSBW_DEVICE constexpr std::size_t chained_rounds(std::uint32_t ranks, std::size_t piece_bytes, std::size_t bytes) {
  const std::size_t most = piece_bytes * pieces_of_round(ranks);
  return (bytes + most - 1) / most;
}

/// out[i] = op over ranks of in[i], i < count; in and out may be the same. Order of reduction: rank 0 to n-1. All threads call; one block a rank; a
/// caller that goes on in the same kernel puts a block barrier before it reads what other threads stored.
///
/// piece_bytes: of whole vectors, at most longest_piece. round: how many rounds such calls on these pipes have taken before (chained_rounds). Both are the
/// same on all ranks. Rounds take turns in two places. Two suffice: rank 0 begins a round when it has the whole sum of the one before, to which everyone has
/// added after it had taken the sum before that.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_chained(const Pipes& pipes, const Block& block, const T* in, T* out, std::size_t count, Op op,
                                           std::size_t piece_bytes, std::uint64_t round) {
  const Comm& comm = pipes.comm;
  const std::uint32_t last = comm.ranks - 1, pieces = pieces_of_round(comm.ranks);
  const std::size_t most = piece_bytes / sizeof(T) * pieces;
  WaitResult stop = kArrived;
  detail::Addresses its;  // that it was called for as much; nobody goes where they lie
  for (std::size_t first = 0; first < count; first += most, ++round) {
    const std::size_t size = most < count - first ? most : count - first;
    const auto sum_at = [&](std::uint32_t piece) {
      const std::size_t cells = pipes.layout.of(block.block, piece) + 2 * PipeLayout::kPair;
      return reinterpret_cast<T*>(comm.control.base[piece] + cells + (round & 1) * longest_piece(pipes.layout));
    };
    for (std::uint32_t piece = 0; piece < pieces; ++piece) {
      const Share part = share_of(size, pieces, piece, Vector<T>::kElements);
      const T* const own = in + first + part.first;
      T *const sum = sum_at(piece), *const result = out + first + part.first;
      if (comm.rank == 0) {
        copy(block, sum, own, part.size());
      } else {
        if ((stop = detail::hear(pipes, block, comm.rank - 1, its, count * sizeof(T))) != kArrived) return stop;
        const auto source = [&](std::uint32_t k) -> const T* { return k == 0 ? sum : own; };
        const auto target = [&](std::uint32_t k) { return k == 0 ? sum : result; };
        reduce_to_each<T>(block, target, comm.rank == last ? 2 : 1, source, 2, part.size(), op);
      }
      if (comm.rank < last) {
        if ((stop = detail::tell(pipes, block, comm.rank + 1, in, out, count * sizeof(T))) != kArrived) return stop;
        continue;
      }
      for (std::uint32_t peer = 0; peer < last; ++peer)
        if ((stop = detail::tell(pipes, block, peer, in, out, count * sizeof(T))) != kArrived) return stop;
    }
    if (comm.rank == last) continue;
    for (std::uint32_t piece = 0; piece < pieces; ++piece) {
      if ((stop = detail::hear(pipes, block, last, its, count * sizeof(T))) != kArrived) return stop;
      const Share part = share_of(size, pieces, piece, Vector<T>::kElements);
      copy(block, out + first + part.first, static_cast<const T*>(sum_at(piece)), part.size());
    }
  }
  return kArrived;
}

}  // namespace busbw::device
