/// Collectives on private memory: data pass through slots in memory that all ranks map, one strip after the other.
///
/// A strip is what a slot holds, small enough to stay in a cache between who writes it and who reads it. Every strip ends in an exchange of
/// signals between all ranks; slots alternate, and two suffice: a rank writes a slot anew two strips later, when it has a signal that its peer gave
/// after reading the slot. All threads of all blocks call, with the same arguments but for pointers. in and out may be the same memory
/// where the collective has an in-place form (NCCL's).
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

namespace detail {

/// Signals all, waits for all, and turns to the other slots.
BUSBW_DEVICE WaitResult exchange(const Comm& comm, const Block& block, std::uint32_t& parity) {
  signal_all(comm, block);
  if (block.thread == 0) ++*comm.epoch(block.block);
  parity ^= 1;
  return wait_all(comm, block, Primitive::semaphore_wait);
}

BUSBW_DEVICE std::uint32_t first_parity(const Comm& comm, const Block& block) {
  return static_cast<std::uint32_t>(*comm.epoch(block.block) & 1);
}

/// Elements that a slot holds, in whole vectors.
template <class T>
BUSBW_DEVICE std::size_t strip_of(const Comm& comm) {
  return comm.layout.slot_bytes / kVectorBytes * Vector<T>::kElements;
}

/// The place of what is put for a peer, or of what a peer put here.
template <class T>
BUSBW_DEVICE T* slot_for(const Comm& comm, const Block& block, std::uint32_t peer, std::uint32_t parity) {
  return comm.slot_at<T>(peer, block.block, comm.rank, parity);
}
template <class T>
BUSBW_DEVICE const T* slot_from(const Comm& comm, const Block& block, std::uint32_t peer, std::uint32_t parity) {
  return comm.slot_at<T>(comm.rank, block.block, peer, parity);
}
/// The place of what a rank shows to all, in its own memory.
template <class T>
BUSBW_DEVICE T* shown_by(const Comm& comm, const Block& block, std::uint32_t rank, std::uint32_t parity) {
  return comm.slot_at<T>(rank, block.block, rank, parity);
}

BUSBW_DEVICE std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

}  // namespace detail

/// out[i] = op over ranks of in[i], i < count. Two ranks exchange whole strips; more share each strip out, add up, and exchange the sums.
template <class T, class Op>
BUSBW_DEVICE WaitResult all_reduce_staged(const Comm& comm, const Block& block, const T* in, T* out, std::size_t count, Op op) {
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const bool whole = comm.ranks == 2;
  const std::size_t strip = detail::strip_of<T>(comm) * (whole ? 1 : comm.ranks);
  std::uint32_t parity = detail::first_parity(comm, block);
  for (std::size_t first = mine.first; first < mine.last; first += strip) {
    const std::size_t size = detail::smaller(strip, mine.last - first);
    const auto part = [&](std::uint32_t rank) {
      return whole ? Share{0, size} : share_of(size, comm.ranks, rank, Vector<T>::kElements);
    };
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = (comm.rank + i) % comm.ranks;
      copy(block, detail::slot_for<T>(comm, block, peer, parity), in + first + part(peer).first, part(peer).size());
    }
    const std::uint32_t filled = parity;
    if (const WaitResult stop = detail::exchange(comm, block, parity); stop != kArrived) return stop;
    const Share own = part(comm.rank);
    const auto source = [&](std::uint32_t rank) -> const T* {
      return rank == comm.rank ? in + first + own.first : detail::slot_from<T>(comm, block, rank, filled);
    };
    reduce(block, out + first + own.first, source, comm.ranks, own.size(), op);
    if (whole) continue;
    block.sync();
    copy(block, detail::shown_by<T>(comm, block, comm.rank, parity), static_cast<const T*>(out) + first + own.first, own.size());
    const std::uint32_t shown = parity;
    if (const WaitResult stop = detail::exchange(comm, block, parity); stop != kArrived) return stop;
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = (comm.rank + i) % comm.ranks;
      copy(block, out + first + part(peer).first, static_cast<const T*>(detail::shown_by<T>(comm, block, peer, shown)), part(peer).size());
    }
  }
  return kArrived;
}

