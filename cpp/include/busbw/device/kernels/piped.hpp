/// Collectives on private memory: data pass through pipes, one strip after the other; a strip is on its way while the one before is used.
///
/// All threads of all blocks call, with the same arguments but for pointers. in and out may be the same memory where the collective has an
/// in-place form (NCCL's). Reductions go by rank 0, 1, .. n-1 on every rank, so all get the same bits.
#pragma once

#include "busbw/device/kernels/pipes.hpp"

namespace busbw::device {

namespace detail {

template <class T>
BUSBW_DEVICE WaitResult push(const Pipes& pipes, const Block& block, std::uint32_t peer, const T* from, std::size_t count) {
  WaitResult stop;
  T* const cell = pipes.template open<T>(block, peer, count * sizeof(T), stop);
  if (stop != kArrived) return stop;
  copy(block, cell, from, count);
  pipes.send(block, peer);
  return kArrived;
}

template <class T>
BUSBW_DEVICE WaitResult pop(const Pipes& pipes, const Block& block, std::uint32_t peer, T* to, std::size_t count, bool streamed) {
  WaitResult stop;
  const T* const cell = pipes.template take<T>(block, peer, count * sizeof(T), stop);
  if (stop != kArrived) return stop;
  copy(block, to, cell, count, streamed);
  pipes.drop(block, peer);
  return kArrived;
}

/// Elements of a strip: of whole vectors, at most what a cell holds.
template <class T>
BUSBW_DEVICE std::size_t strip_of(const Pipes& pipes, std::size_t strip_bytes) {
  const std::size_t bytes = strip_bytes < pipes.layout.cell_bytes ? strip_bytes : pipes.layout.cell_bytes;
  const std::size_t vectors = bytes / kVectorBytes;
  return (vectors ? vectors : 1) * Vector<T>::kElements;
}

/// The k-th strip of a share.
BUSBW_DEVICE Share strip_at(const Share& whole, std::size_t strip, std::size_t k) {
  const std::size_t first = whole.first + k * strip;
  return {first, first + strip < whole.last ? first + strip : whole.last};
}
BUSBW_DEVICE std::size_t strips_in(const Share& whole, std::size_t strip) {
  return whole.size() <= strip ? whole.size() > 0 : (whole.size() + strip - 1) / strip;
}

/// out = op over ranks of their strips: this rank's at `own`, the others' in their pipes.
template <class T, class Op>
BUSBW_DEVICE WaitResult pop_reduce(const Pipes& pipes, const Block& block, const T* own, T* out, std::size_t count, Op op) {
  const Comm& comm = pipes.comm;
  WaitResult stop;
  for (std::uint32_t i = 1; i < comm.ranks; ++i)
    if (pipes.template take<T>(block, peer_after(comm, i), count * sizeof(T), stop); stop != kArrived) return stop;
  const auto source = [&](std::uint32_t rank) -> const T* {
    return rank == comm.rank ? own : pipes.template taken<T>(block, rank, count * sizeof(T));
  };
  reduce(block, out, source, comm.ranks, count, op);
  for (std::uint32_t i = 1; i < comm.ranks; ++i) pipes.drop(block, peer_after(comm, i));
  return kArrived;
}

}  // namespace detail

/// How a piped collective goes: bytes of a strip, and whether what it stores is too large to stay in a cache.
struct Strips {
  std::size_t bytes;
  bool streamed;
};

/// out[i] = op over ranks of in[i], i < count. Everyone sends everyone all it has: one step, (n-1) S sent by each.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_piped(const Pipes& pipes, const Block& block, const T* in, T* out, std::size_t count, Op op, Strips how) {
  const Comm& comm = pipes.comm;
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(pipes, how.bytes), strips = detail::strips_in(mine, strip);
  for (std::size_t k = 0; k < strips + 1; ++k) {
    if (k < strips) {
      const Share part = detail::strip_at(mine, strip, k);
      for (std::uint32_t i = 1; i < comm.ranks; ++i)
        if (const WaitResult stop = detail::push(pipes, block, detail::peer_after(comm, i), in + part.first, part.size()); stop != kArrived)
          return stop;
    }
    if (k > 0) {
      const Share part = detail::strip_at(mine, strip, k - 1);
      if (const WaitResult stop = detail::pop_reduce(pipes, block, in + part.first, out + part.first, part.size(), op); stop != kArrived)
        return stop;
    }
  }
  return kArrived;
}

