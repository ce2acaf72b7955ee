/// Collectives that read and store peers' private memory where it lies: one copy instead of two, for a system call or a mapping's price.
///
/// Reach is what gets there; the host gives it, having tried that it works between all ranks:
///   bool get(const Block&, std::byte* to, std::uint32_t peer, std::uint64_t address, std::size_t bytes) const
/// reads bytes of a peer's memory, put() stores them there, all of it by all threads of the block; both say whether they could. Addresses and "I have read" go through
/// pipes. A rank returns when its peers have read what they need of it, so its input may change. All threads call; one block a rank.
#pragma once

#include "busbw/device/kernels/piped.hpp"

namespace busbw::device {

/// Which end of the memory comes first. Calls that turn round each time find in the cache what the one before it left there, and a caller's
/// last stores; one that always goes forward over more than a cache holds finds nothing.
struct Turn {
  std::size_t strip_bytes;  ///< of a piece that goes forward in itself
  bool backwards;
};

namespace detail {

/// Where a rank's input and output lie, in its own address space, and how much it was called for: a rank that was called for something else is
/// not read.
struct Addresses {
  std::uint64_t in, out, call;
};
/// Told from the contents of other messages. An arbitrary number.
constexpr std::uint64_t kCalledFor = 0x9d3f5b7ac1e82460;

template <class In, class Out>
BUSBW_DEVICE WaitResult tell(const Pipes& pipes, const Block& block, std::uint32_t peer, const In* in, const Out* out, std::uint64_t bytes) {
  WaitResult stop;
  Addresses* const cell = pipes.template open<Addresses>(block, peer, sizeof(Addresses), stop);
  if (stop != kArrived) return stop;
  if (block.thread == 0) weak_store(cell, {reinterpret_cast<std::uint64_t>(in), reinterpret_cast<std::uint64_t>(out), bytes ^ kCalledFor});
  pipes.send(block, peer);
  return kArrived;
}
BUSBW_DEVICE WaitResult hear(const Pipes& pipes, const Block& block, std::uint32_t peer, Addresses& its, std::uint64_t bytes) {
  WaitResult stop;
  const Addresses* const cell = pipes.template take<Addresses>(block, peer, sizeof(Addresses), stop);
  if (stop != kArrived) return stop;
  its = weak_load(cell);
  pipes.drop(block, peer);
  if (its.call == (bytes ^ kCalledFor)) return kArrived;
  return pipes.comm.deadline().give_up(kDeadline, Primitive::memory_access, block.block, peer, bytes, its.call ^ kCalledFor);
}

template <class Reach, class T>
BUSBW_DEVICE WaitResult get(const Pipes& pipes, const Block& block, const Reach& reach, T* to, std::uint32_t peer, std::uint64_t address,
                            std::size_t first, std::size_t count) {
  if (count == 0) return kArrived;
  if (reach.get(block, reinterpret_cast<std::byte*>(to), peer, address + first * sizeof(T), count * sizeof(T))) return kArrived;
  return pipes.comm.deadline().give_up(kDeadline, Primitive::memory_access, block.block, peer, count * sizeof(T), 0);
}

template <class Reach, class T>
BUSBW_DEVICE WaitResult put(const Pipes& pipes, const Block& block, const Reach& reach, const T* from, std::uint32_t peer, std::uint64_t address,
                            std::size_t first, std::size_t count) {
  if (count == 0) return kArrived;
  if (reach.put(block, peer, address + first * sizeof(T), reinterpret_cast<const std::byte*>(from), count * sizeof(T))) return kArrived;
  return pipes.comm.deadline().give_up(kDeadline, Primitive::memory_access, block.block, peer, count * sizeof(T), 0);
}

/// sum = op over ranks of in[first ..]: this rank's at `own`, the others' read strip by strip into scratch, which holds a strip a peer. Calls
/// use(at, size) for each strip that all threads have added up.
template <class Reach, class T, class Op, class Use>
BUSBW_DEVICE WaitResult reduce_reached(const Pipes& pipes, const Block& block, const Reach& reach, const Addresses* theirs, std::size_t first,
                                       const T* own, T* sum, std::size_t count, T* scratch, std::size_t strip, Op op, Use use) {
  const Comm& comm = pipes.comm;
  for (std::size_t at = 0; at < count; at += strip) {
    const std::size_t size = strip < count - at ? strip : count - at;
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = peer_after(comm, i);
      if (const WaitResult stop = get(pipes, block, reach, scratch + (i - 1) * strip, peer, theirs[peer].in, first + at, size); stop != kArrived)
        return stop;
    }
    block.sync();
    const auto source = [&](std::uint32_t rank) -> const T* {
      return rank == comm.rank ? own + at : scratch + ((rank + comm.ranks - comm.rank) % comm.ranks - 1) * strip;
    };
    reduce(block, sum + at, source, comm.ranks, size, op);
    block.sync();
    if (const WaitResult stop = use(at, size); stop != kArrived) return stop;
  }
  return kArrived;
}

}  // namespace detail

