/// CUDA as target: inline PTX of the memory model of PTX ISA 8.x, "Memory Consistency Model". Included by target.hpp alone.
///
/// Scope is system throughout: a peer may be another GPU. Needs sm_70 or later.
#pragma once

#if defined(__CUDACC_RTC__)
namespace std {  // NVRTC has no standard headers
using uint32_t = unsigned int;
using int32_t = int;
using uint64_t = unsigned long long;
using int64_t = long long;
using size_t = decltype(sizeof(0));
using uintptr_t = unsigned long long;
enum class byte : unsigned char {};
}  // namespace std
#else
#include <cstddef>
#include <cstdint>
#endif

#include "busbw/device/order.hpp"

#define BUSBW_DEVICE __device__ __forceinline__

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
};

/// Neighbouring threads take neighbours, so that their accesses are one.
template <class Body>
BUSBW_DEVICE void for_each_of_thread(std::size_t count, std::uint32_t thread, std::uint32_t threads, Body body) {
  for (std::size_t i = thread; i < count; i += threads) body(i);
}

inline constexpr bool kMovesRuns = false;

BUSBW_DEVICE void prefetch(const void*) {}

BUSBW_DEVICE void spin_pause(std::uint32_t) {}

struct Clock {
  BUSBW_DEVICE static std::uint64_t now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
  }
};

}  // namespace busbw::device