/// out[i] = op over ranks of in[i], i < count. Each adds up a part of every strip and sends the sum round: two steps, 2 (n-1)/n S sent by each.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_piped_parts(const Pipes& pipes, const Block& block, const T* in, T* out, std::size_t count, Op op, Strips how) {
  const Comm& comm = pipes.comm;
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(pipes, how.bytes) * comm.ranks, strips = detail::strips_in(mine, strip);
  const auto part_of = [&](std::size_t k, std::uint32_t rank) {
    const Share whole = detail::strip_at(mine, strip, k);
    const Share part = share_of(whole.size(), comm.ranks, rank, Vector<T>::kElements);
    return Share{whole.first + part.first, whole.first + part.last};
  };
  WaitResult stop;
  for (std::size_t k = 0; k < strips + 2; ++k) {
    if (k < strips)
      for (std::uint32_t i = 1; i < comm.ranks; ++i) {
        const std::uint32_t peer = detail::peer_after(comm, i);
        const Share part = part_of(k, peer);
        if ((stop = detail::push(pipes, block, peer, in + part.first, part.size())) != kArrived) return stop;
      }
    if (k > 0 && k <= strips) {
      const Share part = part_of(k - 1, comm.rank);
      const std::uint32_t next = detail::peer_after(comm, 1);
      T* const sum = comm.ranks == 1 ? out + part.first : pipes.template open<T>(block, next, part.size() * sizeof(T), stop);
      if (comm.ranks > 1 && stop != kArrived) return stop;
      // Ends in block barriers, as it drops what it took: all threads see all of the sum.
      if ((stop = detail::pop_reduce(pipes, block, in + part.first, sum, part.size(), op)) != kArrived) return stop;
      for (std::uint32_t i = 2; i < comm.ranks; ++i)
        if ((stop = detail::push(pipes, block, detail::peer_after(comm, i), static_cast<const T*>(sum), part.size())) != kArrived) return stop;
      if (comm.ranks > 1) {
        copy(block, out + part.first, static_cast<const T*>(sum), part.size(), how.streamed);
        pipes.send(block, next);
      }
    }
    if (k > 1)
      for (std::uint32_t i = 1; i < comm.ranks; ++i) {
        const std::uint32_t peer = detail::peer_after(comm, i);
        const Share part = part_of(k - 2, peer);
        if ((stop = detail::pop(pipes, block, peer, out + part.first, part.size(), how.streamed)) != kArrived) return stop;
      }
  }
  return kArrived;
}

/// out[i] = op over ranks of in[rank count + i], i < count: every rank keeps its part.
template <class T, class Op>
BUSBW_DEVICE WaitResult reduce_scatter_piped(const Pipes& pipes, const Block& block, const T* in, T* out, std::size_t count, Op op, Strips how) {
  const Comm& comm = pipes.comm;
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(pipes, how.bytes), strips = detail::strips_in(mine, strip);
  for (std::size_t k = 0; k < strips + 1; ++k) {
    if (k < strips) {
      const Share part = detail::strip_at(mine, strip, k);
      for (std::uint32_t i = 1; i < comm.ranks; ++i) {
        const std::uint32_t peer = detail::peer_after(comm, i);
        if (const WaitResult stop = detail::push(pipes, block, peer, in + peer * count + part.first, part.size()); stop != kArrived) return stop;
      }
    }
    if (k > 0) {
      const Share part = detail::strip_at(mine, strip, k - 1);
      if (const WaitResult stop =
              detail::pop_reduce(pipes, block, in + comm.rank * count + part.first, out + part.first, part.size(), op);
          stop != kArrived)
        return stop;
    }
  }
  return kArrived;
}

/// out[r count + i] = in[i] of rank r, i < count.
template <class T>
BUSBW_DEVICE WaitResult all_gather_piped(const Pipes& pipes, const Block& block, const T* in, T* out, std::size_t count, Strips how) {
  const Comm& comm = pipes.comm;
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(pipes, how.bytes), strips = detail::strips_in(mine, strip);
  for (std::size_t k = 0; k < strips + 1; ++k) {
    if (k < strips) {
      const Share part = detail::strip_at(mine, strip, k);
      for (std::uint32_t i = 1; i < comm.ranks; ++i)
        if (const WaitResult stop = detail::push(pipes, block, detail::peer_after(comm, i), in + part.first, part.size()); stop != kArrived)
          return stop;
      if (T* const own = out + comm.rank * count; own != in) copy(block, own + part.first, in + part.first, part.size(), how.streamed);
    }
    if (k > 0) {
      const Share part = detail::strip_at(mine, strip, k - 1);
      for (std::uint32_t i = 1; i < comm.ranks; ++i) {
        const std::uint32_t peer = detail::peer_after(comm, i);
        if (const WaitResult stop = detail::pop(pipes, block, peer, out + peer * count + part.first, part.size(), how.streamed); stop != kArrived)
          return stop;
      }
    }
  }
  return kArrived;
}

