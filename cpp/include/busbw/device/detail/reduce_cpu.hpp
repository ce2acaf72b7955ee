/// Element by element over runs of memory, with the widest vectors of the CPU that runs it. Included by target_cpu.hpp alone.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__)
#define BUSBW_VECTOR_TARGETS 1
#endif

#if defined(__clang__)
#define BUSBW_EACH_ALONE _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define BUSBW_EACH_ALONE _Pragma("GCC ivdep")
#else
#define BUSBW_EACH_ALONE
#endif

namespace busbw::device::detail {

/// to[i] = op(a[i], b[i]). `to` may be a or b, but not overlap them otherwise.
template <class T, class Op>
void combine_portable(T* to, const T* a, const T* b, std::size_t count, Op op) {
  BUSBW_EACH_ALONE
  for (std::size_t i = 0; i < count; ++i) to[i] = op(a[i], b[i]);
}

#if defined(BUSBW_VECTOR_TARGETS)
template <class T, class Op>
[[gnu::target("avx2")]] void combine_avx2(T* to, const T* a, const T* b, std::size_t count, Op op) {
  BUSBW_EACH_ALONE
  for (std::size_t i = 0; i < count; ++i) to[i] = op(a[i], b[i]);
}
#endif

template <class T, class Op>
void combine(T* to, const T* a, const T* b, std::size_t count, Op op) {
#if defined(BUSBW_VECTOR_TARGETS)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return combine_avx2(to, a, b, count, op);
#endif
  combine_portable(to, a, b, count, op);
}

/// A reduction of which only the width of an element is known where the kernel is compiled: one kernel for many types and operations.
struct AnyOp {
  void (*combine)(void* to, const void* a, const void* b, std::size_t count);
};
template <class T>
void combine(T* to, const T* a, const T* b, std::size_t count, AnyOp op) {
  op.combine(to, a, b, count);
}
template <class T, class Op>
inline constexpr AnyOp kAnyOp{[](void* to, const void* a, const void* b, std::size_t count) {
  combine(static_cast<T*>(to), static_cast<const T*>(a), static_cast<const T*>(b), count, Op{});
}};

/// to[i] = op over the sources' [i], in their order. `to` may be one of the sources, but not overlap them otherwise.
template <class T, class Op, class Source>
void reduce_run(T* to, Source source, std::uint32_t sources, std::size_t first, std::size_t count, Op op) {
  if (sources == 2) return combine(to + first, source(0) + first, source(1) + first, count, op);
  if (sources == 1) {
    if (to + first != source(0) + first) __builtin_memcpy(to + first, source(0) + first, count * sizeof(T));
    return;
  }
  constexpr std::size_t kBlock = 2048 / sizeof(T);  // stays in the first-level cache beside a piece of each source
  T sum[kBlock];
  for (const std::size_t last = first + count; first < last; first += kBlock) {
    const std::size_t size = last - first < kBlock ? last - first : kBlock;
    combine(sum, source(0) + first, source(1) + first, size, op);
    for (std::uint32_t k = 2; k + 1 < sources; ++k) combine(sum, static_cast<const T*>(sum), source(k) + first, size, op);
    combine(to + first, static_cast<const T*>(sum), source(sources - 1) + first, size, op);
  }
}

}  // namespace busbw::device::detail