/// out[i] = op over ranks of in[i], i < count: rank r reads and adds up shard r, and puts each strip of the sum at the others while a cache holds it.
/// in and out may be the same: shard r of an input is read by rank r alone, which then stores it. scratch: private, (ranks - 1) strips of so many elements.
template <class Reach, class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_attached(const Pipes& pipes, const Block& block, const Reach& reach, const T* in, T* out, std::size_t count, Op op,
                                            T* scratch, std::size_t strip) {
  const Comm& comm = pipes.comm;
  WaitResult stop = kArrived;
  detail::Addresses theirs[kMostRanks];
  for (std::uint32_t i = 1; i < comm.ranks; ++i)
    if ((stop = detail::tell(pipes, block, detail::peer_after(comm, i), in, out, count * sizeof(T))) != kArrived) return stop;
  for (std::uint32_t i = 1; i < comm.ranks; ++i) {
    const std::uint32_t peer = detail::peer_after(comm, i);
    if ((stop = detail::hear(pipes, block, peer, theirs[peer], count * sizeof(T))) != kArrived) return stop;
  }
  const Share mine = share_of(count, comm.ranks, comm.rank, Vector<T>::kElements);
  T* const sum = out + mine.first;
  const auto put_at_all = [&](std::size_t at, std::size_t size) {
    WaitResult done = kArrived;
    for (std::uint32_t i = 1; i < comm.ranks && done == kArrived; ++i) {
      const std::uint32_t peer = detail::peer_after(comm, i);
      done = detail::put(pipes, block, reach, static_cast<const T*>(sum) + at, peer, theirs[peer].out, mine.first + at, size);
    }
    return done;
  };
  stop = detail::reduce_reached(pipes, block, reach, theirs, mine.first, in + mine.first, sum, mine.size(), scratch, strip, op, put_at_all);
  return stop == kArrived ? meet(pipes, block) : stop;  // all sums are there, and nobody reads an input any more
}

/// out[i] = op over ranks of in[rank count + i], i < count. scratch as for all_reduce_attached.
template <class Reach, class T, class Op>
BUSBW_DEVICE WaitResult reduce_scatter_attached(const Pipes& pipes, const Block& block, const Reach& reach, const T* in, T* out, std::size_t count,
                                                Op op, T* scratch, std::size_t strip) {
  const Comm& comm = pipes.comm;
  WaitResult stop = kArrived;
  detail::Addresses theirs[kMostRanks];
  for (std::uint32_t i = 1; i < comm.ranks; ++i)
    if ((stop = detail::tell(pipes, block, detail::peer_after(comm, i), in, out, count * sizeof(T))) != kArrived) return stop;
  for (std::uint32_t i = 1; i < comm.ranks; ++i) {
    const std::uint32_t peer = detail::peer_after(comm, i);
    if ((stop = detail::hear(pipes, block, peer, theirs[peer], count * sizeof(T))) != kArrived) return stop;
  }
  const std::size_t first = comm.rank * count;
  stop = detail::reduce_reached(pipes, block, reach, theirs, first, in + first, out, count, scratch, strip, op, [](std::size_t, std::size_t) { return kArrived; });
  if (stop != kArrived) return stop;
  return meet(pipes, block);
}

