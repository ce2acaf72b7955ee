/// An example of fusion: a matrix product whose inner dimension is spread over ranks, summed tile by tile while later tiles are still being computed.
///
/// The product knows nothing of communication but one signal a tile; blocks of their own wait for it. Source of the division: FlashOverlap's "signal only" form.
#pragma once

#include "busbw/device/comm.hpp"
#include "busbw/device/move.hpp"

namespace busbw::device {

/// C = A B of one rank: A (rows, inner), B (inner, columns), C (rows, columns), row by row; tiles of tile_rows rows.
struct TiledProduct {
  std::uint32_t rows, inner, columns, tile_rows;
  BUSBW_DEVICE constexpr std::uint32_t tiles() const { return (rows + tile_rows - 1) / tile_rows; }
};

namespace detail {

/// A tile of the product, by all threads of a block; plain loops, as an example needs no tensor cores.
template <class T>
BUSBW_DEVICE void compute_tile(const Block& block, const TiledProduct& shape, std::uint32_t tile, const T* a, const T* b, T* c) {
  const std::uint32_t first = tile * shape.tile_rows;
  const std::uint32_t last = first + shape.tile_rows < shape.rows ? first + shape.tile_rows : shape.rows;
  for_each_of_thread(static_cast<std::size_t>(last - first) * shape.columns, block.thread, block.threads, [&](std::size_t i) {
    const std::size_t row = first + i / shape.columns, column = i % shape.columns;
    T sum{};
    for (std::uint32_t k = 0; k < shape.inner; ++k) sum = static_cast<T>(sum + a[row * shape.inner + k] * b[static_cast<std::size_t>(k) * shape.columns + column]);
    weak_store(c + row * shape.columns + column, sum);
  });
}

}  // namespace detail

/// out = sum over ranks of their products, on every rank. partial, out: places in windows, (rows, columns); ready: a place in a window of tiles() words, zeros before the
/// first call, which count the ranks that have computed a tile, of all calls. Tile t is summed by rank t % n. The first half of the blocks computes, the other sums; two
/// blocks at least, all of which must be live. A call begins with no barrier: peers' reads of partial ended before the barrier that ended the call before, and nobody
/// stores into out before all ranks have computed that tile in this call. call: how often this was called before, the same on all ranks. All threads of all blocks call.
template <class T>
BUSBW_DEVICE WaitResult gemm_all_reduce(const Comm& comm, const Block& block, const TiledProduct& shape, const T* a, const T* b, SymPtr<T> partial, SymPtr<T> out,
                                        SymPtr<std::uint64_t> ready, std::uint64_t call) {
  const std::uint32_t computing = block.blocks / 2, summing = block.blocks - computing;
  if (block.block < computing) {
    for (std::uint32_t tile = block.block; tile < shape.tiles(); tile += computing) {
      detail::compute_tile(block, shape, tile, a, b, partial.at(comm.rank));
      block.sync();
      if (block.thread == 0) SystemAtomic<std::uint64_t>(ready.at(tile % comm.ranks)[tile]).fetch_add(1, kRelease);
    }
  } else {
    for (std::uint32_t tile = comm.rank + (block.block - computing) * comm.ranks; tile < shape.tiles(); tile += summing * comm.ranks) {
      WaitResult mine = kArrived;
      if (block.thread == 0)
        mine = wait_until(ready.at(comm.rank)[tile], (call + 1) * comm.ranks, kAcquire, comm.deadline(), Primitive::flag_wait, block.block, comm.rank);
      if (const WaitResult stop = block.agreed(mine); stop != kArrived) return stop;
      const std::size_t first = static_cast<std::size_t>(tile) * shape.tile_rows * shape.columns, all = static_cast<std::size_t>(shape.rows) * shape.columns;
      const std::size_t size = first + shape.tile_rows * shape.columns < all ? shape.tile_rows * static_cast<std::size_t>(shape.columns) : all - first;
      const auto source = [&](std::uint32_t rank) -> const T* { return partial.at(rank) + first; };
      reduce(block, out.at(comm.rank) + first, source, comm.ranks, size, Sum{});
      block.sync();  // threads share a sum and its copies out differently
      for (std::uint32_t i = 1; i < comm.ranks; ++i)
        copy(block, out.at((comm.rank + i) % comm.ranks) + first, static_cast<const T*>(out.at(comm.rank)) + first, size);
    }
  }
  return barrier(comm, block);
}

}  // namespace busbw::device