/// out[i] = op over ranks of in[rank count + i], i < count: every rank keeps its part.
template <class T, class Op>
BUSBW_DEVICE WaitResult reduce_scatter_staged(const Comm& comm, const Block& block, const T* in, T* out, std::size_t count, Op op) {
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(comm);
  std::uint32_t parity = detail::first_parity(comm, block);
  for (std::size_t first = mine.first; first < mine.last; first += strip) {
    const std::size_t size = detail::smaller(strip, mine.last - first);
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = (comm.rank + i) % comm.ranks;
      copy(block, detail::slot_for<T>(comm, block, peer, parity), in + peer * count + first, size);
    }
    const std::uint32_t filled = parity;
    if (const WaitResult stop = detail::exchange(comm, block, parity); stop != kArrived) return stop;
    const auto source = [&](std::uint32_t rank) -> const T* {
      return rank == comm.rank ? in + comm.rank * count + first : detail::slot_from<T>(comm, block, rank, filled);
    };
    reduce(block, out + first, source, comm.ranks, size, op);
  }
  return kArrived;
}

/// out[r count + i] = in[i] of rank r, i < count.
template <class T>
BUSBW_DEVICE WaitResult all_gather_staged(const Comm& comm, const Block& block, const T* in, T* out, std::size_t count) {
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(comm);
  std::uint32_t parity = detail::first_parity(comm, block);
  for (std::size_t first = mine.first; first < mine.last; first += strip) {
    const std::size_t size = detail::smaller(strip, mine.last - first);
    copy(block, detail::shown_by<T>(comm, block, comm.rank, parity), in + first, size);
    const std::uint32_t shown = parity;
    if (const WaitResult stop = detail::exchange(comm, block, parity); stop != kArrived) return stop;
    if (T* const own = out + comm.rank * count + first; own != in + first) copy(block, own, in + first, size);
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = (comm.rank + i) % comm.ranks;
      copy(block, out + peer * count + first, static_cast<const T*>(detail::shown_by<T>(comm, block, peer, shown)), size);
    }
  }
  return kArrived;
}

/// out[s count + i] = in[r count + i] of rank s, on rank r, i < count. in and out must not overlap.
template <class T>
BUSBW_DEVICE WaitResult all_to_all_staged(const Comm& comm, const Block& block, const T* in, T* out, std::size_t count) {
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(comm);
  std::uint32_t parity = detail::first_parity(comm, block);
  for (std::size_t first = mine.first; first < mine.last; first += strip) {
    const std::size_t size = detail::smaller(strip, mine.last - first);
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = (comm.rank + i) % comm.ranks;
      copy(block, detail::slot_for<T>(comm, block, peer, parity), in + peer * count + first, size);
    }
    const std::uint32_t filled = parity;
    if (const WaitResult stop = detail::exchange(comm, block, parity); stop != kArrived) return stop;
    copy(block, out + comm.rank * count + first, in + comm.rank * count + first, size);
    for (std::uint32_t i = 1; i < comm.ranks; ++i) {
      const std::uint32_t peer = (comm.rank + i) % comm.ranks;
      copy(block, out + peer * count + first, detail::slot_from<T>(comm, block, peer, filled), size);
    }
  }
  return kArrived;
}

/// out[i] = in[i] of the root, i < count. in is read on the root only.
template <class T>
BUSBW_DEVICE WaitResult broadcast_staged(const Comm& comm, const Block& block, const T* in, T* out, std::size_t count, std::uint32_t root) {
  const Share mine = share_of(count, block.blocks, block.block, Vector<T>::kElements);
  const std::size_t strip = detail::strip_of<T>(comm);
  std::uint32_t parity = detail::first_parity(comm, block);
  for (std::size_t first = mine.first; first < mine.last; first += strip) {
    const std::size_t size = detail::smaller(strip, mine.last - first);
    if (comm.rank == root) copy(block, detail::shown_by<T>(comm, block, root, parity), in + first, size);
    const std::uint32_t shown = parity;
    if (const WaitResult stop = detail::exchange(comm, block, parity); stop != kArrived) return stop;
    if (comm.rank != root)
      copy(block, out + first, static_cast<const T*>(detail::shown_by<T>(comm, block, root, shown)), size);
    else if (out != in)
      copy(block, out + first, in + first, size);
  }
  return kArrived;
}

}  // namespace busbw::device
