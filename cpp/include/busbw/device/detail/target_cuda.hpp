/// CUDA as target: inline PTX of the memory model of PTX ISA 8.x, "Memory Consistency Model". Included by target.hpp alone.
///
/// Scope is system throughout: a peer may be another GPU. Needs sm_70 or later.
#pragma once

#if defined(__CUDACC_RTC__)
namespace std {  // NVRTC has no standard headers
using uint8_t = unsigned char;
using int8_t = signed char;
using uint16_t = unsigned short;
using int16_t = short;
using uint32_t = unsigned int;
using int32_t = int;
using uint64_t = unsigned long long;
using int64_t = long long;
using size_t = decltype(sizeof(0));
using uintptr_t = unsigned long long;
enum class byte : unsigned char {};
}  // namespace std
#define __builtin_memcpy memcpy  // NVRTC knows it by this name alone
#else
#include <cstddef>
#include <cstdint>
#endif

#include "busbw/device/order.hpp"

#define BUSBW_DEVICE __device__ __forceinline__
#define BUSBW_DEVICE_CALL __device__ __noinline__

namespace busbw::device {

namespace detail {

/// Bits of a word as PTX moves them.
template <std::size_t kBytes>
struct Bits;
template <>
struct Bits<4> {
  using Type = unsigned int;
};
template <>
struct Bits<8> {
  using Type = unsigned long long;
};

BUSBW_DEVICE unsigned int load(const unsigned int* p, Order order) {
  unsigned int v;
  if (order == Order::acquire)
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  else
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
BUSBW_DEVICE unsigned long long load(const unsigned long long* p, Order order) {
  unsigned long long v;
  if (order == Order::acquire)
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  else
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
BUSBW_DEVICE void store(unsigned int* p, unsigned int v, Order order) {
  if (order == Order::release)
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
  else
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
BUSBW_DEVICE void store(unsigned long long* p, unsigned long long v, Order order) {
  if (order == Order::release)
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
  else
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
BUSBW_DEVICE unsigned int fetch_add(unsigned int* p, unsigned int v, Order order) {
  unsigned int old;
  if (order == Order::release)
    asm volatile("atom.release.sys.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  else if (order == Order::acquire)
    asm volatile("atom.acquire.sys.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  else
    asm volatile("atom.relaxed.sys.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
BUSBW_DEVICE unsigned long long fetch_add(unsigned long long* p, unsigned long long v, Order order) {
  unsigned long long old;
  if (order == Order::release)
    asm volatile("atom.release.sys.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  else if (order == Order::acquire)
    asm volatile("atom.acquire.sys.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  else
    asm volatile("atom.relaxed.sys.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}

}  // namespace detail

/// What came before a launch on its stream is visible to it at system scope.
inline constexpr bool kLaunchIsFence = true;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasMultimem = true;

/// The sum over the ranks of a multicast address's group of 16 bytes: 4 floats; 8 bfloat16, added in float.
BUSBW_DEVICE void multimem_load_sum_f32(const void* p, std::uint32_t (&word)[4]) {
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "l"(p)
               : "memory");
}
BUSBW_DEVICE void multimem_load_sum_bf16(const void* p, std::uint32_t (&word)[4]) {
  asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "l"(p)
               : "memory");
}
/// 16 bytes at every rank of the group.
BUSBW_DEVICE void multimem_store_16(void* p, const std::uint32_t (&word)[4]) {
  asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]) : "memory");
}
#else
inline constexpr bool kHasMultimem = false;
#endif

template <class T>
class SystemAtomic {
  using Bits = typename detail::Bits<sizeof(T)>::Type;

 public:
  BUSBW_DEVICE explicit SystemAtomic(T& word) : p_(reinterpret_cast<Bits*>(&word)) {}
  BUSBW_DEVICE T load(Order order) const { return static_cast<T>(detail::load(p_, order)); }
  BUSBW_DEVICE void store(T value, Order order) const { detail::store(p_, static_cast<Bits>(value), order); }
  BUSBW_DEVICE T fetch_add(T value, Order order) const { return static_cast<T>(detail::fetch_add(p_, static_cast<Bits>(value), order)); }

 private:
  Bits* p_;
};

template <class T>
BUSBW_DEVICE T weak_load(const T* p) {
  return *p;
}
template <class T>
BUSBW_DEVICE void weak_store(T* p, T value) {
  *p = value;
}

struct BlockBarrier {
  BUSBW_DEVICE void sync() { __syncthreads(); }
  BUSBW_DEVICE bool sync_or(bool mine) { return __syncthreads_or(mine) != 0; }
};

/// Two words of a packet in one store of 16 bytes; what is promised is that each word is whole.
BUSBW_DEVICE void store_packet(std::uint64_t* p, std::uint64_t first, std::uint64_t second) {
  asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(static_cast<unsigned long long>(first)),
               "l"(static_cast<unsigned long long>(second))
               : "memory");
}
BUSBW_DEVICE void load_packet(std::uint64_t* p, std::uint64_t& first, std::uint64_t& second) {
  unsigned long long a, b;
  asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p) : "memory");
  first = a;
  second = b;
}
BUSBW_DEVICE void packet_taken(const std::uint64_t*) {}

/// 15 words and a flag behind them. One thread stores a line, so the flag is a release: right on every link, slower than a warp's store of the
/// line as one, which counts on links that keep 128 bytes together.
BUSBW_DEVICE void store_line(std::uint64_t* p, const std::uint64_t* words, std::uint64_t flag) {
  for (int i = 0; i < 14; i += 2) store_packet(p + i, words[i], words[i + 1]);
  detail::store(reinterpret_cast<unsigned long long*>(p + 14), static_cast<unsigned long long>(words[14]), Order::relaxed);
  detail::store(reinterpret_cast<unsigned long long*>(p + 15), static_cast<unsigned long long>(flag), Order::release);
}
BUSBW_DEVICE bool load_line(std::uint64_t* p, std::uint64_t* words, std::uint64_t flag) {
  if (detail::load(reinterpret_cast<const unsigned long long*>(p + 15), Order::relaxed) != flag) return false;  // a poll drops no cache lines
  detail::load(reinterpret_cast<const unsigned long long*>(p + 15), Order::acquire);
  for (int i = 0; i < 14; i += 2) load_packet(p + i, words[i], words[i + 1]);
  words[14] = detail::load(reinterpret_cast<const unsigned long long*>(p + 14), Order::relaxed);
  return true;
}

/// Neighbouring threads take neighbours, so that their accesses are one.
template <class Body>
BUSBW_DEVICE void for_each_of_thread(std::size_t count, std::uint32_t thread, std::uint32_t threads, Body body) {
  for (std::size_t i = thread; i < count; i += threads) body(i);
}

inline constexpr bool kMovesRuns = false;

/// dst[i] = src[i] of this thread's share of 0 .. count - 1. Four loads are under way before the first store: one a thread would leave the memory idle most of the time. dst and src must not
/// overlap but where they are the same.
template <class T>
BUSBW_DEVICE void copy_each(T* dst, const T* src, std::size_t count, std::uint32_t thread, std::uint32_t threads) {
  std::size_t i = thread;
  for (; i + 3 * static_cast<std::size_t>(threads) < count; i += 4 * static_cast<std::size_t>(threads)) {
    const T a = src[i], b = src[i + threads], c = src[i + 2 * static_cast<std::size_t>(threads)], d = src[i + 3 * static_cast<std::size_t>(threads)];
    dst[i] = a;
    dst[i + threads] = b;
    dst[i + 2 * static_cast<std::size_t>(threads)] = c;
    dst[i + 3 * static_cast<std::size_t>(threads)] = d;
  }
  for (; i < count; i += threads) dst[i] = src[i];
}

BUSBW_DEVICE void prefetch(const void*) {}

BUSBW_DEVICE void spin_pause(std::uint32_t) {}

/// IEEE half precision; computed with in float and rounded to the nearest even, as `_Float16` is on a CPU without instructions for it.
struct Float16 {
  std::uint16_t bits;

  Float16() = default;
  BUSBW_DEVICE explicit Float16(float value) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); }
  BUSBW_DEVICE operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};

struct Clock {
  BUSBW_DEVICE static std::uint64_t now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
  }
};

}  // namespace busbw::device
