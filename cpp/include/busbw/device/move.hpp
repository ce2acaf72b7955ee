/// Moving and reducing elements by all threads of a block, 16 bytes at a time where both sides allow it.
#pragma once

#include "busbw/device/block.hpp"
#include "busbw/device/window.hpp"

namespace busbw::device {

template <class T>
struct alignas(kVectorBytes) Vector {
  static constexpr std::size_t kElements = kVectorBytes / sizeof(T);
  T element[kElements];
};

struct Sum {
  template <class T>
  BUSBW_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Prod {
  template <class T>
  BUSBW_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};
struct Min {
  template <class T>
  BUSBW_DEVICE T operator()(T a, T b) const {
    return b < a ? b : a;
  }
};
struct Max {
  template <class T>
  BUSBW_DEVICE T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

template <class T, class Op>
BUSBW_DEVICE Vector<T> combined(const Vector<T>& a, const Vector<T>& b, Op op) {
  Vector<T> out;
  for (std::size_t i = 0; i < Vector<T>::kElements; ++i) out.element[i] = op(a.element[i], b.element[i]);
  return out;
}

/// What is stored twice is stored in pieces of so many bytes, which the first-level cache still holds the second time. A guess.
inline constexpr std::size_t kTwiceBytes = 4096;

BUSBW_DEVICE bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kVectorBytes == 0; }

/// dst[i] = src[i] for i < count. All threads of the block call. Order: weak. streamed: what is stored is too large to stay in a cache, and goes
/// past it where the machine can.
template <class T>
BUSBW_DEVICE void copy(const Block& block, T* dst, const T* src, std::size_t count, bool streamed = false) {
  constexpr std::size_t kElements = Vector<T>::kElements;
  if constexpr (kMovesRuns) {
    const Share mine = share_of(count, block.threads, block.thread, kElements);
    move_run(dst + mine.first, src + mine.first, mine.size(), streamed);
  } else {
    const bool vectors = is_aligned(dst) && is_aligned(src);
    const std::size_t whole = vectors ? count / kElements : 0;
    copy_each(reinterpret_cast<Vector<T>*>(dst), reinterpret_cast<const Vector<T>*>(src), whole, block.thread, block.threads);
    const std::size_t done = whole * kElements;
    for_each_of_thread(count - done, block.thread, block.threads, [&](std::size_t i) { weak_store(dst + done + i, weak_load(src + done + i)); });
  }
}

/// The same for bytes of whatever elements.
BUSBW_DEVICE void copy_bytes(const Block& block, std::byte* dst, const std::byte* src, std::size_t bytes) {
  const auto places = reinterpret_cast<std::uintptr_t>(dst) | reinterpret_cast<std::uintptr_t>(src) | bytes;
  if (places % sizeof(std::uint32_t) == 0)
    copy(block, reinterpret_cast<std::uint32_t*>(dst), reinterpret_cast<const std::uint32_t*>(src), bytes / sizeof(std::uint32_t));
  else
    copy(block, reinterpret_cast<std::uint8_t*>(dst), reinterpret_cast<const std::uint8_t*>(src), bytes);
}

/// target(j)[i] = op over the sources' [i], in their order, for i < count and every j < targets. `source(k)` is the k-th of `sources`. All threads of the
/// block call. Order: weak. The sum is formed once, in the same order everywhere, so results are equal bit for bit. target(0) may be a source; another
/// target may be one too.
template <class T, class Op, class Target, class Source>
BUSBW_DEVICE void reduce_to_each(const Block& block, Target target, std::uint32_t targets, Source source, std::uint32_t sources, std::size_t count, Op op) {
  constexpr std::size_t kElements = Vector<T>::kElements;
  if constexpr (kMovesRuns) {
    const Share mine = share_of(count, block.threads, block.thread, kElements);
    constexpr std::size_t kPiece = kTwiceBytes / sizeof(T);
    const std::size_t piece = targets > 1 ? kPiece : mine.size();
    for (std::size_t first = mine.first; first < mine.last; first += piece) {
      const std::size_t size = mine.last - first < piece ? mine.last - first : piece;
      reduce_run(target(0), source, sources, first, size, op);
      for (std::uint32_t j = 1; j < targets; ++j) move_run(target(j) + first, static_cast<const T*>(target(0)) + first, size, false);
    }
  } else {
    bool vectors = true;
    for (std::uint32_t j = 0; j < targets; ++j) vectors = vectors && is_aligned(target(j));
    for (std::uint32_t k = 0; k < sources; ++k) vectors = vectors && is_aligned(source(k));
    const std::size_t whole = vectors ? count / kElements : 0;
    for_each_of_thread(whole, block.thread, block.threads, [&](std::size_t i) {
      Vector<T> sum = weak_load(reinterpret_cast<const Vector<T>*>(source(0)) + i);
      for (std::uint32_t k = 1; k < sources; ++k) sum = combined(sum, weak_load(reinterpret_cast<const Vector<T>*>(source(k)) + i), op);
      for (std::uint32_t j = 0; j < targets; ++j) weak_store(reinterpret_cast<Vector<T>*>(target(j)) + i, sum);
    });
    const std::size_t done = whole * kElements;
    for_each_of_thread(count - done, block.thread, block.threads, [&](std::size_t i) {
      T sum = weak_load(source(0) + done + i);
      for (std::uint32_t k = 1; k < sources; ++k) sum = op(sum, weak_load(source(k) + done + i));
      for (std::uint32_t j = 0; j < targets; ++j) weak_store(target(j) + done + i, sum);
    });
  }
}

/// dst[i] = op over the sources' [i], in their order, for i < count: reduce_to_each with one target.
template <class T, class Op, class Source>
BUSBW_DEVICE void reduce(const Block& block, T* dst, Source source, std::uint32_t sources, std::size_t count, Op op) {
  reduce_to_each<T>(block, [&](std::uint32_t) { return dst; }, 1, source, sources, count, op);
}

}  // namespace busbw::device