namespace detail {

/// Calls move(first, count) for each strip of `count` elements, from the last to the first if `backwards`; stops when it returns other than kArrived.
template <class Move>
BUSBW_DEVICE WaitResult by_strips(std::size_t count, std::size_t strip, bool backwards, Move move) {
  const std::size_t strips = (count + strip - 1) / strip;
  for (std::size_t k = 0; k < strips; ++k) {
    const std::size_t first = (backwards ? strips - 1 - k : k) * strip;
    if (const WaitResult stop = move(first, strip < count - first ? strip : count - first); stop != kArrived) return stop;
  }
  return kArrived;
}

/// Part r of out is what rank r has at `first` of its in: all_gather and all_to_all.
template <class Reach, class T>
BUSBW_DEVICE WaitResult gather_reached(const Pipes& pipes, const Block& block, const Reach& reach, const T* in, T* out, std::size_t first,
                                       std::size_t count, Turn how) {
  const Comm& comm = pipes.comm;
  WaitResult stop = kArrived;
  for (std::uint32_t i = 1; i < comm.ranks; ++i)
    if ((stop = tell(pipes, block, peer_after(comm, i), in, out, count * sizeof(T))) != kArrived) return stop;
  const std::size_t strip = how.strip_bytes / sizeof(T);
  const auto keep_own = [&] {
    T* const own = out + comm.rank * count;
    if (own == in + first) return;
    by_strips(count, strip, how.backwards, [&](std::size_t at, std::size_t size) {
      copy(block, own + at, in + first + at, size);
      return kArrived;
    });
  };
  if (!how.backwards) keep_own();
  for (std::uint32_t i = 1; i < comm.ranks; ++i) {
    const std::uint32_t peer = peer_after(comm, how.backwards ? comm.ranks - i : i);
    Addresses its;
    if ((stop = hear(pipes, block, peer, its, count * sizeof(T))) != kArrived) return stop;
    stop = by_strips(count, strip, how.backwards, [&](std::size_t at, std::size_t size) {
      return get(pipes, block, reach, out + peer * count + at, peer, its.in, first + at, size);
    });
    if (stop != kArrived) return stop;
  }
  if (how.backwards) keep_own();
  return meet(pipes, block);
}

}  // namespace detail

/// out[r count + i] = in[i] of rank r, i < count; in may be this rank's part of out.
template <class Reach, class T>
BUSBW_DEVICE WaitResult all_gather_attached(const Pipes& pipes, const Block& block, const Reach& reach, const T* in, T* out, std::size_t count,
                                            Turn how) {
  return detail::gather_reached(pipes, block, reach, in, out, 0, count, how);
}

/// out[s count + i] = in[r count + i] of rank s, on rank r, i < count. in and out must not overlap.
template <class Reach, class T>
BUSBW_DEVICE WaitResult all_to_all_attached(const Pipes& pipes, const Block& block, const Reach& reach, const T* in, T* out, std::size_t count,
                                            Turn how) {
  return detail::gather_reached(pipes, block, reach, in, out, pipes.comm.rank * count, count, how);
}

/// out[i] = in[i] of the root, i < count. Of two ranks each moves a half: the root puts what its peer does not get.
///   bool put(const Block&, std::uint32_t peer, std::uint64_t address, const std::byte* from, std::size_t bytes) const
template <class Reach, class T>
BUSBW_DEVICE WaitResult broadcast_attached(const Pipes& pipes, const Block& block, const Reach& reach, const T* in, T* out, std::size_t count,
                                           std::uint32_t root) {
  const Comm& comm = pipes.comm;
  WaitResult stop = kArrived;
  const std::size_t put = comm.ranks == 2 ? share_of(count, 2, 1, Vector<T>::kElements).first : count;  // the root puts what follows
  detail::Addresses its;
  if (comm.rank != root) {
    if ((stop = detail::tell(pipes, block, root, in, out, count * sizeof(T))) != kArrived) return stop;
    if ((stop = detail::hear(pipes, block, root, its, count * sizeof(T))) != kArrived) return stop;
    if ((stop = detail::get(pipes, block, reach, out, root, its.in, 0, put)) != kArrived) return stop;
    if ((stop = pipes.signal(block, root)) != kArrived || put == count) return stop;
    return pipes.wait(block, root);
  }
  for (std::uint32_t i = 1; i < comm.ranks; ++i)
    if ((stop = detail::tell(pipes, block, detail::peer_after(comm, i), in, out, count * sizeof(T))) != kArrived) return stop;
  if (out != in) copy(block, out, in, count);
  for (std::uint32_t i = 1; i < comm.ranks; ++i) {
    const std::uint32_t peer = detail::peer_after(comm, i);
    if ((stop = detail::hear(pipes, block, peer, its, count * sizeof(T))) != kArrived) return stop;
    if (put == count) continue;
    if ((stop = detail::put(pipes, block, reach, in + put, peer, its.out, put, count - put)) != kArrived) return stop;
    if ((stop = pipes.signal(block, peer)) != kArrived) return stop;
  }
  for (std::uint32_t i = 1; i < comm.ranks && stop == kArrived; ++i) stop = pipes.wait(block, detail::peer_after(comm, i));
  return stop;
}

}  // namespace busbw::device