/// out[s count + i] = in[r count + i] of rank s, on rank r, i < count. in and out must not overlap.
template <class T>
BUSBW_DEVICE WaitResult all_to_all_piped(const Pipes& pipes, const Block& block, const T* in, T* out, std::size_t count, Strips how) {
  const Comm& comm = pipes.comm;
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(pipes, how.bytes), strips = detail::strips_in(mine, strip);
  for (std::size_t k = 0; k < strips + 1; ++k) {
    if (k < strips) {
      const Share part = detail::strip_at(mine, strip, k);
      for (std::uint32_t i = 1; i < comm.ranks; ++i) {
        const std::uint32_t peer = detail::peer_after(comm, i);
        if (const WaitResult stop = detail::push(pipes, block, peer, in + peer * count + part.first, part.size()); stop != kArrived) return stop;
      }
      copy(block, out + comm.rank * count + part.first, in + comm.rank * count + part.first, part.size(), how.streamed);
    }
    if (k > 0) {
      const Share part = detail::strip_at(mine, strip, k - 1);
      for (std::uint32_t i = 1; i < comm.ranks; ++i) {
        const std::uint32_t peer = detail::peer_after(comm, i);
        if (const WaitResult stop = detail::pop(pipes, block, peer, out + peer * count + part.first, part.size(), how.streamed); stop != kArrived)
          return stop;
      }
    }
  }
  return kArrived;
}

/// out[i] = in[i] of the root, i < count. in is read on the root only, which goes on as soon as the pipes hold what it sent.
template <class T>
BUSBW_DEVICE WaitResult broadcast_piped(const Pipes& pipes, const Block& block, const T* in, T* out, std::size_t count, std::uint32_t root, Strips how) {
  const Comm& comm = pipes.comm;
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(pipes, how.bytes), strips = detail::strips_in(mine, strip);
  for (std::size_t k = 0; k < strips; ++k) {
    const Share part = detail::strip_at(mine, strip, k);
    if (comm.rank != root) {
      if (const WaitResult stop = detail::pop(pipes, block, root, out + part.first, part.size(), how.streamed); stop != kArrived) return stop;
      continue;
    }
    for (std::uint32_t i = 1; i < comm.ranks; ++i)
      if (const WaitResult stop = detail::push(pipes, block, detail::peer_after(comm, i), in + part.first, part.size()); stop != kArrived) return stop;
    if (out != in) copy(block, out + part.first, in + part.first, part.size(), how.streamed);
  }
  return kArrived;
}

/// out[i] = op over ranks of in[i], i < count, on the root alone; out is touched on the root only.
template <class T, class Op>
BUSBW_DEVICE WaitResult reduce_piped(const Pipes& pipes, const Block& block, const T* in, T* out, std::size_t count, Op op, std::uint32_t root,
                                     Strips how) {
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(pipes, how.bytes), strips = detail::strips_in(mine, strip);
  for (std::size_t k = 0; k < strips; ++k) {
    const Share part = detail::strip_at(mine, strip, k);
    const WaitResult stop = pipes.comm.rank == root
                                ? detail::pop_reduce(pipes, block, in + part.first, out + part.first, part.size(), op)
                                : detail::push(pipes, block, root, in + part.first, part.size());
    if (stop != kArrived) return stop;
  }
  return kArrived;
}

/// Elements that lie in a row.
template <class T>
struct Run {
  T* first;
  std::size_t count;
};

/// Everyone sends each peer a run of its own and gets one: sent[peer], got[peer], with counts that the two agree on; none where both are empty.
/// What a rank has for itself is copied. Runs that are sent and got must not overlap. One block a rank.
template <class T>
BUSBW_DEVICE WaitResult exchange_piped(const Pipes& pipes, const Block& block, const Run<const T>* sent, const Run<T>* got, Strips how) {
  const Comm& comm = pipes.comm;
  const std::size_t strip = detail::strip_of<T>(pipes, how.bytes);
  std::size_t most = 0;
  for (std::uint32_t peer = 0; peer < comm.ranks; ++peer) {
    most = sent[peer].count > most ? sent[peer].count : most;
    most = got[peer].count > most ? got[peer].count : most;
  }
  copy(block, got[comm.rank].first, sent[comm.rank].first, sent[comm.rank].count, how.streamed);
  const auto piece = [&](std::size_t count, std::size_t first) { return count <= first ? 0 : count - first < strip ? count - first : strip; };
  for (std::size_t first = 0; first < most; first += strip) {
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = detail::peer_after(comm, i);
      if (const std::size_t size = piece(sent[peer].count, first); size > 0)
        if (const WaitResult stop = detail::push(pipes, block, peer, sent[peer].first + first, size); stop != kArrived) return stop;
    }
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = detail::peer_after(comm, comm.ranks - i);
      if (const std::size_t size = piece(got[peer].count, first); size > 0)
        if (const WaitResult stop = detail::pop(pipes, block, peer, got[peer].first + first, size, how.streamed); stop != kArrived) return stop;
    }
  }
  return kArrived;
}

}  // namespace busbw::device
